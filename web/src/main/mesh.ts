/** Every participant connected with every other, by lanes. */

import type { WayName } from "../shared/messages";
import { RETIRED_MS, spareOf } from "../shared/spare";
import { Lane } from "./lane";
import type { Participant } from "./model";
import type { Negotiations } from "./negotiations";
import { type LaneSignal, MAX_LANES, type PeerSignal, parsePeerSignal } from "./peer-signal";

/** What the mesh asks of whoever holds the worker and the signalling. */
export interface MeshHost {
  addLane(stream: number, lane: number, epoch: number, sends: boolean, channel: RTCDataChannel): void;
  closeLane(stream: number, lane: number): void;
  /** The same, once what is under way on it has come. */
  retireLane(stream: number, lane: number): void;
  /** False if it could not be sent now. */
  signal(to: string, data: PeerSignal): boolean;
  canSignal(): boolean;
  changed(): void;
  /** The page's, of which each peer has a share. */
  readonly negotiations: Negotiations;
}

/** Lanes at first when their number is automatic: one is enough until a packet is lost, and then it is too late to add one. */
const FIRST_LANES = 2;
/** A path may come back by itself for so long. */
const DISCONNECTED_MS = 2_500;
/** A lane may take so long to connect after its offer. */
const CONNECTING_MS = 8_000;
/** Between attempts to restore a lane: doubled each time. */
const FIRST_RETRY_MS = 1_000;
const LAST_RETRY_MS = 16_000;
/** The same once its connection is made anew each time: browsers allow so many, and keep closed ones for a while. */
const LAST_ANEW_MS = 240_000;
/** ICE restarts before the connection is made anew. */
const RESTARTS = 2;
/** A lane that was connected for less has failed once more, and what is tried next is not the first attempt. */
const LASTING_MS = 5_000;
/** Until it is tried again where there were too many negotiations. */
const CROWDED_MS = 1_000;
/** What a peer asks for may have crossed an offer for so long. */
const CROSSING_MS = 1_000;
/** Between two times that is followed what a peer wants, however often it says another thing. */
const WANTS_MS = 50;
/** Not connected for so long: say so, and go on trying. */
const UNREACHABLE_MS = 20_000;

/** What the lanes of one pair come to. */
class Reach {
  readonly #isConnected: () => boolean;
  readonly #changed: () => void;
  #wasConnected = false;
  #isUnreachable = false;
  /** Since there is no lane that is connected. */
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** `isConnected`: by any lane. `changed`: by time alone. */
  constructor(isConnected: () => boolean, changed: () => void) {
    this.#isConnected = isConnected;
    this.#changed = changed;
    this.look();
  }

  get connection(): Participant["connection"] {
    if (this.#isConnected()) return "connected";
    if (this.#isUnreachable) return "failed";
    return this.#wasConnected ? "interrupted" : "connecting";
  }

  /** After any change of a lane. */
  look(): void {
    if (this.#isConnected()) {
      this.#forget();
      this.#wasConnected = true;
      return;
    }
    this.#timer ??= setTimeout(() => {
      this.#isUnreachable = true;
      this.#changed();
    }, UNREACHABLE_MS);
  }

  /** What kept them apart may be over: from now on they have as long as at first. */
  begin(): void {
    this.#forget();
    this.look();
  }

  close(): void {
    clearTimeout(this.#timer);
  }

  #forget(): void {
    this.close();
    this.#timer = undefined;
    this.#isUnreachable = false;
  }
}

/** One lane to a peer, through all its reconnections. */
interface Slot {
  lane: Lane;
  attempts: number;
  /** Ms of `performance.now()`; infinite while it is not. */
  connectedAtMs: number;
  timer: ReturnType<typeof setTimeout> | undefined;
}

/** The connection to one peer. */
export class Peer {
  readonly id: string;
  readonly stream: number;
  readonly #host: MeshHost;
  /** Lanes made from now on ask these: credentials for TURN get old. */
  iceServers: RTCIceServer[];
  /** One side makes all offers, so that they never cross. */
  readonly #offers: boolean;
  readonly #slots = new Map<number, Slot>();
  /** What is still under way on these comes to this end, and is the last. */
  readonly #retired = new Set<Lane>();
  /** Until lanes that could not be made are tried again. */
  #again: ReturnType<typeof setTimeout> | undefined;
  readonly #negotiations: Negotiations;
  /** The greatest of any lane that this end offered, of those that it has closed, too. */
  #newestEpoch = 0;
  #wanted: number | "auto";
  #wantedByPeer = 1;
  #wants: Readonly<Record<WayName, boolean>> = { direct: true, relayed: true };
  #hasChangedWants = false;
  #wantsTimer: ReturnType<typeof setTimeout> | undefined;
  readonly #reach = new Reach(
    () => Array.from(this.#slots.values()).some(({ lane }) => lane.connected),
    () => this.#host.changed(),
  );

