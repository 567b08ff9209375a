/** What the room has of a participant: the strip's settings, and the connection. */

import type { WayName } from "../shared/messages";
import type { HeardReport } from "../shared/wire";
import { HeardWindow } from "./heard";
import type { Loop, Peer } from "./mesh";
import type { Mix } from "./mixes";
import type { Participant } from "./model";

export interface Member {
  participant: Participant;
  /** As it is seen; how it is shown, the participant says. */
  name: string;
  stream: number;
  peer: Peer | Loop | null;
  /** Its number in the room; null of the loop, and while a server that was restarted does not know it: another may have that number by now. */
  number: number | null;
  /** Whether its own stream is played, as the engine was last told. */
  isSilent: boolean;
  /** By which ways it shall send us its stream, as it was last told; null where that may have been lost. */
  wanted: Record<WayName, boolean | null>;
  /** What the worker was last told of it. */
  told: string;
  /** So far, when its delay was last looked at. */
  looked: { playedFrames: number; concealedFrames: number };
  window: HeardWindow;
  /** How we hear it, for the report to it. */
  hearing: HeardReport | null;
  /** While a server that was restarted does not know it yet. */
  returnTimer: ReturnType<typeof setTimeout> | undefined;
}

/** Who has just come. */
export function newMember(
  stream: number,
  of: { id: string; name: string; isLoop: boolean; isOwner: boolean },
  mix: Mix,
): Member {
  return {
    stream,
    name: of.name,
    peer: null,
    number: null,
    isSilent: false,
    wanted: { direct: true, relayed: true },
    told: "",
    looked: { playedFrames: 0, concealedFrames: 0 },
    window: new HeardWindow(),
    hearing: null,
    returnTimer: undefined,
    participant: {
      ...of,
      ...mix,
      present: true,
      connection: "connecting",
      mutedByOwner: false,
    },
  };
}
