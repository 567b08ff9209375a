/** What the threads say to each other besides audio. */

import type { Asked, Pin } from "./engine";
import type { Channel } from "./records";
import type { Listen, RelayOffer } from "./relay";
import type { SendConfig } from "./rungs";
import type { HeardStats, LaneStats, RelayStats, SenderStats, SentStats, WayStats } from "./stats";
import type { HeardReport } from "./wire";

/** The two ways by which a peer's datagrams come. */
export type WayName = "direct" | "relayed";

/** What the worker's threads call the relay, as if it were a peer: no stream has this name. */
export const RELAY_STREAM = 0;

/** Streams that may be heard at a time: the 63 others of the largest room (crates/cli/src/settings.rs), the server's mix, and the loop. */
export const MAX_STREAMS = 65;
/** Slots of a jitter buffer, twice as many above 48 kHz; half of them can hold frames to come: 341 ms at 48 kHz. */
export const BUFFER_FRAMES = 32_768;
export const MAX_TARGET_FRAMES = 8_192;

/** Sizes of the rings: 64 streams of 16-bit stereo for as long as a jitter buffer holds, a burst of Chromium's 1,024 frames eight times over, and a hundred commands. */
export const DATAGRAM_RING_BYTES = 1 << 22;
export const CAPTURE_RING_BYTES = 1 << 19;
export const COMMAND_RING_BYTES = 1 << 12;

/** `processorOptions` of the worklet. */
export interface WorkletOptions {
  module: WebAssembly.Module;
  outputChannels: number;
}

/** The worklet's first and only message: its ways to the other threads (ports cannot be in `processorOptions`). */
export interface WorkletChannels {
  datagrams: Channel;
  commands: Channel;
  capture: Channel;
  /** Shared memory for the statistics, or the port that gets a copy of them now and then. */
  stats: Channel;
}

/** The capture that was there before any other was wanted. */
export const FIRST_CAPTURE = 0;

/** When the browser is to be asked for another capture of the same microphone: at `atMs` or a multiple of `everyMs` later; null: at any time. */
export interface CaptureTime {
  atMs: number | null;
  everyMs: number;
}

/** A capture from a track: a stream of AudioData. Captures beside the first are of the same microphone. */
export interface TrackCapture {
  capture: number;
  /** When the browser was asked for it, ms since the epoch. */
  askedMs: number;
  readable: unknown;
  channels: number;
}

/** Main to worker. */
export type ToWorker =
  | {
      type: "start";
      module: WebAssembly.Module;
      datagrams: Channel;
      capture: Channel;
      sender: SendConfig;
    }
  | { type: "configure"; sender: SendConfig }
  | { type: "mute"; muted: boolean }
  | ({ type: "track" } & TrackCapture)
  /** Capture from the worklet. */
  | { type: "worklet" }
  | { type: "stop-capture" }
  /** Record for so long when what is captured, sent and received. */
  | { type: "trace"; seconds: number }
  /** Record what is captured for so long. */
  | { type: "record"; seconds: number }
  /** A lane's data channel, to send on unless it is the far end of the loop. */
  | { type: "lane"; stream: number; lane: number; epoch: number; sends: boolean; channel: unknown }
  | { type: "close-lane"; stream: number; lane: number }
  /** Sends no more audio on it, and closes it once what is under way has come. */
  | { type: "retire-lane"; stream: number; lane: number }
  | { type: "close-stream"; stream: number }
  /** Which relay to use; `host` is the page's own. */
  | { type: "relay"; host: string; offer: RelayOffer | null }
  /** The server does not answer: open no session until the next offer. */
  | { type: "hold-relay" }
  /** The network was away: direct lanes have to show that they live. */
  | { type: "doubt-lanes" }
  /** What to take from the relay. */
  | { type: "listen"; listen: Listen }
  /** What the room calls a stream's peer, null if it does not know it, the way that is pinned, and by which ways the peer wants our stream. */
  | { type: "peer"; stream: number; number: number | null; pin: Pin; wants: Record<WayName, boolean> }
  /** How streams are heard, for the reports to their peers, and what the input takes beyond what its timestamps say. */
  | { type: "heard"; streams: Hearing[]; input: DeviceDelay | null };

