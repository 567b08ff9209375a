/** Who has the problem, where, and what to do: one way of the sound from one musician to another, as both ends report it. */

import type { HeardStats } from "../../shared/stats";
import { MAX_PACKET_FRAMES } from "../../shared/wire";
import { formatMs, formatShare, framesToMs, plural } from "./format";
import { type Unheard, whyUnheard } from "./own-words";

/** JackTrip's automatic buffer grows at this share of glitches: above it, players notice. */
export const AUDIBLE_SHARE = 0.006;
/** Times an output may run dry in a report's 4 s: at 10 ms each, as a browser's ordinary output has it, as large a share. */
export const AUDIBLE_UNDERRUNS = 3;

/** One way of the sound, over its last seconds. Shares are 0 to 1, null where nothing was to be counted. */
export interface Way {
  /** Names; null is oneself, for a player may have any name. */
  from: string | null;
  to: string | null;
  concealedShare: number | null;
  lostShare: number | null;
  lateShare: number | null;
  /** Captured frames lost at the sender. */
  overrunFrames: number;
  /** Datagrams that the sender dropped because every lane had a backlog. */
  droppedPackets: number;
  /** Times the listener's own output ran dry, which no share counts; null where its browser does not tell. */
  outputUnderruns: number | null;
  /** By the server's mix: what came lost or late is of the last part of the way, from there. */
  isMixed: boolean;
  /** Everyone in that mix has gaps: `diagnoseMix` says it once. */
  isMixBad: boolean;
  /** Whether everyone else hears the sender as badly, and the listener everyone else; null without anyone else. */
  othersHearSenderBadly: boolean | null;
  listenerHearsOthersBadly: boolean | null;
}

type Shares = Pick<Way, "concealedShare" | "lostShare" | "lateShare">;

/** Less is what a change of microphones cuts off: the beginning of a packet. */
const LEAST_OVERRUN_FRAMES = MAX_PACKET_FRAMES;

export interface Diagnosis {
  where: "microphone" | "uplink" | "path" | "downlink" | "output";
  /** One sentence: who has the problem, and what it is. */
  text: string;
  /** One sentence: what to do. */
  advice: string;
}

/** Null while nothing is wrong that anybody would hear. The nearest cause that explains it comes first. */
export function diagnose(way: Way): Diagnosis | null {
  const { lostShare, lateShare } = way;
  const sender = way.from ?? "you";
  const listener = way.to ?? "you";
  const ofSender = possessive(way.from);
  const ofListener = possessive(way.to);
  if ((way.outputUnderruns ?? 0) >= AUDIBLE_UNDERRUNS) {
    return {
      where: "output",
      text: `${capital(ofListener)} computer is too busy to play without gaps.`,
      advice:
        way.to === null
          ? "Close other programs. If that does not help, leave and choose a larger block under Advanced."
          : `Ask ${way.to} to close other programs and, if that does not help, to take a larger block: under Advanced before joining, or in a terminal with --quantum.`,
    };
  }
  if ((way.concealedShare ?? 0) < AUDIBLE_SHARE) return null;
  if (way.overrunFrames >= LEAST_OVERRUN_FRAMES) {
    return {
      where: "microphone",
      text: `${capital(ofSender)} computer is too busy: it loses sound before sending it.`,
      advice: `Close other programs on ${ofSender} computer.`,
    };
  }
  // Where all that was sent came in time, no connection is to blame. Of the way to a mixer nothing is known.
  if (!way.isMixed && !lostShare && !lateShare && way.droppedPackets === 0) {
    return {
      where: "microphone",
      text: `${capital(ofSender)} sound stops now and then before it is sent.`,
      advice: `Look at the microphone's connection and at other programs on ${ofSender} computer.`,
    };
  }
  if (way.droppedPackets > 0 || way.othersHearSenderBadly === true) {
    return {
      where: "uplink",
      text: `${capital(ofSender)} connection cannot carry all that it sends.`,
      advice: `A network cable at ${ofSender} end, and Wi-Fi switched off, helps most; fewer channels or bits help too.`,
    };
  }
  if (way.listenerHearsOthersBadly === true) {
    return {
      where: "downlink",
      text: `${capital(ofListener)} connection has trouble receiving: it is the same with everyone.`,
      advice: `A network cable at ${ofListener} end, and Wi-Fi switched off, helps most, and no downloads meanwhile.`,
    };
  }
  if (way.isMixBad) return null;
  if (way.isMixed) {
    return isBeforeServer(way)
      ? {
          where: "uplink",
          text: `${capital(ofSender)} sound reaches the server with gaps.`,
          advice: `A network cable at ${ofSender} end, and Wi-Fi switched off, helps most.`,
        }
      : mixReaches(listener, ofListener);
  }
  if ((lateShare ?? 0) > (lostShare ?? 0)) {
    return {
      where: "path",
      text: `Packets from ${sender} to ${listener} take very different times.`,
      advice: `${way.to === null ? "Set Buffer to Safe, here" : `Ask ${way.to} to set Buffer to Safe for you`}: fewer gaps, more delay. A cable instead of Wi-Fi at either end helps, too.`,
    };
  }
  return {
    where: "path",
    text: `Packets from ${sender} to ${listener} get lost on the way.`,
    advice: "A network cable at either end, and Wi-Fi switched off, helps most.",
  };
}

