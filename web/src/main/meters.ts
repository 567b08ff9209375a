/** The peaks of what is sent and heard, for the page's meters and for the automation. */

import { WORKLET_STATS } from "../shared/snapshot";
import type { Stats } from "../shared/stats";
import type { Members } from "./members";
import type { Levels } from "./model";
import { Peaks } from "./peaks";
import type { RunningSound } from "./running-sound";

/** Among the peaks, whose are otherwise participants'. */
const INPUT_PEAKS = "input";
/** How often it is looked for new peaks: more often than the audio thread publishes them. */
const PEAKS_MS = 25;
/** Peaks that the page's meters have not asked for in so long are of the past: nobody looked at the page. */
const FORGET_PEAKS_MS = 1_000;

export class Meters {
  readonly #sound: RunningSound;
  readonly #members: Members;
  #ofPage = new Peaks();
  #askedAtMs = performance.now();
  readonly #ofAutomation = new Peaks();
  #observer: ReturnType<typeof setInterval> | undefined;
  /** Which of the audio thread's publications was looked at last. */
  #lookedAtQuanta = 0;

  constructor(sound: RunningSound, members: Members) {
    this.#sound = sound;
    this.#members = members;
  }

  /** The sound runs. */
  begin(): void {
    this.#observer = setInterval(() => this.#look(), PEAKS_MS);
  }

  end(): void {
    clearInterval(this.#observer);
    this.forget(INPUT_PEAKS);
  }

  /** Those of what is sent, whenever the worker publishes them. */
  addInput(peaks: readonly number[]): void {
    this.#add(INPUT_PEAKS, peaks);
  }

  /** Of a participant. */
  forget(id: string): void {
    this.#ofPage.forget(id);
    this.#ofAutomation.forget(id);
  }

  /** For the page, which asks all the time. */
  levels(): Levels {
    const nowMs = performance.now();
    if (nowMs - this.#askedAtMs > FORGET_PEAKS_MS) this.#ofPage = new Peaks();
    this.#askedAtMs = nowMs;
    this.#look();
    const numbers = this.#sound.current?.numbers();
    return {
      input: this.#ofPage.take(INPUT_PEAKS, nowMs),
      participant: (id) => {
        const member = this.#members.get(id);
        if (member === undefined) return [];
        const channels = this.#sound.number(member.stream, numbers)("channels");
        if (Number.isNaN(channels)) return [];
        const peaks = this.#ofPage.take(id, nowMs);
        return channels === 1 && peaks.length > 0 ? [peaks[0], peaks[0]] : peaks;
      },
    };
  }

  /** For the automation: the same figures with the peaks since it last asked, whatever the page reads meanwhile. */
  withPeaks(stats: Stats): Stats {
    this.#look();
    const withPeak = <T extends { peak: number[] }>(whose: string, of: T): T => {
      const peaks = this.#ofAutomation.take(whose, performance.now());
      return { ...of, peak: peaks.length > 0 ? Array.from(peaks) : of.peak.map(() => 0) };
    };
    return {
      ...stats,
      sender: withPeak(INPUT_PEAKS, stats.sender),
      peers: stats.peers.map((peer) => withPeak(peer.id, peer)),
    };
  }

  #look(): void {
    const numbers = this.#sound.current?.numbers();
    if (numbers === undefined || numbers[WORKLET_STATS.quanta] === this.#lookedAtQuanta) return;
    this.#lookedAtQuanta = numbers[WORKLET_STATS.quanta];
    for (const { participant, stream } of this.#members.all) {
      const number = this.#sound.number(stream, numbers);
      this.#add(participant.id, [number("peakLeft") || 0, number("peakRight") || 0]);
    }
  }

  #add(whose: string, peaks: readonly number[]): void {
    const nowMs = performance.now();
    this.#ofPage.add(whose, peaks, nowMs);
    this.#ofAutomation.add(whose, peaks, nowMs);
  }
}