/** How a stream is heard, and how much of it was lost lately by each way: 0 to 1, null where nothing should have come. */
export interface Hearing {
  stream: number;
  heard: HeardReport | null;
  lost: Record<WayName, number | null>;
}

/** Delay of a sound device beyond what its timestamps say. */
export interface DeviceDelay {
  /** True: measured by a loop-back. False: the browser's own word. */
  isCalibrated: boolean;
  ms: number;
  errorMs: number;
}

/** What a peer tells of its capture, on our clock (`epochMs`). */
export interface FarEnd {
  /** It is heard in the server's mix, and media time is the mix's. */
  isMixed: boolean;
  /** When media frame 0 was captured as far as the peer's browser says, and by how much that may be wrong. */
  lineMs: number;
  lineErrorMs: number;
  /** Part of that error: of the offset between the clocks. */
  offsetErrorMs: number;
  /** From capture until the engine has a block's first frame; from there until its datagram is sent; from there until it is here, itself or in the mix. */
  captureMs: number;
  packetMs: number;
  networkMs: number;
  input: DeviceDelay | null;
  /** Lost at the peer within the last seconds: captured frames, and datagrams to us for which no lane had room. */
  overrunFrames: number;
  droppedPackets: number;
}

/** What the worker knows of one stream's peer. */
export interface WorkerPeerStats {
  stream: number;
  lanes: Omit<LaneStats, "candidateType">[];
  droppedBacklog: number;
  /** Datagrams too long to be ours, or too many. */
  refused: number;
  /** What it is sent; null while it cannot be sent anything. */
  sent: SentStats | null;
  /** Rate of the Opus packet it sent last, by its length; null if it sends samples. */
  heardOpusBps: number | null;
  /** Opus packets that came twice: the engine does not see those. */
  opusDuplicates: number;
  /** Whether the peer captures anything, how it hears us, and what it tells of its capture; null while it does not say. */
  captures: boolean | null;
  heard: HeardStats | null;
  farEnd: FarEnd | null;
  /** The same where it is heard in the mix. */
  mixedFarEnd: FarEnd | null;
  /** Of its last seconds in mixes, the share that the server's mixer made up; null while it does not play in ours. */
  mixerConcealedShare: number | null;
  /** How its stream is to be taken from the relay, and whether that reaches it. */
  asked: Asked;
  relayOpen: boolean;
  ways: Record<WayName, WayStats>;
}

/** A trace, flat: rows of `captured` are time and frames; of `sent` time, sequence, timestamp; of `received` that, the stream, and 1 for a copy. */
export interface TraceRows {
  captured: Float64Array;
  sent: Float64Array;
  received: Float64Array;
  /** Rows that found no room. */
  dropped: number;
}

/** Worker to main. */
export type FromWorker =
  | {
      type: "stats";
      sender: SenderStats;
      peers: WorkerPeerStats[];
      /** Null before the first session. */
      relay: RelayStats | null;
      ringOverflows: number;
    }
  /** A peer's lanes back up, or have long been idle. */
  | { type: "lanes-wanted"; stream: number; count: number }
  | { type: "lane-closed"; stream: number; lane: number; epoch: number }
  | { type: "capture-ended"; reason: string }
  | ({ type: "capture-wanted" } & CaptureTime)
  /** One beside the first. */
  | { type: "capture-unneeded"; capture: number }
  /** Why the browser cannot encode the Opus that was chosen after all, and samples are sent instead; null as long as it can. */
  | { type: "opus-failed"; reason: string | null }
  | { type: "trace"; rows: TraceRows }
  /** What was captured, mono; when its first frame was by the browser's word; and how long a block takes until the engine has it. */
  | { type: "recording"; samples: Float32Array; startMs: number; blockMs: number };
