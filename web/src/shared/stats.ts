/** `window.antiphon.stats()` and the room page's numbers: one versioned record. Documented in docs/automation.md. */

import type { Pin } from "./engine";
import type { Format } from "./rungs";

/** A figure that was not measured (yet) is `null`, never 0. Counters count since the page joined. */
export type Unknown = null;

/** What this page sends: one stream, in one or more formats. */
export interface SenderStats {
  /** How the microphone reaches the engine: from the track in the worker, or through the worklet. */
  capturePath: "track" | "worklet" | "none";
  /** Captures of the microphone that take turns (docs/adr: captures in turns). */
  captures: number;
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

/** What came of a peer by one way: directly, or through the server. */
export interface WayStats {
  /** Round-trip time to the peer that way; null if it has not answered lately. */
  rttMs: number | Unknown;
  /** Whether its sound came that way within the last second. */
  isHeard: boolean;
  /** Share of its datagrams by that way that never came, of the last seconds. */
  lostShare: number | Unknown;
  /** Datagrams of sound, and those of them whose frames had not come the other way before. */
  receivedPackets: number;
  firstPackets: number;
}

/** The server's relay, as this page uses it. */
export interface RelayStats {
  /** WebTransport sessions: the lanes to the server. */
  sessions: Omit<LaneStats, "candidateType">[];
  /** Least round-trip time to the server of the sessions' last probes. */
  rttMs: number | Unknown;
  /** How many take our stream there, forwarded or mixed. */
  wanted: number;
  /** What goes there; null while nothing does. */
  sent: SentStats | Unknown;
  /** Our datagrams dropped because every session had a backlog. */
  droppedBacklog: number;
  /** Datagrams that came from nobody we know. */
  strayDatagrams: number;
  /** By the server's word, since we joined: datagrams sent to us, dropped because no session had room, dropped of ours as over the
   * rate, and packets to us that were lost; and what mixing takes. */
  forwarded: number | Unknown;
  aged: number | Unknown;
  overRate: number | Unknown;
  lost: number | Unknown;
  /** Of our datagrams of the last 4 s, the share that reached it neither the first time nor as a copy. */
  missingShare: number | Unknown;
  mixMs: number | Unknown;
  /** Whether we asked for a mix that the server did not take on: it mixes enough already. */
  mixRefused: boolean;
}

/** One lane: a peer connection's data channel, or a session with the relay. */
export interface LaneStats {
  lane: number;
  state: "connecting" | "open" | "closed";
  sentDatagrams: number;
  receivedDatagrams: number;
  /** Bytes handed to the browser that it has not sent yet. */
  backlogBytes: number;
  /** Round-trip time of a probe datagram on this lane; null if none was answered lately. */
  rttMs: number | Unknown;
  /** The path ICE chose: "relay" if it goes by a TURN server of either end, else "host", "srflx" or "prflx" as this end has it; null until known. */
  candidateType: string | Unknown;
}

/** What one peer is sent, and why. */
export interface SentStats {
  format: Format;
  opusBps: number | Unknown;
  /** Steps down from the chosen format (0), because the lanes to this peer backed up. */
  rung: number;
  /** Whether copies are sent, because of the loss that the peer reports: of samples in the datagram after, of Opus on another lane. */
  copies: boolean;
  copiesSent: number;
  /** Changes of format so far. */
  switches: number;
}

/** One stage of the way from a microphone to an ear. */
export interface DelayStage {
  /** In order: sound input beyond its timestamps, capture to engine, to the lane, to our network thread, to our graph, to the loudspeaker by
   * the browser's word, sound output beyond that word. */
  name: "input" | "capture" | "packet" | "network" | "server" | "buffer" | "playout" | "output";
  ms: number | Unknown;
  /** Measured here; measured by a loop-back of the devices; the browser's own word; or nobody says. */
  source: "measured" | "calibrated" | "reported" | "unknown";
}

/** The delay from a peer's microphone to this page's loudspeaker. */
export interface MouthToEar {
  /** Null if a stage is unknown: it is then more than `knownMs`. */
  ms: number | Unknown;
  /** Sum of the stages that are known. */
  knownMs: number;
  /** `knownMs` may be wrong by so much, as far as the devices' own words are true. */
  errorMs: number;
  /** Part of that: of the offset between the two clocks. */
  offsetErrorMs: number;
  /** Part of that: of what loop-backs say, which cannot tell input and output apart. */
  devicesErrorMs: number;
  stages: DelayStage[];
}

/** How a stream is heard, over the listener's last seconds. Shares are 0 to 1; null where nothing was to be counted. */
export interface HeardStats {
  /** It is heard in the server's mix: then frames that the mixer made up are concealed too, and all else is the mix's. */
  isMixed: boolean;
  /** Packets of which no copy came, of those that should have. */
  lostShare: number | Unknown;
  /** Packets that came after their turn, of the same. */
  lateShare: number | Unknown;
  /** Frames played in place of missing ones, of all played. */
  concealedShare: number | Unknown;
  bufferFrames: number | Unknown;
  targetFrames: number;
  spreadFrames: number | Unknown;
  /** Times the listener's own output ran dry; null where its browser does not tell. */
  outputUnderruns: number | Unknown;
  /** What the counts cover. */
  periodMs: number;
}

/** What a peer tells of its own side, of its last seconds. */
export interface FarEndStats {
  /** Captured frames lost there. */
  overrunFrames: number;
  /** Datagrams to this page for which none of its lanes had room. */
  droppedPackets: number;
}

/** What this page hears of one stream. */
export interface StreamStats {
  /** Datagrams of this stream that arrived, without duplicates. */
  receivedPackets: number;
  /** Sequence numbers between the first and the newest seen, of which nothing has come so far. */
  lostPackets: number;
  /** Those of which only a copy has, in the datagram after. */
  recoveredPackets: number;
  latePackets: number;
  duplicatePackets: number;
  reorderedPackets: number;
  /** Datagrams dropped unread: wrong version, length, format or rate. */
  malformedPackets: number;
  /** Frames that came, in packets and in copies of lost ones. */
  receivedFrames: number;
  /** Frames received and played, each once. */
  playedFrames: number;
  /** Frames made up in place of missing ones. */
  concealedFrames: number;
  /** Frames that came again, by the other way or after a copy of them, and were not needed. */
  copiedFrames: number;
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
  /** Spread of arrivals that an automatic target absorbs. */
  spreadFrames: number | Unknown;
  /** By how much its clock is faster than our output's, and what that may be wrong by, parts per million. */
  driftPpm: number | Unknown;
  driftErrorPpm: number | Unknown;
  /** Its sound is resampled to make up for that; otherwise every frame is heard as it was sent. */
  isResampled: boolean;
}

/** What this page hears of one peer, and how its own datagrams to that peer fare. In the server's mix its own stream stands still. */
export interface PeerStats extends StreamStats {
  id: string;
  name: string;
  /** By whichever way there is. */
  connection: "connecting" | "connected" | "interrupted" | "failed";
  /** How its sound comes now: directly, through the server, both, or mixed by it; null while none comes. */
  path: "direct" | "relay" | "both" | "mix" | Unknown;
  /** The way that was chosen for it. */
  pin: Pin;
  /** What came of it by each way; null before the network thread knows it. */
  direct: WayStats | Unknown;
  relayed: WayStats | Unknown;
  lanes: LaneStats[];
  /** Least round-trip time of the last probes, by whichever way. */
  rttMs: number | Unknown;
  /** Our datagrams to this peer dropped because every lane had a backlog. */
  droppedBacklog: number;
  /** What it is sent of ours. */
  sent: SentStats | Unknown;
  /** Peak since the last call, linear, per output side, before gain. */
  peak: number[];
  gain: number;
  pan: number;
  muted: boolean;
  /** By the room's owner, for everyone. */
  mutedByOwner: boolean;
  solo: boolean;
  /** From its microphone to our ear; null until both clocks are known. */
  mouthToEar: MouthToEar | Unknown;
  /** How we hear it; null before it is heard. This is what we report to it. */
  hearing: HeardStats | Unknown;
  /** Whether it captures anything, how it hears us, and what else it tells of its side, by its own report; null while it does not report. */
  captures: boolean | Unknown;
  heard: HeardStats | Unknown;
  farEnd: FarEndStats | Unknown;
}

/**
 * `window.antiphon.trace()`: one entry for each event, in columns. Times are milliseconds since the epoch, from a clock that never
 * steps while the page lives: they compare between browsers on one machine. A sequence number is the sender's own until the stream is
 * interrupted or changes its way.
 */
export interface Trace {
  version: 1;
  /** Blocks of captured frames, when the engine got them. */
  captured: { timeMs: number[]; frames: number[] };
  /** Datagrams made, when they were handed to the lanes; with several listeners, as the first of them got them. */
  sent: { timeMs: number[]; sequence: number[]; firstFrame: number[] };
  /** Datagrams of sound, when they came out of a lane; duplicates and late ones too. `isCopy`: a cheap copy, inside the datagram after it. */
  received: { timeMs: number[]; sequence: number[]; firstFrame: number[]; peer: string[]; isCopy: boolean[] };
  /** Events that found no room. */
  dropped: number;
}

export interface Stats {
  version: 2;
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
  /** Times the microphone was opened since the page was loaded. Nothing is captured for a moment then, also where the page opens it anew by itself (docs/adr: late inputs are opened anew). */
  microphoneOpenings: number;
  /** Times the output ran dry, by the browser's own count, since three seconds after it began; null where it has none. */
  outputUnderruns: number | Unknown;
  /** By which the output has rendered less than the clock went on, since the sound began, but for standstills of more than a second; below 0 if it took more into store. */
  slippedFrames: number;
  /** Quanta rendered by the worklet. */
  quanta: number;
  /** Records that did not fit a ring between threads. */
  ringOverflows: number;
  /** Datagrams from no known peer. */
  strayDatagrams: number;
  sender: SenderStats;
  /** Null before the first session with the relay. */
  relay: RelayStats | Unknown;
  /** The server's mix; null while it makes us none. */
  mix: StreamStats | Unknown;
  peers: PeerStats[];
}
