import type { Ladder, Paths, Pin } from "../shared/engine";
import { type FromWorker, RELAY_STREAM, type WayName, type WorkerPeerStats } from "../shared/messages";
import type { RecordSink } from "../shared/records";
import type { RelayStatistics, Wanted } from "../shared/relay";
import type { Rung } from "../shared/rungs";
import type { RelayStats } from "../shared/stats";
import {
  type HeardReport,
  KIND_PROBE_REPLY,
  kindOf,
  MAX_DATAGRAM_BYTES,
  MIX_STREAM,
  streamOf,
  withoutCopy,
  writeProbe,
} from "../shared/wire";
import { epochMs } from "./clock";
import { Delivery } from "./delivery";
import { Lane, type LaneChannel, roundTripMs } from "./lane";
import { Listener, type Sending } from "./listener";
import { Peer } from "./peer";
import { RelayPeer } from "./relay-peer";
import { SAMPLES } from "./renditions";
import { type Captured, REPORT_INTERVAL_MS, toNs } from "./report";
import type { Trace } from "./trace";

/** A lane that is in doubt has so long to answer a probe. */
const PROOF_MS = 1_500;

/**
 * Every peer and its lanes, and the relay. A datagram goes once to each listener of its format, on the lane with the least backlog; and
 * a second time on another lane if the listener's path loses some. What the relay brings says whom it is from.
 */
export class Peers {
  readonly #peers = new Map<number, Peer>();
  readonly #relay = new RelayPeer();
  /** Peers, and the relay once there was a session, by their streams. */
  readonly #listeners = new Map<number, Listener>();
  /** Peers by what the room calls them. */
  readonly #byNumber = new Map<number, Peer>();
  readonly #delivery: Delivery;
  readonly #say: (message: FromWorker) => void;
  readonly #newLadder: (rungs: number) => Ladder | null;
  readonly #paths: Pick<Paths, "add" | "listen"> | null;
  #sending: Sending = { rungs: [SAMPLES], copies: "off", addsLanes: true };
  #probeId = 0;
  /** When paths were last chosen, ms of `performance.now()`. */
  #chosenAtMs = Number.NEGATIVE_INFINITY;
  /** Since when lanes are in doubt, ms of `performance.now()`; null if they are not. */
  #doubtedAtMs: number | null = null;
  trace: Trace | null = null;

  constructor(
    sink: RecordSink,
    say: (message: FromWorker) => void,
    newLadder: (rungs: number) => Ladder | null = () => null,
    paths: Pick<Paths, "add" | "listen"> | null = null,
  ) {
    this.#delivery = new Delivery(sink);
    this.#say = say;
    this.#newLadder = newLadder;
    this.#paths = paths;
  }

  get #participants(): Peer[] {
    return Array.from(this.#peers.values()).filter(({ isParticipant }) => isParticipant);
  }

  /** Datagrams that did not fit the ring to the audio thread. */
  get ringOverflows(): number {
    return this.#delivery.overflows;
  }