/** Of the first part of the way the server's mixer has made up what was missing. Where the last part does not explain it, that was it. */
function isBeforeServer({ lateShare, lostShare, concealedShare }: Shares): boolean {
  return ((lateShare ?? 0) + (lostShare ?? 0)) * 2 < (concealedShare ?? 0);
}

function mixReaches(listener: string, ofListener: string): Diagnosis {
  return {
    where: "downlink",
    text: `The server's mix reaches ${listener} with gaps.`,
    advice: `A network cable at ${ofListener} end, and Wi-Fi switched off, helps most, and no downloads meanwhile.`,
  };
}

/** What is wrong with the mix itself, by how the peers are heard: null unless all who are in it, two at least, have gaps. */
export function diagnoseMix(
  heard: readonly (Pick<HeardStats, "isMixed" | keyof Shares> | null)[],
): Pick<Diagnosis, "text" | "advice"> | null {
  const mixed = heard.flatMap((peer) => (peer?.isMixed ? [peer] : []));
  if (mixed.length < 2 || !mixed.every((peer) => (peer.concealedShare ?? 0) >= AUDIBLE_SHARE)) return null;
  if (!mixed.every(isBeforeServer)) return mixReaches("you", "your");
  return {
    text: "The server's mix has gaps; it cannot tell from whom.",
    advice: "If they last, the server may be too busy: tell whoever runs it.",
  };
}

/** Whether this page lets anybody hear one. While it does not, what peers report is how they hear silence. */
export function isHeard(state: Unheard): boolean {
  return whyUnheard(state) === null;
}

/** How a peer hears this page, in a sentence: "Bob hears you: 0.2 % filled in, 8.0 ms buffer". In the server's mix the buffer is that of the mix. */
export function heardWords(name: string, heard: HeardStats, sampleRateHz: number | null): string {
  const buffer = `${formatMs(framesToMs(heard.bufferFrames ?? heard.targetFrames, sampleRateHz))} buffer`;
  const { concealedShare, outputUnderruns } = heard;
  if (concealedShare === null) return `${name} does not hear you yet`;
  const gaps = concealedShare === 0 ? [] : [`${formatShare(concealedShare)} filled in`];
  if (outputUnderruns) gaps.push(`their output ran dry ${plural(outputUnderruns, "time")}`);
  const quality = gaps.join(", ") || "no gaps";
  return `${name} hears you${heard.isMixed ? " in the server's mix" : ""}: ${quality}, ${buffer}`;
}

const possessive = (who: string | null) => (who === null ? "your" : `${who}'s`);
const capital = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);
