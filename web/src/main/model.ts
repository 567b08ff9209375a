/** What the room page shows and may ask for: the seam between the user interface (ui/) and the session (studio.ts). */

import type { Pin } from "../shared/engine";
import type { OpusKbps } from "../shared/rungs";
import type { Stats } from "../shared/stats";
import type { ByHand } from "./by-hand";
import type { Stopped } from "./door";

/** A problem in plain words: what happened, and what to do about it. `id` is stable, for tests and de-duplication. */
export interface Problem {
  id: string;
  severity: "error" | "warning" | "advice";
  /** One sentence: what is wrong. */
  title: string;
  /** One or two sentences: what to do. */
  remedy: string;
  /** Ways to do it that take some reading: they are shown, and the remedy with them, to those who want to know. */
  how?: ByHand[];
  /** A button, if the page can do it itself. */
  action?: { label: string; run: () => void };
}

/** What the page can do itself it offers until it is done: some of it is offered nowhere else. */
export function isDismissable({ action }: Problem): boolean {
  return action === undefined;
}

export interface Device {
  id: string;
  label: string;
}

/**
 * How deep a jitter buffer is: automatic, by the share of sound that may be concealed for being late (1 %, 0.1 %, 0.01 %),
 * or fixed, in frames (0 to 8192).
 */
export type Buffer = "tight" | "auto" | "safe" | number;

/** A person in the room other than oneself, in order of joining. "loop" is oneself through the network. */
export interface Participant {
  id: string;
  /** With a number where others have the same. */
  name: string;
  /** False while its connection to the server is broken. */
  present: boolean;
  isLoop: boolean;
  /** By whichever way there is. */
  connection: "connecting" | "connected" | "interrupted" | "failed";
  gain: number; // linear, 0 to 4 (+12 dB)
  pan: number; // -1 left to 1 right
  muted: boolean;
  solo: boolean;
  buffer: Buffer;
  /** The way that its sound shall take. */
  pin: Pin;
  isOwner: boolean;
  /** By the owner, for everyone. */
  mutedByOwner: boolean;
}

/** Why it could not be opened: not allowed, none there, held by another program, or whatever the browser says. */
export type MicrophoneFault = "refused" | "none" | "busy" | "failed";

export type Phase = "lobby" | "joining" | "joined" | "left" | "failed" | "removed";

/** Frames of a quantum that may be asked for. */
export const QUANTA = [16, 32, 64, 96, 128, 256, 512, 1024] as const;

export interface Settings {
  name: string;
  inputDeviceId: string; // "" = the system's default
  outputDeviceId: string; // "" = the system's default
  channels: number; // sent: 1 to 8
  bits: 16 | 24 | 32 | "opus"; // how samples are sent: exact, of so many bits, or compressed
  opusKbps: OpusKbps; // with bits = "opus"
  copies: "auto" | "on" | "off"; // of what may get lost: where packets are, always, never
  adapt: "auto" | "off"; // steps down to a cheaper format for a player whose path cannot carry this one
  quantum: (typeof QUANTA)[number]; // asked of the browser; it may not follow
  packet: number; // frames, 16 to 512
  buffer: Buffer; // of those who join for the first time, and of all when it is changed
  lanes: number | "auto"; // 1 to 16
}

/** The loop-back measurement of the machine's own sound input and output. */
export interface CalibrationState {
  phase: "none" | "running" | "done" | "failed";
  /** How far it is, 0 to 1. */
  doneShare: number;
  /** From rendering to capture, both devices together; null until done. */
  roundTripMs: number | null;
  spreadMs: number | null;
  /** Why it failed and what to do, in one or two sentences. */
  problem: string | null;
}

/** A snapshot; a new object for every change, so that === tells. */
export interface StudioState {
  phase: Phase;
  room: string;
  link: string;
  signalling: "offline" | "connecting" | "online";
  settings: Settings;
  /** Empty labels until the microphone was allowed. */
  inputs: Device[];
  outputs: Device[];
  outputSelectable: boolean;
  /** Mismatched: recorded at another rate than the room's, by a browser that cannot resample. */
  microphone: "unasked" | "asking" | "on" | MicrophoneFault | "mismatched" | "ended";
  /** By the browser's own word: it opens one without asking. */
  microphoneAllowed: boolean;
  /** The browser, the system or a switch of its own mutes the microphone. */
  inputMuted: boolean;
  /** The browser has not started the sound, or something else on the device has taken it. */
  heldBack: boolean;
  /** What the microphone gives is taken and sent: not before the sound has started, nor while what that needs of it stands still. */
  captures: boolean;
  selfMuted: boolean;
  looping: boolean;
  isOwner: boolean;
  /** By the owner: nobody plays what oneself sends. */
  mutedByOwner: boolean;
  /** Whether a passphrase is needed to come in. */
  locked: boolean;
  /** Of a locked room one is in: what its owner tells those who are invited. */
  roomPassphrase: string | null;
  /** Lobby: whether it is to be asked for, and why. */
  passphrase: "none" | Stopped;
  /** How often it was: each time is said, though it be for the same reason. */
  refusals: number;
  /** Of the devices and settings chosen now. */
  calibration: CalibrationState;
  participants: Participant[];
  problems: Problem[];
}

/** How one comes in. */
export interface Entry {
  /** Of a locked room; without what is blank at its ends, as `lock`'s. */
  passphrase?: string;
  /** Asks for the microphone first. Otherwise who has not allowed it yet only listens. */
  microphone?: boolean;
}

/** Peak levels for meters, linear, 1 = full scale; read many times a second. */
export interface Levels {
  /** Per channel sent. */
  input: readonly number[];
  /** Left and right of a participant, before its gain; empty when unknown. */
  participant(id: string): readonly number[];
}

export interface StudioApi {
  readonly state: StudioState;
  /** Calls back after every change of `state`; returns the unsubscriber. */
  subscribe(listener: () => void): () => void;
  levels(): Levels;
  stats(): Stats;
  /** Lobby: asks for the microphone, starts the level meter, fills the device lists. */
  enableMicrophone(): Promise<void>;
  /** Changes what can be changed now; devices and sending format also while playing. */
  change(settings: Partial<Settings>): Promise<void>;
  /** Lobby: measures the machine's own sound input and output by a loop-back, and keeps the result. */
  calibrate(): Promise<void>;
  forgetCalibration(): void;
  join(entry?: Entry): Promise<void>;
  /** After the room was left: as one was in it, with the microphone only if it was on. */
  rejoin(): Promise<void>;
  /** After the room was left: to the lobby, with the microphone as for `rejoin`. */
  toLobby(): Promise<void>;
  leave(): void;
  /** Does not wait for a server that lets nobody in: back to the lobby. */
  stopJoining(): void;
  setSelfMuted(muted: boolean): void;
  /** "Hear yourself through the network": real peer connections to oneself. */
  setLoop(on: boolean): Promise<void>;
  setGain(participantId: string, gain: number): void;
  setPan(participantId: string, pan: number): void;
  setMuted(participantId: string, muted: boolean): void;
  setSolo(participantId: string, solo: boolean): void;
  setBuffer(participantId: string, buffer: Buffer): void;
  setPin(participantId: string, pin: Pin): void;
  /** The owner's: for everyone in the room. False where it did not get to the server. */
  moderate(participantId: string, action: "mute" | "unmute" | "remove"): boolean;
  /** The owner's: from now on who joins must say it; null opens the room again. False as `moderate`. */
  lock(passphrase: string | null): boolean;
  dismiss(problemId: string): void;
}