  constructor(
    selfId: string,
    id: string,
    stream: number,
    lanes: number | "auto",
    iceServers: RTCIceServer[],
    host: MeshHost,
  ) {
    this.id = id;
    this.stream = stream;
    this.#host = host;
    this.#negotiations = host.negotiations.ofPeer();
    this.iceServers = iceServers;
    this.#offers = selfId > id;
    this.#wanted = lanes;
    this.#adjust();
  }

  get connection(): Participant["connection"] {
    return this.#reach.connection;
  }

  candidateType(lane: number): string | null {
    return this.#slots.get(lane)?.lane.candidateType ?? null;
  }

  /** By which ways the peer wants our stream, by its own word. */
  get wants(): Readonly<Record<WayName, boolean>> {
    return this.#wants;
  }

  /** This end's wish; the greater of both ends' is granted. */
  wantLanes(count: number | "auto"): void {
    this.#wanted = count === "auto" ? count : clampLanes(count);
    this.#adjust();
  }

  /** `data`: whatever the peer said. Nonsense is passed over, and so is what comes too often. */
  handle(data: unknown): void {
    const signal = parsePeerSignal(data);
    switch (signal?.kind) {
      case "description":
      case "candidate":
        this.#handleLane(signal);
        break;
      case "lanes":
        this.#wantedByPeer = signal.count;
        if (this.#offers) this.#adjust();
        break;
      case "restart":
        if (this.#offers) this.#handleRestart(signal.lane);
        break;
      case "close":
        if (!this.#offers) this.#retireLane(signal.lane);
        break;
      case "direct":
      case "relayed":
        if (this.#wants[signal.kind] === signal.wanted) break;
        this.#wants = { ...this.#wants, [signal.kind]: signal.wanted };
        this.#followWants();
        break;
    }
  }

  /** At once, and then not again for a moment, however often the peer changes its mind. */
  #followWants(): void {
    this.#hasChangedWants = true;
    if (this.#wantsTimer !== undefined) return;
    const follow = () => {
      this.#wantsTimer = undefined;
      if (!this.#hasChangedWants) return;
      this.#hasChangedWants = false;
      this.#wantsTimer = setTimeout(follow, WANTS_MS);
      this.#host.changed();
    };
    follow();
  }

  /** Lanes whose packets no longer arrive although ICE thinks otherwise (the channel itself closed) are made anew. */
  laneClosed(number: number, epoch: number): void {
    const slot = this.#slots.get(number);
    if (slot?.lane.epoch !== epoch || slot.lane.hasClosed) return;
    slot.lane.hasClosed = true;
    this.#reach.look();
    this.#lose(number, slot, 0);
  }

  /** Signalling is back: what could not be said meanwhile, or may have been lost, is said now. */
  retry(): void {
    if (!this.#offers) this.#adjust();
    for (const [number, slot] of this.#slots) {
      if (slot.lane.connected) continue;
      slot.attempts = Math.min(slot.attempts, RESTARTS);
      this.#restore(number);
    }
    this.#reach.begin();
    this.#host.changed();
  }

  /**
   * The peer may have forgotten this one: what it said is forgotten here too, and lanes that are not connected are made anew.
   */
  meetAgain(): void {
    this.#wants = { direct: true, relayed: true };
    for (const [number, { lane }] of Array.from(this.#slots)) if (!lane.connected) this.#closeLane(number);
    this.#adjust();
    this.#reach.begin();
    this.#host.changed();
  }

  close(): void {
    for (const number of Array.from(this.#slots.keys())) this.#closeLane(number);
    for (const lane of this.#retired) lane.close();
    clearTimeout(this.#again);
    clearTimeout(this.#wantsTimer);
    this.#reach.close();
  }

  /** Makes the lanes there are as many as wanted; the side that makes none says how many it wants. */
  #adjust(): void {
    if (!this.#offers) {
      const count = this.#wanted === "auto" ? 1 : this.#wanted;
      this.#host.signal(this.id, { kind: "lanes", count });
      return;
    }
    for (let number = 0; number < this.#count; number++) {
      if (this.#slots.has(number)) continue;
      if (this.#negotiations.take()) this.#offerAnew(number, 0);
      else this.#adjustLater(CROWDED_MS);
    }
    this.#closeSpare();
  }

  /** Of the side that makes them. */
  get #count(): number {
    return Math.max(this.#wanted === "auto" ? FIRST_LANES : this.#wanted, this.#wantedByPeer);
  }

  #closeSpare(): void {
    const look = (number: number) => ({ number, isOpen: this.#slots.get(number)!.lane.connected });
    for (const number of spareOf(this.#slots.keys(), this.#count, look)) {
      this.#host.signal(this.id, { kind: "close", lane: number });
      this.#retireLane(number);
    }
  }

  #adjustLater(delayMs: number): void {
    this.#again ??= setTimeout(() => {
      this.#again = undefined;
      this.#adjust();
    }, delayMs);
  }

  #offerAnew(number: number, attempts: number): void {
    // Greater than of any lane before, of one that this page has forgotten, too; and the clock may have been put back.
    this.#newestEpoch = Math.max(Date.now(), this.#newestEpoch + 1);
    this.#make(number, this.#newestEpoch, attempts);
  }

  /** The peer has no use for the lane, whatever this end thinks of it. */
  #handleRestart(number: number): void {
    const slot = this.#slots.get(number);
    // An offer may have crossed this; and one that asks all the time gets no more.
    if (slot === undefined || performance.now() - slot.lane.describedAtMs < CROSSING_MS) return;
    if (slot.lane.connected) this.laneClosed(number, slot.lane.epoch);
    else if (slot.attempts <= RESTARTS) this.#restore(number);
  }

  /** Undefined if the browser makes no more connections: then that is tried again later, and what comes through the server goes on. */
  #make(number: number, epoch: number, attempts: number): Lane | undefined {
    const old = this.#slots.get(number);
    clearTimeout(old?.timer);
    old?.lane.close();
    let lane: Lane;
    try {
      lane = new Lane(
        number,
        epoch,
        this.iceServers,
        (channel) => this.#host.addLane(this.stream, number, epoch, true, channel),
        (signal) => this.#host.signal(this.id, signal),
        (changed) => this.#changed(changed),
      );
    } catch {
      this.#closeLane(number);
      this.#adjustLater(LAST_RETRY_MS);
      return undefined;
    }
    this.#slots.set(number, { lane, attempts, connectedAtMs: Number.POSITIVE_INFINITY, timer: undefined });
    this.#reach.look();
    if (this.#offers) {
      lane.offer(false);
      this.#schedule(number, CONNECTING_MS);
    }
    this.#host.changed();
    return lane;
  }

  #handleLane(signal: LaneSignal): void {
    let lane = this.#slots.get(signal.lane)?.lane;
    // Only an offer opens a lane: a candidate may be a straggler of one that was closed.
    if (signal.kind === "description") {
      const isOffer = signal.description.type === "offer";
      if (isOffer === this.#offers || (isOffer && !this.#negotiations.take())) return;
      const isNewer = lane === undefined || signal.epoch > lane.epoch;
      if (isOffer && isNewer) lane = this.#make(signal.lane, signal.epoch, 0);
    }
    if (lane?.epoch === signal.epoch) lane.handle(signal);
  }

  #changed(lane: Lane): void {
    const slot = this.#slots.get(lane.number);
    if (slot?.lane !== lane) return;
    switch (lane.connection.connectionState) {
      case "connected":
        if (lane.hasClosed) break;
        clearTimeout(slot.timer);
        slot.connectedAtMs = performance.now();
        if (this.#offers) this.#closeSpare();
        break;
      case "disconnected":
        this.#lose(lane.number, slot, DISCONNECTED_MS);
        break;
      case "failed":
        this.#lose(lane.number, slot, 0);
        break;
    }
    this.#reach.look();
    this.#host.changed();
  }

  /** A lane is not connected any more, or has failed to be: it is restored after so long, or later if that was of no use before. */
  #lose(number: number, slot: Slot, delayMs: number): void {
    const wasConnected = Number.isFinite(slot.connectedAtMs);
    if (performance.now() - slot.connectedAtMs >= LASTING_MS) slot.attempts = 0;
    slot.connectedAtMs = Number.POSITIVE_INFINITY;
    if (slot.attempts > RESTARTS) {
      // One that never was has its time, and an appointment for what comes after it.
      if (wasConnected) this.#schedule(number, this.#retryMs(slot));
    } else if (delayMs === 0) this.#restore(number);
    else this.#schedule(number, delayMs);
  }

  #schedule(number: number, delayMs: number): void {
    const slot = this.#slots.get(number);
    if (slot === undefined) return;
    clearTimeout(slot.timer);
    slot.timer = setTimeout(() => {
      if (!slot.lane.connected) this.#restore(number);
    }, delayMs);
  }

  /** One attempt to restore a lane, and an appointment for the next. */
  #restore(number: number): void {
    const slot = this.#slots.get(number);
    if (slot === undefined) return;
    if (this.#offers && !this.#negotiations.take()) {
      this.#schedule(number, CROWDED_MS);
      return;
    }
    // A path may come back by itself. A new connection could not, which nobody is told of; once somebody is, `retry` follows.
    if (!this.#host.canSignal()) {
      this.#schedule(number, LAST_RETRY_MS);
      return;
    }
    slot.attempts++;
    const retryMs = this.#retryMs(slot);
    if (!this.#offers) this.#host.signal(this.id, { kind: "restart", lane: number });
    else if (!this.#isDone(slot)) slot.lane.offer(true);
    else this.#offerAnew(number, slot.attempts);
    this.#schedule(number, retryMs);
  }

  /** Whether no restart of ICE helps the lane's connection any more. */
  #isDone({ lane, attempts }: Slot): boolean {
    return attempts > RESTARTS || lane.hasClosed;
  }

  #retryMs(slot: Slot): number {
    const isAnew = this.#offers && this.#isDone(slot);
    const [least, most] = isAnew ? [CONNECTING_MS, LAST_ANEW_MS] : [0, LAST_RETRY_MS];
    return Math.min(most, Math.max(least, FIRST_RETRY_MS * 2 ** slot.attempts));
  }

  #closeLane(number: number): void {
    const lane = this.#takeLane(number);
    if (lane === undefined) return;
    lane.close();
    this.#host.closeLane(this.stream, number);
  }

  /** The other end goes on sending on it until it hears of it, and that shall still come. */
  #retireLane(number: number): void {
    const lane = this.#slots.get(number)?.lane;
    if (!lane?.connected) {
      this.#closeLane(number);
      return;
    }
    this.#takeLane(number);
    this.#host.retireLane(this.stream, number);
    this.#retired.add(lane);
    setTimeout(() => {
      lane.close();
      this.#retired.delete(lane);
    }, RETIRED_MS);
  }

  /** It is none of the peer's lanes any more. */
  #takeLane(number: number): Lane | undefined {
    const slot = this.#slots.get(number);
    if (slot === undefined) return undefined;
    clearTimeout(slot.timer);
    this.#slots.delete(number);
    this.#reach.look();
    return slot.lane;
  }
}

/** "Hear yourself through the network": real lanes from this page to itself. */
export class Loop {
  readonly stream: number;
  readonly #lanes: Lane[] = [];
  readonly #reach: Reach;
  readonly #retry: ReturnType<typeof setInterval>;

  /** *Errors* the browser's own where it makes no more connections, or hands no channel to another thread. */
  constructor(stream: number, lanes: number | "auto", iceServers: RTCIceServer[], host: MeshHost) {
    this.stream = stream;
    this.#reach = new Reach(
      () => this.#lanes.some((lane) => lane.connected),
      () => host.changed(),
    );
    const offering: Lane[] = [];
    this.#retry = setInterval(() => {
      for (const lane of offering) if (!lane.connected) lane.offer(true);
    }, CONNECTING_MS);
    const make = (number: number, sends: boolean, other: () => Lane) => {
      const lane = new Lane(
        number,
        0,
        iceServers,
        (channel) => host.addLane(stream, number, 0, sends, channel),
        (signal) => {
          other().handle(signal);
          return true;
        },
        () => {
          this.#reach.look();
          host.changed();
        },
      );
      this.#lanes.push(lane);
      return lane;
    };
    try {
      for (let number = 0; number < (lanes === "auto" ? FIRST_LANES : lanes); number++) {
        const near: Lane = make(number, true, () => far);
        const far: Lane = make(number, false, () => near);
        near.offer(false);
        offering.push(near);
      }
    } catch (error) {
      this.close();
      throw error;
    }
  }

  get connection(): Participant["connection"] {
    return this.#reach.connection;
  }

  candidateType(lane: number): string | null {
    return this.#lanes.find(({ number }) => number === lane)?.candidateType ?? null;
  }

  close(): void {
    clearInterval(this.#retry);
    for (const lane of this.#lanes) lane.close();
    this.#reach.close();
  }
}

function clampLanes(count: number): number {
  return Math.min(MAX_LANES, Math.max(1, Math.trunc(count) || 1));
}
