/** What is taken of each participant: from the server's relay, and directly. */

import type { Asked, Mixing } from "../shared/engine";
import type { Listen } from "../shared/relay";
import type { Participant, Settings } from "./model";

/** A participant, and what the worker says of it. */
export interface Taken {
  participant: Pick<Participant, "pin" | "gain" | "pan" | "muted" | "mutedByOwner" | "solo">;
  /** Its number in the room; null of the loop, and of one that the room does not know. */
  number: number | null;
  /** Its own stream. */
  stream: number;
  /** How its stream is to be taken from the relay; null before that is known. */
  asked: Asked | null;
  /** Whether the peer is heard of by the relay. */
  isReached: boolean;
}

/** What to ask the relay for. */
export function listenOf(all: Taken[], mixing: Mixing, settings: Pick<Settings, "bits" | "packet">): Listen {
  const members = withNumbers(all);
  const hasSolo = all.some(({ participant }) => participant.solo);
  const forward = members.flatMap(([number, { participant, stream, asked }]) => {
    const first = participant.pin === "direct" ? "nothing" : "forwarded";
    return (asked ?? first) !== "nothing" && mixing.needsOwn(stream) ? [number] : [];
  });
  const sources = members.flatMap(([number, { participant, stream }]) => {
    const { gain, pan, muted, mutedByOwner, solo } = participant;
    if (!mixing.isSource(stream)) return [];
    return [{ stream: number, gain, pan, muted: muted || mutedByOwner || (hasSolo && !solo) }];
  });
  const { bits, packet } = settings;
  const format = bits === 24 || bits === 32 ? 24 : 16;
  const opus = typeof AudioDecoder !== "undefined";
  return { forward, mix: sources.length === 0 ? null : { format, packet_frames: packet, sources }, opus };
}

function withNumbers(all: Taken[]): [number, Taken][] {
  return all.flatMap((taken) => (taken.number === null ? [] : [[taken.number, taken]]));
}

/** Whether a participant's stream is asked for there. */
export function takesRelayed({ forward, mix }: Listen, number: number): boolean {
  return forward.includes(number) || !!mix?.sources.some(({ stream }) => stream === number);
}

/**
 * Whether a participant shall send its stream directly: not where it is heard in the mix, or shall come by the server alone. The peer goes
 * on directly until the relay is there, and one that needs no relay itself opens a session only because of this: so it is said at once.
 */
export function wantsDirect(taken: Taken, mixing: Mixing): boolean {
  const { participant, stream, asked, isReached } = taken;
  const { pin } = participant;
  if (pin === "direct") return true;
  const isPinned = pin === "relay" || (pin === "mix" && (!isReached || mixing.isHeldUp(stream)));
  // The relay is asked first.
  const isAsked = asked !== null && asked !== "nothing";
  return !(isPinned && isAsked) && mixing.needsOwn(stream);
}
