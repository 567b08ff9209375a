/** `window.antiphon.stats()` and the room page's numbers: one versioned record. Documented in docs/automation.md. */

import type { Format } from "./rungs";

/** A figure that was not measured (yet) is `null`, never 0. Counters count since the page joined. */
export type Unknown = null;

/** What this page sends: one stream, in one or more formats. */
export interface SenderStats {
  /** How the microphone reaches the engine: from the track in the worker, or through the worklet. */
  capturePath: "track" | "worklet" | "none";
  /** Frames handed to the engine. */
  capturedFrames: number;
  /** Frames put into datagrams. */
  sentFrames: number;
  /** Frames dropped because the engine's input was not drained in time. */
  overrunFrames: number;
  /** Datagrams made in the chosen format (with Opus: of the samples that keep its time). */
  packets: number;
  /** Peak since the last call, linear, 1 = full scale, per channel. */
  peak: number[];
}

/** One lane: a peer connection's data channel. */
export interface LaneStats {
  lane: number;
  state: "connecting" | "open" | "closed";
  sentDatagrams: number;
  receivedDatagrams: number;
  /** Bytes handed to the browser that it has not sent yet. */
  backlogBytes: number;
  /** Round-trip time of a probe datagram on this lane. */
  rttMs: number | Unknown;
  /** The path ICE chose: "host", "srflx", "prflx" or "relay" at this end; null until known. */
  candidateType: string | Unknown;
}

/** What one peer is sent, and why. */
export interface SentStats {
  format: Format;
  opusBps: number | Unknown;
  /** Steps down from the chosen format (0), because the lanes to this peer backed up. */
  rung: number;
  /** Whether each datagram is sent a second time, on another lane, because of the loss that the peer reports. */
  copies: boolean;
  copiesSent: number;
  /** Changes of format so far. */
  switches: number;
}

/** What this page hears of one peer, and how its own datagrams to that peer fare. */
export interface PeerStats {
  id: string;
  name: string;
  connection: "connecting" | "connected" | "interrupted" | "failed";
  lanes: LaneStats[];
  /** Least round-trip time of the lanes' last probes. */
  rttMs: number | Unknown;
  /** Our datagrams to this peer dropped because every lane had a backlog. */
  droppedBacklog: number;
  /** Datagrams of this stream that arrived, without duplicates. */
  receivedPackets: number;
  /** Sequence numbers never seen so far between the first and the newest seen. */
  lostPackets: number;
  latePackets: number;
  duplicatePackets: number;
  reorderedPackets: number;
  /** Datagrams dropped unread: wrong version, length, format or rate. */
  malformedPackets: number;
  /** Frames received and played, each once. */
  playedFrames: number;
  /** Frames of silence played in place of missing ones. */
  concealedFrames: number;
  /** Frames received but passed over to shorten the buffer. */
  skippedFrames: number;
  /** Times the buffer ran dry. */
  underruns: number;
  /** Frames waiting now, between the playout position and the newest frame received. */
  bufferFrames: number | Unknown;
  /** Delay the jitter buffer aims at, in frames, counted from the arrival of the most prompt packets. */
  targetFrames: number;
  channels: number | Unknown;
  /** Unknown of Opus. */
  bits: 16 | 24 | 32 | Unknown;
  /** What its stream is written in; null before the first packet. */
  format: Format | Unknown;
  /** Rate of its Opus packets, by their length. */
  opusBps: number | Unknown;
  /** What it is sent of ours. */
  sent: SentStats | Unknown;
  /** Peak since the last call, linear, per output side, before gain. */
  peak: number[];
  gain: number;
  pan: number;
  muted: boolean;
  solo: boolean;
}

/**
 * `window.antiphon.trace()`: one entry for each event, in columns. Times are milliseconds since the epoch, from a clock that never
 * steps while the page lives: they compare between browsers on one machine. A sequence number is the sender's own.
 */
export interface Trace {
  version: 1;
  /** Blocks of captured frames, when the engine got them. */
  captured: { timeMs: number[]; frames: number[] };
  /** Datagrams made, when they were handed to the lanes; each goes to every peer. */
  sent: { timeMs: number[]; sequence: number[]; firstFrame: number[] };
  /** Datagrams of sound, when they came out of a lane; duplicates and late ones too. */
  received: { timeMs: number[]; sequence: number[]; firstFrame: number[]; peer: string[] };
  /** Events that found no room. */
  dropped: number;
}

export interface Stats {
  version: 1;
  /** Milliseconds since the epoch when the record was made. */
  timeMs: number;
  room: string | Unknown;
  id: string | Unknown;
  name: string;
  signalling: "offline" | "connecting" | "online";
  crossOriginIsolated: boolean;
  /** "shared": rings in shared memory; "port": MessagePort fallback. */
  transport: "shared" | "port";
  sampleRateHz: number | Unknown;
  quantumFrames: number | Unknown;
  packetFrames: number;
  /** Unknown while Opus is chosen. */
  bits: 16 | 24 | 32 | Unknown;
  /** The chosen format; `peers[].sent` says what each peer gets. */
  format: Format;
  opusBps: number | Unknown;
  channels: number;
  /** The browser's own report (AudioContext.baseLatency), not a measurement. */
  reportedBaseLatencyMs: number | Unknown;
  /** The browser's own report (AudioContext.outputLatency), not a measurement. */
  reportedOutputLatencyMs: number | Unknown;
  /** The browser's own report (track settings), not a measurement. */
  reportedInputLatencyMs: number | Unknown;
  /** Quanta rendered by the worklet. */
  quanta: number;
  /** Records that did not fit a ring between threads. */
  ringOverflows: number;
  /** Datagrams from no known peer. */
  strayDatagrams: number;
  sender: SenderStats;
  peers: PeerStats[];
}
