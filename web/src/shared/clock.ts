/**
 * Models of the clocks between a microphone here and a loudspeaker there. No clock is read here: times are arguments, in ms since the
 * epoch by a clock that never steps. A stream's or an output's clock is a *line*: the time of its frame 0; frame *n*
 * follows n / rate later.
 */

/** An estimate, and by how much it may be wrong. */
export interface Estimate {
  ms: number;
  errorMs: number;
}

/** The newest values of something measured often. */
export class Recent {
  readonly #values: Float64Array;
  #count = 0;
  /** Of all, until another is added: some ask for each packet. */
  #middle: Estimate | null = null;

  constructor(capacity: number) {
    this.#values = new Float64Array(capacity);
  }

  get count(): number {
    return Math.min(this.#count, this.#values.length);
  }

  add(value: number): void {
    this.#values[this.#count++ % this.#values.length] = value;
    this.#middle = null;
  }

  clear(): void {
    this.#count = 0;
    this.#middle = null;
  }

  /** The least of the `newest` values (of all, by default); null before there is any. */
  least(newest?: number): number | null {
    return this.count === 0 ? null : this.#newest(newest).reduce((a, b) => Math.min(a, b));
  }

  /** What so large a share of all values is no greater than; null before there is any. */
  quantile(share: number): number | null {
    return this.count === 0 ? null : quantileOf(this.#newest().sort(), share);
  }

  /**
   * The middle of the `newest` values (of all, by default), and half of what the middle 80 % of all range over, or how far the newest are from
   * the middle of all if that is more; null before there is any.
   */
  middle(newest?: number): Estimate | null {
    if (this.count === 0) return null;
    if (this.#middle === null) {
      const all = this.#newest().sort();
      this.#middle = {
        ms: quantileOf(all, 0.5),
        errorMs: (quantileOf(all, 0.9) - quantileOf(all, 0.1)) / 2,
      };
    }
    if (newest === undefined) return this.#middle;
    const ms = quantileOf(this.#newest(newest).sort(), 0.5);
    return { ms, errorMs: Math.max(this.#middle.errorMs, Math.abs(ms - this.#middle.ms)) };
  }

  #newest(most = Number.POSITIVE_INFINITY): Float64Array {
    const count = Math.min(most, this.count);
    const first = (this.#count - count) % this.#values.length;
    const untilWrap = this.#values.subarray(first, first + count);
    const newest = new Float64Array(count);
    newest.set(untilWrap);
    newest.set(this.#values.subarray(0, count - untilWrap.length), untilWrap.length);
    return newest;
  }
}

function quantileOf(sorted: Float64Array, share: number): number {
  return sorted[Math.round((sorted.length - 1) * share)]!;
}

/** By how much counters grew within the last seconds. */
export class RecentCounts<T extends Readonly<Record<string, number>>> {
  readonly #periodMs: number;
  readonly #readings: { timeMs: number; totals: T }[] = [];

  constructor(periodMs: number) {
    this.#periodMs = periodMs;
  }

  /** Null at the first reading, and after a counter fell that only grows: its owner was restarted. */
  add(timeMs: number, totals: T, growing: readonly (keyof T)[]): { periodMs: number; grown: T } | null {
    const readings = this.#readings;
    const last = readings.at(-1);
    if (last && (timeMs <= last.timeMs || growing.some((key) => totals[key] < last.totals[key])))
      readings.length = 0;
    readings.push({ timeMs, totals });
    while (readings.length > 2 && timeMs - readings[1]!.timeMs >= this.#periodMs) readings.shift();
    const first = readings[0]!;
    if (timeMs === first.timeMs) return null;
    // A packet counted as lost may still come: then that count falls, and nothing was lost.
    const grown = Object.fromEntries(
      Object.entries(totals).map(([key, total]) => [key, Math.max(0, total - first.totals[key]!)]),
    ) as T;
    return { periodMs: timeMs - first.timeMs, grown };
  }
}

/** Probes that are remembered: 30 s of two a second, on eight lanes. */
const MAX_PROBES = 480;
/** Clocks may run apart by so much: twice the tolerance that RFC 5905 assumes of one clock (PHI, 15 ppm). */
const SKEW = 30e-6;

/**
 * The offset of a peer's clock: remote minus local.
 *
 * Each probe brackets it, whatever the network did: the reply was written after the probe was sent and before it came back. The
 * truth lies in all brackets at once, which widen with age because clocks run apart. What is left is known without assuming anything
 * but that; its middle assumes that the fastest ways there and back are equally fast, and the error covers that they are not.
 */
export class ClockOffset {
  readonly #probes: { atMs: number; leastMs: number; mostMs: number }[] = [];
  readonly #granularityMs: number;

  /** `granularityMs`: resolution of the two clocks together. */
  constructor(granularityMs: number) {
    this.#granularityMs = granularityMs;
  }

  add(sentMs: number, repliedMs: number, receivedMs: number): void {
    if (!(receivedMs >= sentMs)) return;
    this.#probes.push({
      atMs: receivedMs,
      leastMs: repliedMs - receivedMs - this.#granularityMs,
      mostMs: repliedMs - sentMs + this.#granularityMs,
    });
    if (this.#probes.length > MAX_PROBES) this.#probes.shift();
    // A clock was set, or a machine slept: what came before no longer holds.
    if (this.at(receivedMs) === null) this.#probes.splice(0, this.#probes.length - 1);
  }

  /** Null before the first probe has come back. */
  at(nowMs: number): Estimate | null {
    let leastMs = Number.NEGATIVE_INFINITY;
    let mostMs = Number.POSITIVE_INFINITY;
    for (const probe of this.#probes) {
      const apartMs = Math.abs(nowMs - probe.atMs) * SKEW;
      leastMs = Math.max(leastMs, probe.leastMs - apartMs);
      mostMs = Math.min(mostMs, probe.mostMs + apartMs);
    }
    if (!Number.isFinite(leastMs) || leastMs > mostMs) return null;
    return { ms: (leastMs + mostMs) / 2, errorMs: (mostMs - leastMs) / 2 };
  }
}

/** Blocks are looked at in groups of so long, of which the most prompt one counts: an audio graph hands several over at once. */
const GROUP_MS = 50;
/** The newest groups, whose middle tells when frames come: those that are lost move it at once. Two seconds of groups tell the error. */
const NEWEST_GROUPS = 3;
const GROUPS = 40;
/** Groups whose middle tells how long frames take to come. The browser's word is off for seconds after frames were lost (docs/adr/0014). */
const DELIVERY_GROUPS = 600;

/** When captured frames were captured, and how long they took from there to the network. */
export class CaptureClock {
  readonly #frameMs: number;
  /** Frames so far: the media time of the next one. */
  #frames = 0;
  /** Of the most prompt block of each group: the line on which it came, and how long after its capture by the browser's word. */
  readonly #arrivals = new Recent(GROUPS);
  readonly #deliveries = new Recent(DELIVERY_GROUPS);
  #prompt = { lineMs: Number.POSITIVE_INFINITY, deliveryMs: 0 };
  #groupEndMs = Number.NEGATIVE_INFINITY;
  #line: Estimate | null = null;
  readonly #blocks = new Recent(256);
  /** By rendition: a codec takes its time. */
  readonly #sent = new Map<string, Recent>();

  constructor(rateHz: number) {
    this.#frameMs = 1000 / rateHz;
  }

  /** Another source: its clock is another. Media time goes on. */
  restart(): void {
    this.#arrivals.clear();
    this.#deliveries.clear();
    this.#prompt = { lineMs: Number.POSITIVE_INFINITY, deliveryMs: 0 };
    this.#groupEndMs = Number.NEGATIVE_INFINITY;
    this.#line = null;
    this.#blocks.clear();
    this.#sent.clear();
  }

  /** Media time goes on by so many frames that nobody captured. */
  pass(frames: number): void {
    this.#frames += frames;
  }

  /** A block that the engine gets at `nowMs`. `capturedMs`: when its first frame was captured, null if nobody says. */
  add(frames: number, capturedMs: number | null, nowMs: number): void {
    // What a block is at least old by: it cannot be handed over before its last frame.
    const firstMs = capturedMs ?? nowMs - frames * this.#frameMs;
    this.#blocks.add(nowMs - firstMs);
    this.#frames += frames;
    const lineMs = nowMs - this.#frames * this.#frameMs;
    if (lineMs < this.#prompt.lineMs)
      this.#prompt = { lineMs, deliveryMs: nowMs - firstMs - frames * this.#frameMs };
    if (nowMs < this.#groupEndMs) return;
    if (Number.isFinite(this.#groupEndMs)) this.#endGroup();
    this.#prompt = { lineMs: Number.POSITIVE_INFINITY, deliveryMs: 0 };
    this.#groupEndMs = nowMs + GROUP_MS;
  }

  #endGroup(): void {
    this.#arrivals.add(this.#prompt.lineMs);
    this.#deliveries.add(this.#prompt.deliveryMs);
    const { ms, errorMs } = this.#arrivals.middle(NEWEST_GROUPS)!;
    this.#line = { ms: ms - this.#deliveries.middle()!.ms, errorMs };
  }

  /** A datagram of the rendition `key`, whose first frame has this media time, is handed to the lanes at `nowMs`. */
  sent(key: string, frame: number, nowMs: number): void {
    const line = this.#line;
    if (line === null) return;
    const sent = this.#sent.get(key) ?? new Recent(256);
    this.#sent.set(key, sent);
    sent.add(nowMs - (line.ms + frame * this.#frameMs));
  }

  /** Media time of the next frame. */
  get nextFrame(): number {
    return this.#frames;
  }

  /** When a frame was captured; null until some have been for a moment. */
  timeOf(frame: number): number | null {
    const line = this.#line;
    return line && line.ms + frame * this.#frameMs;
  }

  /** Null until frames have been captured, and sent in the rendition `key`, for a moment. `captured`: when `frame` was, `lineMs` when frame 0. */
  read(
    key: string,
  ): { frame: number; captured: Estimate; lineMs: number; blockMs: number; sendMs: number } | null {
    const line = this.#line;
    const block = this.#blocks.middle();
    const sent = this.#sent.get(key)?.middle() ?? null;
    if (line === null || block === null || sent === null) return null;
    const captured = { ms: line.ms + this.#frames * this.#frameMs, errorMs: line.errorMs };
    return { frame: this.#frames, captured, lineMs: line.ms, blockMs: block.ms, sendMs: sent.ms };
  }
}
