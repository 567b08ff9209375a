import type { WorkerPeerStats } from "../shared/messages";
import { RETIRED_MS } from "../shared/spare";
import { type Lane, MAX_WAIT_MS } from "./lane";

/** A wait that says more lanes are needed. */
const CROWDED_MS = 25;

/** What came of the datagrams between two reviews. */
interface Carried {
  offered: number;
  /** Those that found every lane crowded, dropped ones included. */
  crowded: number;
  /** Times that a lane was held up while others were not. */
  held: number;
}

/** One listener's lanes: each datagram goes on the one with the least backlog. */
export class Lanes {
  #all: Lane[] = [];
  /** What is still under way on these comes, and is the last. */
  readonly #retired = new Set<Lane>();
  /** Datagrams sent, or dropped: whose turn it is. */
  #turn = 0;
  /** The next datagram's number: each listener's are counted on their own, so that a change of format is no loss. */
  sequence = 0;
  /** Datagrams for which no lane had room. */
  dropped = 0;
  /** The last datagram found every lane crowded. */
  isCrowded = false;
  /** Since `takeCarried`. */
  carried: Carried = { offered: 0, crowded: 0, held: 0 };

  get open(): Lane[] {
    return this.#all.filter(({ isOpen }) => isOpen);
  }

  get isOpen(): boolean {
    return this.#all.some(({ isOpen }) => isOpen);
  }

  /** The open lane with the shortest wait; null if none is open. */
  get leastWait(): Lane | null {
    const { open } = this;
    return open.length === 0
      ? null
      : open.reduce((best, other) => (other.waitMs < best.waitMs ? other : best));
  }

  get(number: number): Lane | undefined {
    return this.#all.find((lane) => lane.number === number);
  }

  add(lane: Lane): void {
    this.#close((other) => other.number === lane.number && other.sends === lane.sends);
    this.#all.push(lane);
  }

  /** Both ends of a looped one. */
  close(number: number): void {
    this.#close((lane) => lane.number === number);
  }

  /** No more audio goes by it, and it is closed once what is under way has come. */
  retire(number: number): void {
    const lane = this.get(number);
    if (lane === undefined) return;
    this.#all = this.#all.filter((other) => other !== lane);
    this.#retired.add(lane);
    setTimeout(() => {
      lane.close();
      this.#retired.delete(lane);
    }, RETIRED_MS);
  }

  closeAll(): void {
    this.#close(() => true);
    for (const lane of this.#retired) lane.close();
  }

  #close(which: (lane: Lane) => boolean): void {
    for (const lane of this.#all) if (which(lane)) lane.close();
    this.#all = this.#all.filter((lane) => !which(lane));
  }

  /** The lane that a datagram went on; null if it was dropped, or there is none. */
  send(datagram: Uint8Array<ArrayBuffer>): Lane | null {
    const lane = this.#next();
    // No lane at all is no backlog: the peer is not connected (yet).
    if (lane === null && !this.isOpen) return null;
    this.sequence = (this.sequence + 1) >>> 0;
    this.carried.offered++;
    this.isCrowded = lane === null || lane.waitMs > CROWDED_MS;
    if (this.isCrowded) this.carried.crowded++;
    if (lane?.send(datagram)) return lane;
    this.dropped++;
    return null;
  }

  #next(): Lane | null {
    let best: Lane | null = null;
    let backlog = Number.POSITIVE_INFINITY;
    // Among lanes that are equal the one whose turn it is: what is under way unacknowledged fills a lane unseen, long before
    // anything queues, so each shall have as little of that as can be.
    const first = this.#turn++;
    for (let n = 0; n < this.#all.length; n++) {
      const lane = this.#all[(first + n) % this.#all.length];
      if (!lane.isOpen || lane.waitMs > MAX_WAIT_MS) continue;
      const bytes = lane.backlogBytes;
      if (bytes < backlog) {
        best = lane;
        backlog = bytes;
      }
    }
    return best;
  }

  /** The lane other than the first with the least backlog, if there is one on which nothing has waited. */
  forCopy(first: Lane): Lane | null {
    let best: Lane | null = null;
    for (const lane of this.#all) {
      if (lane === first || !lane.isOpen || lane.waitMs > 0) continue;
      if (best === null || lane.backlogBytes < best.backlogBytes) best = lane;
    }
    return best;
  }

  /**
   * Finds out how long datagrams wait. Lanes found held up count while half of them are not: otherwise it is the browser that stood still, or the way
   * that is too narrow.
   */
  takeStock(nowMs: number): void {
    const held = this.#all.filter((lane) => lane.look(nowMs)).length;
    const free = this.#all.filter(({ waitMs }) => waitMs === 0).length;
    if (free >= this.#all.length / 2) this.carried.held += held;
  }

  takeCarried(): Carried {
    const { carried } = this;
    this.carried = { offered: 0, crowded: 0, held: 0 };
    return carried;
  }

  stats(): WorkerPeerStats["lanes"] {
    // A lane's datagrams, both ends of a looped one counted as one.
    const received = ({ number }: Lane) =>
      this.#all.reduce((sum, other) => sum + (other.number === number ? other.received : 0), 0);
    return this.#all.filter(({ sends }) => sends).map((lane) => lane.stats(received(lane)));
  }
}
