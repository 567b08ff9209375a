/** How one hears the others: what is reported to them of it, and the figures of each. */

import type { FarEnd } from "../shared/messages";
import { WORKLET_STATS } from "../shared/snapshot";
import type { MouthToEar, PeerStats, StreamStats } from "../shared/stats";
import type { HeardReport } from "../shared/wire";
import { type HeardWindow, inMix } from "./heard";
import type { Member } from "./member";
import type { Members } from "./members";
import { mouthToEar, type OutputClock } from "./mouth-to-ear";
import type { OwnDevices } from "./own-devices";
import type { RunningSound } from "./running-sound";
import { farEndOf, peerStats, streamStats } from "./statistics";
import { streamNumber } from "./stream-number";
import type { Taking } from "./taking";

/** How often at most the worker gets to know it. */
const REPORT_MS = 450;

export class Hearing {
  readonly #sound: RunningSound;
  readonly #devices: OwnDevices;
  readonly #members: Members;
  readonly #taking: Taking;
  #reportedAtMs = Number.NEGATIVE_INFINITY;

  constructor(sound: RunningSound, devices: OwnDevices, members: Members, taking: Taking) {
    this.#sound = sound;
    this.#devices = devices;
    this.#members = members;
    this.#taking = taking;
  }

  /** Tells the worker what its reports to the peers shall say; to be called ten times a second. */
  report(): void {
    const sound = this.#sound.current;
    // By time, not by looks: those of a page in the background are a second apart.
    const nowMs = performance.now();
    if (sound === null || nowMs - this.#reportedAtMs < REPORT_MS) return;
    this.#reportedAtMs = nowMs;
    const numbers = sound.numbers();
    const underruns = sound.outputUnderruns();
    const lookAt = ({ stream, window }: { stream: number; window: HeardWindow }) => {
      const at = sound.offsetOf(numbers, stream);
      return at < 0 ? null : window.add(nowMs, streamNumber(numbers, at), underruns);
    };
    const mix = this.#taking.mix && lookAt(this.#taking.mix);
    const streams = this.#members.all.map((member) => {
      const { stream, window } = member;
      const heard = lookAt(member);
      // In the mix their own stream stands still.
      member.hearing = this.#members.isMixed(member) ? mix && this.#inMix(mix, member) : heard;
      return { stream, heard: member.hearing, lost: window.lost };
    });
    sound.setHeard(streams, this.#devices.delays().input);
  }

  /** Null before the server says how its mixer hears them. */
  #inMix(mix: HeardReport, { stream }: Member): HeardReport | null {
    const share = this.#sound.worker.peer(stream)?.mixerConcealedShare ?? null;
    return share === null ? null : inMix(mix, share);
  }

  /** Of the server's mix; null unless there is one. `numbers`: the sound's. */
  mixStats(numbers: Float64Array | undefined): StreamStats | null {
    const { mix } = this.#taking;
    return mix && streamStats(this.#sound.number(mix.stream, numbers), this.#sound.worker.peer(mix.stream));
  }

  /** Of each. `numbers`: the sound's. */
  peerStats(numbers: Float64Array | undefined): PeerStats[] {
    const output = this.#sound.current?.outputClock(this.#devices.delays().output) ?? null;
    return this.#members.all.map((member) => {
      const { stream } = member;
      const worker = this.#sound.worker.peer(stream);
      const isMixed = this.#members.isMixed(member);
      const farEnd = farEndOf(worker, isMixed);
      const heardIn = isMixed ? this.#taking.mix?.stream : stream;
      const mouthToEar = this.#mouthToEar(farEnd, output, heardIn, numbers);
      return peerStats(member, this.#sound.number(stream, numbers), worker, { isMixed, mouthToEar });
    });
  }

  /** Of a peer that is heard in this stream, its own or the mix's. */
  #mouthToEar(
    farEnd: FarEnd | null,
    output: OutputClock | null,
    stream: number | undefined,
    numbers: Float64Array | undefined,
  ): MouthToEar | null {
    if (farEnd === null || output === null || stream === undefined || numbers === undefined) return null;
    const playhead = this.#sound.number(stream, numbers)("playhead");
    if (Number.isNaN(playhead)) return null;
    const nextFrame = numbers[WORKLET_STATS.nextFrame];
    return mouthToEar(farEnd, output, { playhead, nextFrame, rateHz: this.#sound.rateHz });
  }
}
