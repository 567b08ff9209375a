/** The choice of the way that a peer's sound takes. */

import type { Pin } from "./relay";

/** What was seen of the two ways to a peer since the last review. */
export interface PathObservation {
  elapsedMs: number;
  pin: Pin;
  directOpen: boolean;
  directLostShare: number | null;
  relayOpen: boolean;
  relayLostShare: number | null;
  /** Datagrams were dropped for backlog, or a format stepped down. */
  uplinkShort: boolean;
  /** How many take our stream by the relay. */
  relayListeners: number;
  /** Datagrams that the relay sent us, those it dropped for want of room, and of how many streams they were. */
  forwarded: number;
  aged: number;
  forwardedStreams: number;
}

/** What to do until the next review. */
export interface PathDecision {
  sendDirect: boolean;
  sendRelay: boolean;
  /** How the peer's stream is taken from the relay. */
  listen: "forward" | "mix" | "none";
}

/** Judges the two ways to one peer. */
export interface PathChoice {
  review(seen: PathObservation): PathDecision;
  close(): void;
}
