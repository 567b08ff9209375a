/** What the page and the server's relay say to each other: docs/protocol.md, "Relay". */

/** Where the relay is, and this participant's way in; from the server's `welcome`. */
export interface RelayOffer {
  port: number;
  token: string;
  /** SHA-256 of the certificates it may show, 64 hex digits each; empty where browsers trust it anyway. */
  certificate_hashes: string[];
}

/** One participant in a mix. */
export interface MixSource {
  stream: number;
  gain: number;
  pan: number;
  muted: boolean;
}

/** What is taken from the relay, all of it. Streams are participants' numbers in the room. */
export interface Listen {
  forward: number[];
  mix: { format: 16 | 24; packet_frames: number; sources: MixSource[] } | null;
  /** Whether forwarded Opus is of use. */
  opus: boolean;
}

/** One who plays in our mix. */
export interface MixedSource {
  stream: number;
  /** By so many frames the mix's media time is ahead of its own where both sound together. */
  lead_frames: number;
  /** Of its last 4 s in mixes, the share that the mixer made up in place of what did not come in time; 0 to 1. */
  concealed_share: number;
}

/** The relay's own counts since we joined, or of the last 4 s; docs/protocol.md says of what. */
export interface RelayStatistics {
  rtt_us: number;
  forwarded: number;
  aged: number;
  over_rate: number;
  lost: number;
  received: number;
  missing: number;
  mix_us: number | null;
  mixed: MixedSource[];
  /** We asked for a mix, and the server mixes enough already; servers of before do not say. */
  mix_refused?: boolean;
}

/** How many take our stream by the relay, and whether Opus is of use to all to whom it is forwarded. */
export interface Wanted {
  listeners: number;
  opus: boolean;
}

export const NOBODY: Wanted = { listeners: 0, opus: true };

export type FromRelay = ({ type: "wanted" } & Wanted) | ({ type: "statistics" } & RelayStatistics);

/** Longest line of the control stream, bytes. */
export const MAX_CONTROL_BYTES = 16_384;

/** A line of the control stream; null if it is none that the protocol knows. */
export function parseControl(line: string): FromRelay | null {
  // biome-ignore lint/suspicious/noExplicitAny: it is anything until it was looked at.
  let message: any;
  try {
    message = Object(JSON.parse(line));
  } catch {
    return null;
  }
  switch (message.type) {
    case "wanted":
      return isCount(message.listeners) && typeof message.opus === "boolean" ? message : null;
    case "statistics": {
      const { rtt_us, forwarded, aged, over_rate, lost, received, missing } = message;
      const counts = [rtt_us, forwarded, aged, over_rate, lost, received, missing];
      const isWhole =
        counts.every(isCount) &&
        (message.mix_us === null || isCount(message.mix_us)) &&
        typeof (message.mix_refused ?? false) === "boolean";
      return isWhole && isMixed(message.mixed) ? message : null;
    }
    default:
      return null;
  }
}

function isCount(value: unknown): value is number {
  return typeof value === "number" && value >= 0 && Number.isFinite(value);
}

function isMixed(value: unknown): value is MixedSource[] {
  return (
    Array.isArray(value) &&
    value.every(
      (source) =>
        [source?.stream, source?.lead_frames].every(Number.isFinite) &&
        isCount(source.concealed_share) &&
        source.concealed_share <= 1,
    )
  );
}