  /** What is sent from now on. */
  setSending(sending: Sending): void {
    this.#sending = sending;
    for (const { listener } of this.#peers.values()) listener.setSending(sending);
    this.#relay.listener?.setSending(this.#relay.sendingOf(sending));
  }

  /** See {@link Renditions.bridge}. */
  bridge(key: string): void {
    // Who is sent nothing would keep it until then.
    for (const { isSent, renditions } of this.#listeners.values()) if (isSent) renditions.bridge(key);
  }

  /** Every format that someone listens to, each once. */
  rungsInUse(): Rung[] {
    const used = new Map<string, Rung>();
    for (const { isSent, lanes, renditions } of this.#listeners.values()) {
      if (!isSent || !lanes.isOpen) continue;
      const { rung, leaving } = renditions;
      used.set(rung.key, rung);
      if (leaving !== null) used.set(leaving.key, leaving);
    }
    return [...used.values()];
  }

  /** What the room calls a peer, null if it does not know it, the way the musician wants it, and by which ways the peer wants our stream. */
  setPeer(stream: number, number: number | null, pin: Pin, wants: Record<WayName, boolean>): void {
    const peer = this.#peers.get(stream) ?? this.#add(stream);
    this.#takeNumber(peer);
    if (number !== null) {
      // Once the server was started anew it may be another's.
      this.#takeNumber(this.#byNumber.get(number));
      this.#byNumber.set(number, peer);
      peer.number = number;
    }
    if (peer.isParticipant) peer.path ??= this.#paths?.add() ?? null;
    peer.setWanted(pin, wants);
    this.#spread();
  }

  #takeNumber(peer: Peer | undefined): void {
    if (peer === undefined || peer.number === null) return;
    this.#byNumber.delete(peer.number);
    peer.number = null;
    // The relay is no way to whom the room does not know.
    peer.listener.isSent = true;
  }

  /** How much of a peer's stream was lost lately by each way; null where nothing should have come. */
  setLost(stream: number, lost: Record<WayName, number | null>): void {
    const peer = this.#peers.get(stream);
    if (peer === undefined) return;
    peer.direct.lostShare = lost.direct;
    peer.relayed.lostShare = lost.relayed;
  }

  /** What main says of how a stream is heard, for the reports to its peer. */
  setHeard(stream: number, heard: HeardReport | null): void {
    this.#peers.get(stream)?.reports.setHears(heard, epochMs());
  }

  /** What the relay says of who takes our stream, and of how it fares; null while there is no session. */
  setRelay(wanted: Wanted, statistics: RelayStatistics | null): void {
    this.#relay.setSaid(wanted, statistics);
    this.#relay.listener?.setSending(this.#relay.sendingOf(this.#sending));
    this.#spread();
  }

  /** Whether there is somebody who may be heard, or reached, by the relay: not where all are wanted directly, and are there. */
  get needsRelay(): boolean {
    return this.#participants.some(({ needsRelay }) => needsRelay);
  }

  /** When a lane last answered a probe, ms of `performance.now()`. */
  answeredAtMs(stream: number, number: number): number | null {
    return this.#listeners.get(stream)?.lanes.get(number)?.answeredAtMs ?? null;
  }

  addLane(stream: number, number: number, epoch: number, sends: boolean, channel: LaneChannel): void {
    const peer = stream === RELAY_STREAM ? null : (this.#peers.get(stream) ?? this.#add(stream));
    const listener = peer?.listener ?? this.#relay.listener ?? this.#addRelay();
    const lane = new Lane(number, epoch, sends, channel);
    listener.addLane(lane, this.#newLadder);
    channel.onmessage = ({ data }) => this.#receive(peer, lane, data);
    channel.onclose = () => {
      this.#giveUp(stream, lane);
      this.#spread();
    };
  }

  closeLane(stream: number, number: number): void {
    this.#listeners.get(stream)?.lanes.close(number);
    this.#spread();
  }

  retireLane(stream: number, number: number): void {
    this.#listeners.get(stream)?.lanes.retire(number);
    this.#spread();
  }

  close(stream: number): void {
    const peer = this.#peers.get(stream);
    if (peer === undefined) return;
    peer.close();
    this.#takeNumber(peer);
    this.#peers.delete(stream);
    this.#listeners.delete(stream);
    this.#spread();
  }

  #add(stream: number): Peer {
    const peer = new Peer(stream, this.#sending, this.#relay, this.#delivery);
    this.#peers.set(stream, peer);
    this.#listeners.set(stream, peer.listener);
    this.#spread();
    return peer;
  }

  #addRelay(): Listener {
    const listener = new Listener(RELAY_STREAM, this.#relay.sendingOf(this.#sending));
    this.#relay.listener = listener;
    this.#listeners.set(RELAY_STREAM, listener);
    this.#spread();
    return listener;
  }

  /**
   * Finds out how long datagrams wait. To be called by a timer, never while sending: `bufferedAmount` is brought up to date by tasks
   * of this thread's event loop, and would look stuck to one who was held up and now catches up. `nowMs`: performance.now().
   */
  takeStock(nowMs: number): void {
    for (const listener of this.#listeners.values())
      if (listener.takeStock(nowMs)) this.#reviewListener(listener, nowMs);
  }

  /** Sends a datagram of the rendition `key` to all who listen to that. Its sequence number is overwritten. */
  send(key: string, datagram: Uint8Array<ArrayBuffer>): void {
    const alone = withoutCopy(datagram);
    let kept: Uint8Array<ArrayBuffer> | null = null;
    let isTraced = false;
    let isAlone = true;
    for (const listener of this.#listeners.values()) {
      if (!listener.isSent) continue;
      isAlone = false;
      if (!listener.takes(key, datagram)) continue;
      if (this.trace !== null && !isTraced && listener.lanes.isOpen) {
        this.trace.sent(datagram);
        isTraced = true;
      }
      kept = listener.send(datagram, alone, kept);
    }
    // Nobody's numbers: what is not sent to those who are there, because they take another format, is not traced.
    if (isAlone && key === this.#sending.rungs[0].key) this.trace?.sent(datagram);
  }

  /** Whether somebody who is sent samples of this key needs copies. */
  wantsCopies(key: "main" | "s16"): boolean {
    return Array.from(this.#listeners.values()).some(
      ({ isSent, lanes, copies, renditions }) => isSent && lanes.isOpen && copies && renditions.includes(key),
    );
  }

  /** Sends the Opus that was sent since the last call once more: after the burst, so that no original waits behind a copy. */
  sendCopies(): void {
    for (const listener of this.#listeners.values()) listener.sendCopies();
  }

  /** By a peer's own lane, or, if it is null, by a session with the relay. */
  #receive(peer: Peer | null, lane: Lane, data: unknown): void {
    const isOurs = data instanceof ArrayBuffer && data.byteLength <= MAX_DATAGRAM_BYTES;
    if (peer === null) {
      if (isOurs) this.#receiveRelayed(lane, new Uint8Array(data));
      else this.#relay.refused++;
    } else if (isOurs) peer.receiveDirectly(lane, new Uint8Array(data), this.trace);
    else peer.refuse(lane);
  }

  #receiveRelayed(session: Lane, bytes: Uint8Array<ArrayBuffer>): void {
    const kind = kindOf(bytes);
    const number = kind > 0 ? streamOf(bytes) : 0;
    if (number === 0 && kind === KIND_PROBE_REPLY) {
      const rttMs = roundTripMs(bytes, epochMs());
      if (rttMs !== null) session.answered(rttMs);
      return;
    }
    const sender = this.#byNumber.get(number);
    // Malformed, or of one who has just left.
    if (sender === undefined) this.#relay.refused++;
    else sender.receive(sender.relayed, session, kind, bytes, this.trace);
  }

  /** Sends the reports that are due, and forgets those that are old. `captureOf`: what to say of the capture to a rung's listeners. */
  report(captureOf: (key: string) => Captured | null): void {
    for (const peer of this.#peers.values()) peer.report(captureOf);
  }

  /**
   * The network was away, or the browser's own part of it, whose crash closes sockets that ICE believes in for many seconds more: direct
   * lanes that do not answer from now on are given up.
   */
  doubtLanes(nowMs: number): void {
    this.#doubtedAtMs = nowMs;
  }

  #giveUpLanes(silentSinceMs: number): void {
    for (const [stream, { listener }] of this.#peers) {
      for (const lane of listener.lanes.open) {
        // One that never has is still being opened.
        if (lane.answeredAtMs !== null && lane.answeredAtMs < silentSinceMs) this.#giveUp(stream, lane);
      }
    }
  }

  /** It is to be made anew. */
  #giveUp(stream: number, { number, epoch }: Lane): void {
    this.#say({ type: "lane-closed", stream, lane: number, epoch });
  }

  /** Probes lanes and finds out whether there are enough of them. `nowMs`: performance.now(). */
  review(nowMs: number): void {
    if (this.#doubtedAtMs !== null && nowMs - this.#doubtedAtMs > PROOF_MS) {
      this.#giveUpLanes(this.#doubtedAtMs);
      this.#doubtedAtMs = null;
    }
    const session = this.#relay.listener?.lanes.leastWait ?? null;
    for (const [stream, listener] of this.#listeners) {
      const peer = this.#peers.get(stream);
      for (const lane of listener.lanes.open) {
        if (!lane.isDue(nowMs)) continue;
        // One that has just opened is not silent yet.
        if (lane.isNew && peer !== undefined) peer.direct.heardAtMs = epochMs();
        lane.probe(this.#newProbe(), nowMs);
      }
      if (listener.isDue(nowMs)) this.#reviewListener(listener, nowMs);
      if (peer?.renewsLanes(nowMs)) for (const lane of listener.lanes.open) this.#giveUp(stream, lane);
    }
    const elapsedMs = nowMs - this.#chosenAtMs;
    if (elapsedMs < REPORT_INTERVAL_MS) return;
    if (session !== null) for (const peer of this.#participants) peer.sendRelayed(session, this.#newProbe());
    this.#chosenAtMs = nowMs;
    this.#choosePaths(Number.isFinite(elapsedMs) ? elapsedMs : 0);
  }

  #newProbe(): Uint8Array<ArrayBuffer> {
    return writeProbe(this.#probeId++, toNs(epochMs()));
  }

  #reviewListener(listener: Listener, nowMs: number): void {
    const { stream, lanes } = listener;
    const count = listener.review(nowMs, () => {
      const peers = this.#participants;
      const peer = this.#peers.get(stream);
      if (peer !== undefined) return peer.circumstances(peers.length, nowMs);
      // Both ways are sent if nobody there depends on this one.
      const isNeeded = peers.some(
        (other) => other.isRelayed && !(other.listener.isSent && other.isDirectOpen),
      );
      return this.#relay.circumstances(lanes.open.length, !isNeeded, nowMs);
    });
    if (count !== null) this.#say({ type: "lanes-wanted", stream, count });
  }

  /** Which way each peer's sound goes and comes until the next review. */
  #choosePaths(elapsedMs: number): void {
    const isRelayShort = this.#relay.listener?.isShort() ?? false;
    const peers = this.#participants;
    const asked = this.#paths?.listen({
      elapsedMs,
      ...this.#relay.takeGrown(),
      pin: "auto",
      isRelayOpen: this.#relay.isOpen,
      streams: peers.length,
    });
    for (const peer of peers) peer.choosePath(elapsedMs, isRelayShort, asked ?? "forwarded");
    this.#spread();
  }

  /** Directly to whom wants it, or cannot have it otherwise. To the relay if somebody takes it there who is to be reached that way. */
  #spread(): void {
    const peers = this.#participants;
    // What was chosen was so of ways that there may be no more.
    for (const { listener, route, wants, isRelayed } of peers)
      listener.isSent = !isRelayed || (route.direct && wants.direct);
    const { listener: relay, wanted } = this.#relay;
    if (relay === null) return;
    const isChosen = peers.some(
      ({ route, listener, isRelayed, isDirectOpen }) =>
        route.relay || !listener.isSent || (isRelayed && !isDirectOpen),
    );
    relay.isSent = wanted.listeners > 0 && isChosen;
  }

  stats(): WorkerPeerStats[] {
    const mix = this.#byNumber.get(MIX_STREAM)?.reports;
    return Array.from(this.#peers.values(), (peer) => peer.stats(mix));
  }

  /** The relay's sessions and what it says; null before the first. */
  relayStats(): RelayStats | null {
    return this.#relay.stats();
  }
}
