import type { Ladder } from "../shared/engine";
import { RELAY_STREAM } from "../shared/messages";
import type { SentStats } from "../shared/stats";
import { isOpus, writeSequence } from "../shared/wire";
import type { Lane } from "./lane";
import { LaneCount } from "./lane-count";
import { Lanes } from "./lanes";
import { Renditions, type Rungs } from "./renditions";

const REVIEW_INTERVAL_MS = 1_000;
/** To whom is sent copies, lanes are added if they hold back so many of the datagrams. */
const HELD_SHARE = 0.01;

/** What is sent, and what may be changed about it for a listener's sake. */
export interface Sending {
  rungs: Rungs;
  copies: "auto" | "on" | "off";
  addsLanes: boolean;
}

/** What else a listener's review depends on. */
export interface Circumstances {
  /** Where the other way is sent as well, that is the copy. */
  isSentBothWays: boolean;
  /** Share of our datagrams that were lost on these lanes; null while nobody says. */
  lostShare: number | null;
  mostLanes: number;
  /** Of the relay: whether copies would help on the way there or from it. */
  isLossy: boolean;
}

/** Who is sent our stream on lanes: a peer, or the relay for all who take it there. In which format, and whether with copies, follows what the lanes carry. */
export class Listener {
  readonly stream: number;
  readonly lanes = new Lanes();
  readonly renditions: Renditions;
  /** Whether audio goes to its lanes. */
  isSent: boolean;
  copies: boolean;
  #copiesSent = 0;
  /** Opus of this burst, to be sent again. */
  readonly #burst: { datagram: Uint8Array<ArrayBuffer>; sequence: number; lane: Lane }[] = [];
  #sending: Sending;
  /** Null before there is a lane, and if there are too many listeners to judge: then it has what is chosen. */
  #ladder: Ladder | null = null;
  readonly #laneCount = new LaneCount();
  #reviewedAtMs = performance.now();
  #droppedBefore = 0;

  constructor(stream: number, sending: Sending) {
    this.stream = stream;
    this.renditions = new Renditions(sending.rungs);
    this.copies = sending.copies === "on";
    this.#sending = sending;
    // To the relay only once somebody listens there.
    this.isSent = stream !== RELAY_STREAM;
  }

  setSending(sending: Sending): void {
    // Who chose how many lanes there are has closed those that were added before.
    if (sending.addsLanes !== this.#sending.addsLanes) this.#laneCount.forget();
    this.#sending = sending;
    this.renditions.setRungs(sending.rungs);
    this.#ladder?.setRungs(sending.rungs.length, this.renditions.step);
    this.copies = sending.copies === "on" || (this.copies && sending.copies === "auto");
  }

  addLane(lane: Lane, newLadder: (rungs: number) => Ladder | null): void {
    this.#ladder ??= newLadder(this.#sending.rungs.length);
    this.lanes.add(lane);
  }

  close(): void {
    this.lanes.closeAll();
    this.#ladder?.close();
  }

  /** Whether it is sent a datagram of the rendition `key`, which then has its number. */
  takes(key: string, datagram: Uint8Array): boolean {
    const isTaken = this.renditions.admits(key, datagram, this.lanes.isCrowded);
    if (isTaken) writeSequence(datagram, this.lanes.sequence);
    return isTaken;
  }

  /**
   * Sends a datagram that it takes; `alone` is that without the copy in it. Returns what is kept of it to be sent again, one for all
   * listeners: `kept`, if there is that already.
   */
  send(
    datagram: Uint8Array<ArrayBuffer>,
    alone: Uint8Array<ArrayBuffer>,
    kept: Uint8Array<ArrayBuffer> | null,
  ): Uint8Array<ArrayBuffer> | null {
    const { sequence } = this.lanes;
    const lane = this.lanes.send(this.copies ? datagram : alone);
    if (lane === null || !this.copies) return kept;
    if (!isOpus(datagram)) {
      if (alone.length < datagram.length) this.#copiesSent++;
      return kept;
    }
    const copy = kept ?? datagram.slice();
    this.#burst.push({ datagram: copy, sequence, lane });
    return copy;
  }

  /** Sends the Opus that was sent since the last call once more: after the burst, so that no original waits behind a copy. */
  sendCopies(): void {
    for (const { datagram, sequence, lane: first } of this.#burst) {
      const lane = this.lanes.forCopy(first);
      if (lane === null) continue;
      writeSequence(datagram, sequence);
      if (lane.send(datagram)) this.#copiesSent++;
    }
    this.#burst.length = 0;
  }

  /** Looks at the lanes' queues; whether to review at once, because a step up was too much. */
  takeStock(nowMs: number): boolean {
    this.lanes.takeStock(nowMs);
    return this.#ladder?.fails(this.lanes.carried.crowded) ?? false;
  }

  isDue(nowMs: number): boolean {
    return nowMs - this.#reviewedAtMs >= REVIEW_INTERVAL_MS;
  }

  /** Fits what is sent to what the lanes have carried since the last review. How many lanes there shall be from now on; null: as many as before. */
  review(nowMs: number, circumstances: () => Circumstances): number | null {
    const { offered, crowded, held } = this.lanes.takeCarried();
    const elapsedMs = nowMs - this.#reviewedAtMs;
    this.#reviewedAtMs = nowMs;
    const open = this.lanes.open.length;
    if (open === 0) return null;
    const { isSentBothWays, lostShare, mostLanes: most, isLossy } = circumstances();
    const { copies, addsLanes } = this.#sending;
    const canAddLanes = addsLanes && this.#laneCount.canGrow({ open, most });
    const stepBefore = this.renditions.step;
    const decision = this.#ladder?.review({
      elapsedMs,
      offered,
      crowded,
      lostShare,
      // Samples carry their copies, Opus needs a second lane for them.
      canCopy: copies === "auto" && (open > 1 || this.renditions.rung.format !== "opus") && !isSentBothWays,
      canAddLanes,
    }) ?? { rung: 0, copies: false, addLanes: false };
    this.renditions.change(decision.rung);
    this.copies = copies === "on" || decision.copies;
    const isDown = decision.rung > stepBefore;
    const isHeldBack = this.copies && !isDown && held > offered * HELD_SHARE;
    // Copies of Opus need a second session, ours as those that the relay sends. And where some is lost Firefox lets a session carry so little that
    // what waits grows too old: with two of them 4 to 5 % were missing where the network lost 2 %.
    const needsSessions = this.stream === RELAY_STREAM && decision.rung === 0 && (this.copies || isLossy);
    const need = {
      open,
      most,
      // Lanes that lose some carry less.
      isNeeded: crowded > 0 || decision.copies,
      needsMore: decision.addLanes || (isHeldBack && canAddLanes),
      needsMost: addsLanes && needsSessions,
      isInVain: addsLanes && isDown,
    };
    return this.#laneCount.review(need, nowMs);
  }

  /** Whether the lanes have not carried all since the last call, or only a cheaper format. */
  isShort(): boolean {
    const { dropped } = this.lanes;
    const hasDropped = dropped > this.#droppedBefore;
    this.#droppedBefore = dropped;
    return hasDropped || (this.isSent && this.lanes.isOpen && this.renditions.step > 0);
  }

  /** Null while it cannot be sent anything. */
  stats(): SentStats | null {
    if (!this.isSent || !this.lanes.isOpen) return null;
    const { rung, step, switches } = this.renditions;
    const { format, opusBps } = rung;
    return { format, opusBps, rung: step, copies: this.copies, copiesSent: this.#copiesSent, switches };
  }
}
