/** Who is heard in the server's mix, and how one comes in and out of it without a gap and without being heard twice. */

/** Who does not come into the mix for so long is held up. */
const HELD_UP_MS = 2_000;

/** How far a participant has come. Its own stream is silent from `mixed` until it is gone from here. */
type Phase =
  /** Asked for in the mix and forwarded: the mix is not heard yet, or does not hold it for sure. */
  | "entering"
  | "mixed"
  /** Its own stream is asked for again, and does not play yet. */
  | "leaving"
  /** No longer asked for in the mix, which may still hold it. */
  | "withdrawn";

interface Member {
  phase: Phase;
  sinceMs: number;
  /** When it was first asked for, `entering` having begun anew meanwhile. */
  askedMs: number;
  /** Frames of its own stream that had been played when `leaving` began. */
  playedFrames: number;
}

/** What is to be known at each look. */
export interface MixLook {
  nowMs: number;
  /** Whether the mix plays. */
  mixPlays: boolean;
  /** Whether a participant's stream is heard forwarded by the server: one that does not come there would be silent in the mix, too. */
  isForwarded(id: string): boolean;
  /** From asking for a change of the mix until it is heard: the round trip to the server, and the mix's own buffer. */
  settleMs: number;
  /** Frames played so far of a participant's own stream. */
  playedFrames(id: string): number;
}

/**
 * The old way is heard until the new one plays. The mix as a whole is switched here, so its first and its last participant change in one
 * ramp; another changes at the server, and the two ends of that are as far apart as the time it takes to be heard is misjudged.
 */
export class Mixing {
  readonly #members = new Map<string, Member>();
  #nowMs = 0;

  /** Brings it up to date: `wanted` are the participants who shall be heard in the mix, and whom the server's relay reaches. */
  look(wanted: ReadonlySet<string>, { nowMs, mixPlays, settleMs, isForwarded, playedFrames }: MixLook): void {
    this.#nowMs = nowMs;
    const enter = (id: string, phase: Phase) => {
      const before = this.#members.get(id);
      const askedMs = phase === "entering" && before?.phase === phase ? before.askedMs : nowMs;
      this.#members.set(id, { phase, sinceMs: nowMs, askedMs, playedFrames: playedFrames(id) });
    };
    for (const id of wanted) if (!this.#members.has(id)) enter(id, "entering");
    for (const [id, { phase, sinceMs, playedFrames: before }] of Array.from(this.#members)) {
      const isWanted = wanted.has(id);
      const isSettled = nowMs - sinceMs >= settleMs;
      if (phase === "entering" && !isWanted) this.#members.delete(id);
      else if (phase === "entering" && !isForwarded(id)) enter(id, "entering");
      else if (phase === "entering" && mixPlays && isSettled) enter(id, "mixed");
      else if (phase === "mixed" && !isWanted) enter(id, "leaving");
      else if (phase === "mixed" && !mixPlays) enter(id, "entering");
      else if (phase === "leaving" && isWanted) enter(id, "mixed");
      // Where the mix has ended, too, there is nothing to wait for.
      else if (phase === "leaving" && (playedFrames(id) > before || !mixPlays)) enter(id, "withdrawn");
      else if (phase === "withdrawn" && isWanted) enter(id, "entering");
    }
    const isLast = this.#ids("entering", "mixed", "leaving").length === 0;
    for (const [id, { phase, sinceMs }] of Array.from(this.#members))
      if (phase === "withdrawn" && (isLast || nowMs - sinceMs >= settleMs)) this.#members.delete(id);
  }

  /** One who is gone for good. */
  remove(id: string): void {
    this.#members.delete(id);
  }

  /** The participants whom the mix shall hold. */
  get sources(): string[] {
    return this.#ids("entering", "mixed", "leaving");
  }

  /** Whether the mix is heard. */
  get isHeard(): boolean {
    return this.#ids("mixed", "leaving", "withdrawn").length > 0;
  }

  /** Whether a participant is heard in the mix, and its own stream is silent. */
  isMixed(id: string): boolean {
    const phase = this.#members.get(id)?.phase;
    return phase !== undefined && phase !== "entering";
  }

  /** Whether a participant was asked for long ago and has not come: a sender with room for one way alone may have chosen the direct one. */
  isHeldUp(id: string): boolean {
    const member = this.#members.get(id);
    return member?.phase === "entering" && this.#nowMs - member.askedMs >= HELD_UP_MS;
  }

  /** Whether a participant's own stream is to be asked for, as far as the mix is concerned. */
  needsOwn(id: string): boolean {
    return this.#members.get(id)?.phase !== "mixed";
  }

  #ids(...phases: Phase[]): string[] {
    return Array.from(this.#members).flatMap(([id, { phase }]) => (phases.includes(phase) ? [id] : []));
  }
}
