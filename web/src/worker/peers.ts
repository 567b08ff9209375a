import type { Asked, Ladder, Sending as PathChoice, Paths, Pin, Route } from "../shared/engine";
import { share } from "../shared/heard";
import {
  type FarEnd,
  type FromWorker,
  RELAY_STREAM,
  type WayName,
  type WorkerPeerStats,
} from "../shared/messages";
import type { RecordSink } from "../shared/records";
import { type MixedSource, NOBODY, type RelayStatistics, type Wanted } from "../shared/relay";
import type { Rung } from "../shared/rungs";
import type { HeardStats, RelayStats, SentStats } from "../shared/stats";
import { TokenBucket } from "../shared/token-bucket";
import {
  AUDIO_HEADER_BYTES,
  type CaptureReport,
  type HeardReport,
  isOpus,
  KIND_AUDIO,
  KIND_PROBE,
  KIND_PROBE_REPLY,
  KIND_REPORT,
  kindOf,
  MAX_DATAGRAM_BYTES,
  MIX_STREAM,
  OPUS_RATE_HZ,
  probeRepliedNs,
  probeReply,
  probeTimeNs,
  readAudioHeader,
  streamOf,
  withoutCopy,
  writeProbe,
  writeSequence,
  writeStream,
} from "../shared/wire";
import { epochMs } from "./clock";
import { Delivery } from "./delivery";
import { Lane, type LaneChannel, MAX_WAIT_MS, roundTripMs } from "./lane";
import { Lanes } from "./lanes";
import { MAX_SESSIONS } from "./relay";
import { Renditions, type Rungs, SAMPLES } from "./renditions";
import { REPORT_INTERVAL_MS, Reports, toNs } from "./report";
import type { Trace } from "./trace";
import { Way } from "./way";

/** To whom is sent copies, lanes are added if they hold back so many of the datagrams. */
const HELD_SHARE = 0.01;
const MAX_LANES = 8;
/**
 * ...and to a peer who is sent copies. A lane that has lost something carries four packets for each acknowledgement, and holds back what is more until that comes: at
 * a round trip of 100 ms eight such lanes hold back one datagram in thirty.
 */
const MAX_LOSSY_LANES = 16;
/** To all peers together: each is a connection to set up, to watch and to keep alive. */
const MAX_LANES_TOGETHER = 64;
/** Resolution of `performance.now()` here and at the peer: with a page that is not cross-origin isolated, a millisecond in Firefox. */
const GRANULARITY_MS = globalThis.crossOriginIsolated ? 0.04 : 2;
const REVIEW_INTERVAL_MS = 1_000;
/**
 * What a peer may send directly in a second: as much as by the relay, which is more than packets of 16 frames at 96 kHz are; and of what is not audio
 * half as much again as the probes, replies and reports of 16 lanes.
 */
const MOST_DATAGRAMS = 8_000;
const MOST_OTHERS = 100;
/** What a report says was lost was lost in so long. */
const REPORTED_MS = 4_000;
/** A lane that is in doubt has so long to answer a probe. */
const PROOF_MS = 1_500;
/** Whom the musician wants directly has so long to be heard, before it is taken from the relay. */
const DIRECT_PATIENCE_MS = 5_000;
/** Lanes are taken away after so long without copies, and without any datagram that found all of them crowded... */
const CALM_MS = 60_000;
/** ...but for these: a copy of Opus needs a second one. */
const CALM_LANES = 2;
/** Loss that copies are sent for, as the ladder has it... */
const LOSSY_SHARE = 0.005;
/** ...of so many seconds... */
const LOSS_SECONDS = 4;
/** ...and so many packets: a probe that is lost while little is sent is no reason. */
const LOSSY_PACKETS = 4;
/**
 * Where so much of the little that Opus takes is lost, and a queue on the way is this full all the same, what fills it are the lanes themselves:
 * the SCTP of Firefox answers acknowledgements that tell of gaps with a FORWARD TSN each (RFC 3758, 3.5), which the other end acknowledges at
 * once, with all its gaps; on a narrow path these multiply until they are most of what is sent, and make the gaps. Lanes made anew begin
 * without; at most once in this time, for something else may fill the queue.
 */
const HEAVY_LOSS_SHARE = 0.1;
const FULL_QUEUE_MS = 40;
const RENEWAL_INTERVAL_MS = 10_000;

/** What is sent, and what may be changed about it for a listener's sake. */
export interface Sending {
  rungs: Rungs;
  copies: "auto" | "on" | "off";
  addsLanes: boolean;
}

interface Peer {
  /** Direct ones; of the relay, its sessions. */
  readonly lanes: Lanes;
  /** What the room calls it, and the relay's datagrams; null of the relay itself and of the loop, and while the room does not know it. */
  number: number | null;
  pin: Pin;
  /** By which ways it wants our stream, by its own word. */
  wants: Readonly<Record<WayName, boolean>>;
  route: Route;
  /** Null of who is no participant, and if there are too many to judge. */
  path: PathChoice | null;
  /** How its stream is to be taken from the relay. */
  asked: Asked;
  /** When it came, ms of `epochMs`. */
  readonly cameAtMs: number;
  /** Whether audio goes to its lanes. */
  isSent: boolean;
  readonly direct: Way;
  readonly relayed: Way;
  readonly renditions: Renditions;
  /** Null before there is a lane, and if there are too many peers to judge: then it has what is chosen. */
  ladder: Ladder | null;
  copies: boolean;
  copiesSent: number;
  /** Of this burst, to be sent again. */
  burst: { datagram: Uint8Array<ArrayBuffer>; sequence: number; lane: Lane }[];
  heardOpusBps: number | null;
  lanesWanted: number;
  /** Datagrams that its lanes had dropped when paths were last reviewed. */
  droppedBefore: number;
  /** What it may send directly: of all, and of what is not audio. */
  readonly allowed: { datagrams: TokenBucket; others: TokenBucket };
  refused: number;
  reviewedAtMs: number;
  /** When it was last sent our sound both ways. */
  bothWaysAtMs: number;
  /** When all the lanes were last needed. */
  neededAtMs: number;
  /** When all lanes were last made anew. */
  renewedAtMs: number;
  readonly reports: Reports;
  /** How the peer hears us, by its own report of its last seconds; null while it does not say. */
  heard: HeardStats | null;
}

/**
 * Every peer and its lanes. A datagram goes once to each peer that listens to its format, on the lane with the least backlog; and
 * a second time on another lane if the peer's path loses some.
 *
 * The relay is one more peer, `RELAY_STREAM`: one datagram to it reaches all who listen there. What it brings says whom it is from.
 */
export class Peers {
  readonly #peers = new Map<number, Peer>();
  readonly #delivery: Delivery;
  readonly #say: (message: FromWorker) => void;
  readonly #newLadder: (rungs: number) => Ladder | null;
  readonly #paths: Pick<Paths, "add" | "listen"> | null;
  /** Peers' streams by what the room calls them. */
  readonly #byNumber = new Map<number, number>();
  /** Said by the relay: how many take our stream there, and its statistics of the last seconds, oldest first. */
  #wanted = NOBODY;
  #relayedLately: RelayStatistics[] = [];
  /** Its open sessions at the last review, and since when there are so many. */
  #relaySessions = { count: 0, sinceMs: 0 };
  /** When paths were last reviewed, and the newest that the relay had counted until then. */
  #reviewed: { atMs: number; counted: RelayStatistics | null } = {
    atMs: Number.NEGATIVE_INFINITY,
    counted: null,
  };
  #sending: Sending = { rungs: [SAMPLES], copies: "off", addsLanes: true };
  #probeId = 0;
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

  /** Datagrams that did not fit the ring to the audio thread. */
  get ringOverflows(): number {
    return this.#delivery.overflows;
  }

  get #relayed(): RelayStatistics | null {
    return this.#relayedLately.at(-1) ?? null;
  }

  /** What is sent from now on. */
  setSending(sending: Sending): void {
    this.#sending = sending;
    for (const [stream, peer] of this.#peers) {
      this.#setRungs(peer, this.#rungsOf(stream));
      peer.copies = sending.copies === "on" || (peer.copies && sending.copies === "auto");
    }
  }

  /** What a peer may be sent: the relay no Opus where somebody there has no use for it. */
  #rungsOf(stream: number): Rungs {
    const { rungs } = this.#sending;
    if (this.#wanted.opus || stream !== RELAY_STREAM) return rungs;
    const [first = SAMPLES, ...others] = rungs.filter(({ format }) => format !== "opus");
    return [first, ...others];
  }

  #setRungs({ renditions, ladder }: Peer, rungs: Rungs): void {
    renditions.setRungs(rungs);
    ladder?.setRungs(rungs.length, renditions.step);
  }

  /** Every format that someone listens to, each once. */
  rungsInUse(): Rung[] {
    const used = new Map<string, Rung>();
    for (const peer of this.#peers.values()) {
      if (!peer.isSent || !peer.lanes.isOpen) continue;
      const { rung, leaving } = peer.renditions;
      used.set(rung.key, rung);
      if (leaving !== null) used.set(leaving.key, leaving);
    }
    return [...used.values()];
  }

  /** What the room calls a peer, null if it does not know it, the way the musician wants it, and by which ways the peer wants our stream. */
  setPeer(stream: number, number: number | null, pin: Pin, wants: Record<WayName, boolean>): void {
    const peer = this.#peers.get(stream) ?? this.#add(stream);
    this.#takeNumber(peer);
    const before = number === null ? undefined : this.#byNumber.get(number);
    // Once the server was started anew it may be another's.
    if (before !== undefined) this.#takeNumber(this.#peers.get(before));
    if (number !== null) this.#byNumber.set(number, stream);
    Object.assign(peer, { number, pin, wants });
    if (isParticipant(peer)) peer.path ??= this.#paths?.add() ?? null;
    if (pin !== "auto") peer.asked = askedOf(peer, peer.asked);
    this.#spread();
  }

  #takeNumber(peer: Peer | undefined): void {
    if (peer === undefined || peer.number === null) return;
    this.#byNumber.delete(peer.number);
    peer.number = null;
    // The relay is no way to whom the room does not know.
    peer.isSent = true;
  }

  /** How much of a peer's stream was lost lately by each way; null where nothing should have come. */
  setLost(stream: number, lost: Record<WayName, number | null>): void {
    const peer = this.#peers.get(stream);
    if (peer === undefined) return;
    peer.direct.lostShare = lost.direct;
    peer.relayed.lostShare = lost.relayed;
  }

  /** What the relay says of who takes our stream, and of how it fares; null while there is no session. */
  setRelay(wanted: Wanted, statistics: RelayStatistics | null): void {
    const relay = this.#peers.get(RELAY_STREAM);
    this.#wanted = wanted;
    if (statistics === null) this.#relayedLately = [];
    else if (statistics !== this.#relayed)
      this.#relayedLately = [...this.#relayedLately, statistics].slice(-1 - LOSS_SECONDS);
    if (relay !== undefined) this.#setRungs(relay, this.#rungsOf(RELAY_STREAM));
    this.#spread();
  }

  /** Whether there is somebody who may be heard, or reached, by the relay: not where all are wanted directly, and are there. */
  get needsRelay(): boolean {
    return Array.from(this.#peers.values()).some(
      (peer) => isParticipant(peer) && !(peer.wants.direct && isDirectAlone(peer)),
    );
  }

  /** When a lane last answered a probe, ms of `performance.now()`. */
  answeredAtMs(stream: number, number: number): number | null {
    return this.#peers.get(stream)?.lanes.get(number)?.answeredAtMs ?? null;
  }

  addLane(stream: number, number: number, epoch: number, sends: boolean, channel: LaneChannel): void {
    const peer = this.#peers.get(stream) ?? this.#add(stream);
    peer.ladder ??= this.#newLadder(this.#rungsOf(stream).length);
    const lane = new Lane(number, epoch, sends, channel);
    peer.lanes.add(lane);
    channel.onmessage = ({ data }) => this.#receive(stream, peer, lane, data);
    channel.onclose = () => this.#say({ type: "lane-closed", stream, lane: number, epoch });
  }

  closeLane(stream: number, number: number): void {
    const peer = this.#peers.get(stream);
    if (peer === undefined) return;
    peer.lanes.close(number);
  }

  close(stream: number): void {
    const peer = this.#peers.get(stream);
    if (peer === undefined) return;
    peer.lanes.closeAll();
    peer.direct.close();
    peer.relayed.close();
    peer.ladder?.close();
    peer.path?.close();
    this.#takeNumber(peer);
    this.#peers.delete(stream);
    this.#spread();
  }

  /**
   * Finds out how long datagrams wait. To be called by a timer, never while sending: `bufferedAmount` is brought up to date by tasks
   * of this thread's event loop, and would look stuck to one who was held up and now catches up. `nowMs`: performance.now().
   */
  takeStock(nowMs: number): void {
    for (const [stream, peer] of this.#peers) {
      peer.lanes.takeStock(nowMs);
      if (peer.ladder?.fails(peer.lanes.carried.crowded)) this.#reviewLanes(stream, peer, nowMs);
    }
  }

  /** Sends a datagram of the rendition `key` to all who listen to that. Its sequence number is overwritten. */
  send(key: string, datagram: Uint8Array<ArrayBuffer>): void {
    const alone = withoutCopy(datagram);
    let kept: Uint8Array<ArrayBuffer> | null = null;
    let isTraced = false;
    let isAlone = true;
    for (const peer of this.#peers.values()) {
      if (!peer.isSent) continue;
      isAlone = false;
      if (!peer.renditions.admits(key, datagram, peer.lanes.isCrowded)) continue;
      const { sequence } = peer.lanes;
      writeSequence(datagram, sequence);
      if (this.trace !== null && !isTraced && peer.lanes.isOpen) {
        this.trace.sent(datagram);
        isTraced = true;
      }
      const lane = peer.lanes.send(peer.copies ? datagram : alone);
      if (lane !== null && peer.copies) {
        if (isOpus(datagram)) {
          kept ??= datagram.slice();
          peer.burst.push({ datagram: kept, sequence, lane });
        } else if (alone.length < datagram.length) {
          peer.copiesSent++;
        }
      }
    }
    // Nobody's numbers: what is not sent to those who are there, because they take another format, is not traced.
    if (isAlone && key === this.#sending.rungs[0].key) this.trace?.sent(datagram);
  }

  /** Whether somebody who is sent samples of this key needs copies. */
  wantsCopies(key: "main" | "s16"): boolean {
    return Array.from(this.#peers.values()).some(
      ({ isSent, copies, renditions }) => isSent && copies && renditions.includes(key),
    );
  }

  /** Sends the Opus that was sent since the last call once more: after the burst, so that no original waits behind a copy. */
  sendCopies(): void {
    for (const peer of this.#peers.values()) {
      for (const { datagram, sequence, lane: first } of peer.burst) {
        const lane = peer.lanes.forCopy(first);
        if (lane === null) continue;
        writeSequence(datagram, sequence);
        if (lane.send(datagram)) peer.copiesSent++;
      }
      peer.burst.length = 0;
    }
  }

  #receive(stream: number, peer: Peer, lane: Lane, data: unknown): void {
    if (!(data instanceof ArrayBuffer) || data.byteLength > MAX_DATAGRAM_BYTES) {
      peer.refused++;
      return;
    }
    const bytes = new Uint8Array(data);
    if (stream !== RELAY_STREAM) {
      this.#receiveDirect(stream, peer, lane, bytes);
      return;
    }
    const kind = kindOf(bytes);
    const number = kind > 0 ? streamOf(bytes) : 0;
    if (number === 0 && kind === KIND_PROBE_REPLY) {
      const rttMs = roundTripMs(bytes, epochMs());
      if (rttMs !== null) lane.answered(rttMs);
      return;
    }
    const from = this.#byNumber.get(number);
    const sender = from === undefined ? undefined : this.#peers.get(from);
    // Malformed, or of one who has just left.
    if (from === undefined || sender === undefined) peer.refused++;
    else this.#handle(from, sender, sender.relayed, lane, kind, bytes);
  }

  /** The relay limits what a participant sends; here nobody else does. */
  #receiveDirect(stream: number, peer: Peer, lane: Lane, bytes: Uint8Array<ArrayBuffer>): void {
    const nowMs = performance.now();
    const { datagrams, others } = peer.allowed;
    const kind = datagrams.take(nowMs) ? kindOf(bytes) : null;
    if (kind === null || (kind !== KIND_AUDIO && !others.take(nowMs))) peer.refused++;
    else this.#handle(stream, peer, peer.direct, lane, kind, bytes);
  }

  /** What `peer` sent, by one way or the other. */
  #handle(
    stream: number,
    peer: Peer,
    way: Way,
    lane: Lane,
    kind: number,
    bytes: Uint8Array<ArrayBuffer>,
  ): void {
    const nowMs = epochMs();
    if (kind > 0) way.heardAtMs = nowMs;
    switch (kind) {
      case KIND_PROBE:
        lane.sendControl(probeReply(bytes, toNs(epochMs())));
        return;
      case KIND_PROBE_REPLY:
        handleReply(peer, way, lane, bytes, nowMs);
        return;
      case KIND_REPORT:
        peer.reports.handleReport(bytes, nowMs);
        peer.heard = peer.reports.heard(nowMs);
        return;
    }
    lane.received++;
    if (kind === KIND_AUDIO) this.#hear(stream, peer, way, bytes, nowMs);
    else this.#delivery.give(stream, bytes);
  }

  #hear(stream: number, peer: Peer, way: Way, audio: Uint8Array<ArrayBuffer>, nowMs: number): void {
    const isDirect = way === peer.direct;
    const other = isDirect ? peer.relayed : peer.direct;
    // The relay passes on what was asked for, of whom the owner has not muted.
    if (!isDirect && !way.isHeard(nowMs)) way.numbering.interrupt();
    way.hear(nowMs);
    // Where the other way is pinned, and heard, this one is not wanted; the peer has been told, and stops in a moment.
    if (peer.pin === (isDirect ? "relay" : "direct") && other.isHeard(nowMs)) {
      way.numbering.interrupt();
      return;
    }
    const { frames, timestamp } = readAudioHeader(audio);
    if (way.isFirst(timestamp, other, nowMs)) peer.reports.handleAudio(audio, nowMs);
    this.trace?.received(stream, audio);
    peer.heardOpusBps = isOpus(audio)
      ? ((audio.length - AUDIO_HEADER_BYTES) * 8 * OPUS_RATE_HZ) / frames
      : null;
    way.play(audio);
  }

  /** What main says of how a stream is heard, for the reports to its peer. */
  setHeard(stream: number, heard: HeardReport | null): void {
    this.#peers.get(stream)?.reports.setHears(heard, epochMs());
  }

  /** Sends the reports that are due, and forgets those that are old. `captureOf`: what to say of the capture to a rung's listeners. */
  report(captureOf: (key: string) => CaptureReport | null): void {
    const relay = this.#peers.get(RELAY_STREAM);
    for (const [stream, peer] of this.#peers) {
      if (stream === RELAY_STREAM) continue;
      peer.heard = peer.reports.heard(epochMs());
      const direct = peer.lanes.leastWait;
      const relayed = relay === undefined || peer.number === null ? null : relay.lanes.leastWait;
      if (direct === null && relayed === null) continue;
      const sent = peer.isSent && direct !== null ? peer : (relay ?? peer);
      const { rung, leaving } = sent.renditions;
      const capture = captureOf((leaving ?? rung).key);
      const dropped = peer.lanes.dropped + (relay?.lanes.dropped ?? 0);
      const report = peer.reports.poll(capture, dropped, epochMs());
      if (report === null) continue;
      // By both: the one that comes second is not newer, and ignored.
      direct?.sendControl(report);
      if (relayed !== null && peer.number !== null) {
        writeStream(report, peer.number);
        relayed.sendControl(report);
      }
    }
  }

  /**
   * The network was away, or the browser's own part of it, whose crash closes sockets that ICE believes in for many seconds more: direct
   * lanes that do not answer from now on are given up.
   */
  doubtLanes(nowMs: number): void {
    this.#doubtedAtMs = nowMs;
  }

  #giveUpLanes(silentSinceMs: number): void {
    for (const [stream, { lanes }] of this.#peers) {
      if (stream === RELAY_STREAM) continue;
      for (const lane of lanes.open) {
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
    const relay = this.#peers.get(RELAY_STREAM);
    const relayLane = relay?.lanes.leastWait ?? null;
    for (const [stream, peer] of this.#peers) {
      for (const lane of peer.lanes.open) {
        if (!lane.isDue(nowMs)) continue;
        // One that has just opened is not silent yet.
        if (lane.isNew) peer.direct.heardAtMs = epochMs();
        lane.probe(writeProbe(this.#probeId++, toNs(epochMs())), nowMs);
      }
      if (nowMs - peer.reviewedAtMs >= REVIEW_INTERVAL_MS) this.#reviewLanes(stream, peer, nowMs);
      if (isChoked(peer) && nowMs - peer.renewedAtMs >= RENEWAL_INTERVAL_MS) {
        peer.renewedAtMs = nowMs;
        for (const lane of peer.lanes.open) this.#giveUp(stream, lane);
      }
    }
    const elapsedMs = nowMs - this.#reviewed.atMs;
    if (elapsedMs < REPORT_INTERVAL_MS) return;
    for (const peer of this.#peers.values()) {
      if (!isParticipant(peer) || relayLane === null) continue;
      const probe = writeProbe(this.#probeId++, toNs(epochMs()));
      writeStream(probe, peer.number);
      relayLane.sendControl(probe);
    }
    this.#reviewed.atMs = nowMs;
    this.#choosePaths(Number.isFinite(elapsedMs) ? elapsedMs : 0);
  }

  #isRelayOpen(peer: Peer): boolean {
    const relay = this.#peers.get(RELAY_STREAM);
    return relay?.lanes.isOpen === true && !peer.relayed.isSilent(epochMs());
  }

  /** Whether our stream reaches the peer by the relay, if it is sent there. */
  #isRelayed(peer: Peer): boolean {
    return this.#isRelayOpen(peer) && peer.wants.relayed && this.#wanted.listeners > 0;
  }

  /** Whether a lane is open. One by which nothing comes is dead long before ICE says so, but where there is no relay it may as well be tried. */
  #isDirectOpen(peer: Peer): boolean {
    return peer.lanes.isOpen && !(peer.direct.isSilent(epochMs()) && this.#isRelayed(peer));
  }

  /** Whether its lanes have not carried all since the last review, or only a cheaper format. */
  #isShort(peer: Peer): boolean {
    const { dropped, isOpen } = peer.lanes;
    const hasDropped = dropped > peer.droppedBefore;
    peer.droppedBefore = dropped;
    return hasDropped || (peer.isSent && isOpen && peer.renditions.step > 0);
  }

  /** Which way each peer's sound goes and comes until the next review. */
  #choosePaths(elapsedMs: number): void {
    const relay = this.#peers.get(RELAY_STREAM);
    const isRelayShort = relay !== undefined && this.#isShort(relay);
    // It counts since we came into the room. With a session that has ended its word is gone for a second, and a server that was restarted counts anew.
    const before = this.#reviewed.counted ?? this.#relayed;
    const grown = (count: "forwarded" | "aged") =>
      Math.max(0, (this.#relayed?.[count] ?? 0) - (before?.[count] ?? 0));
    const seen = { elapsedMs, forwarded: grown("forwarded"), aged: grown("aged") };
    this.#reviewed.counted = this.#relayed ?? before;
    const peers = Array.from(this.#peers.values()).filter(isParticipant);
    const asked = this.#paths?.listen({
      ...seen,
      pin: "auto",
      isRelayOpen: relay?.lanes.isOpen ?? false,
      streams: peers.length,
    });
    const nowMs = epochMs();
    // And a little before: replies to probes come twice a second as well. What has died begins to drop only so much later.
    const isAnswered = ({ heardAtMs }: Way) => nowMs - heardAtMs < elapsedMs + MAX_WAIT_MS;
    for (const peer of peers) {
      // What comes to us either way tells what is lost of ours: a report tells only of both together.
      const { direct, relayed } = peer;
      peer.route = peer.path?.review({
        elapsedMs,
        // What is pinned here is how we hear the peer; what the peer has pinned, it tells.
        pin: peer.wants.direct ? "auto" : "relay",
        isDirectOpen: this.#isDirectOpen(peer),
        isRelayOpen: this.#isRelayOpen(peer),
        directLostShare: direct.lostShare,
        relayLostShare: relayed.lostShare,
        // One peer's bad lanes are no reason to leave another's.
        direct: { isShort: this.#isShort(peer), isAnswered: isAnswered(direct) },
        relay: { isShort: isRelayShort, isAnswered: isAnswered(relayed) },
        relayListeners: peer.wants.relayed ? this.#wanted.listeners : 0,
      }) ?? { direct: true, relay: true };
      peer.asked = askedOf(peer, asked ?? "forwarded");
    }
    this.#spread();
  }

  /** Directly to whom wants it, or cannot have it otherwise. To the relay if somebody takes it there who is to be reached that way. */
  #spread(): void {
    const relay = this.#peers.get(RELAY_STREAM);
    const peers = Array.from(this.#peers.values()).filter(isParticipant);
    for (const peer of peers)
      peer.isSent = peer.route.direct && (peer.wants.direct || !this.#isRelayed(peer));
    if (relay === undefined) return;
    const isChosen = peers.some(({ route, isSent }) => route.relay || !isSent);
    relay.isSent = this.#wanted.listeners > 0 && isChosen;
  }

  #reviewLanes(stream: number, peer: Peer, nowMs: number): void {
    const { offered, crowded, held } = peer.lanes.takeCarried();
    const elapsedMs = nowMs - peer.reviewedAtMs;
    peer.reviewedAtMs = nowMs;
    const lanes = peer.lanes.open.length;
    if (lanes === 0) return;
    const isSentBothWays = this.#isSentBothWays(stream, peer);
    if (isSentBothWays) peer.bothWaysAtMs = nowMs;
    // What a peer says is lost is lost of both ways together, and may be all of the other's.
    const isSaidOfBoth = nowMs - peer.bothWaysAtMs < REPORTED_MS;
    const lostDirectly = isSaidOfBoth ? null : lostOnTheWay(peer);
    const lostShare = stream === RELAY_STREAM ? this.#lostLately(lanes, nowMs) : lostDirectly;
    const { copies, addsLanes } = this.#sending;
    const stepBefore = peer.renditions.step;
    const lanesBefore = Math.max(lanes, peer.lanesWanted);
    // Lanes that were asked for and do not come are not waited for.
    const maxLanes = this.#maxLanes(stream, peer);
    const canAddLanes = addsLanes && lanesBefore < maxLanes;
    const moreLanes = Math.min(maxLanes, lanesBefore * 2);
    const decision = peer.ladder?.review({
      elapsedMs,
      offered,
      crowded,
      lostShare,
      // Samples carry their copies, Opus needs a second lane for them.
      canCopy: copies === "auto" && (lanes > 1 || peer.renditions.rung.format !== "opus") && !isSentBothWays,
      canAddLanes,
    }) ?? { rung: 0, copies: false, addLanes: false };
    peer.renditions.change(decision.rung);
    peer.copies = copies === "on" || decision.copies;
    // Lanes that lose some carry less.
    if (crowded > 0 || decision.copies) peer.neededAtMs = nowMs;
    const isHeldBack = peer.copies && decision.rung <= stepBefore && held > offered * HELD_SHARE;
    if (decision.addLanes || (isHeldBack && canAddLanes)) {
      this.#wantLanes(stream, peer, moreLanes);
    } else if (addsLanes && decision.rung > stepBefore && lanesBefore > CALM_LANES) {
      // They were of no use, and together hide that the path is too slow: none of them backs up before the network loses much.
      this.#wantLanes(stream, peer, CALM_LANES);
    } else if (addsLanes && stream === RELAY_STREAM && decision.rung === 0 && this.#needsSessions(peer)) {
      // Copies of Opus need a second session, ours as those that the relay sends. And where some is lost Firefox lets a session carry so little that
      // what waits grows too old: with two of them 4 to 5 % were missing where the network lost 2 %.
      peer.neededAtMs = nowMs;
      if (lanesBefore < MAX_SESSIONS) this.#wantLanes(stream, peer, MAX_SESSIONS);
    } else if (nowMs - peer.neededAtMs > CALM_MS && lanes > CALM_LANES) {
      peer.neededAtMs = nowMs;
      this.#wantLanes(stream, peer, lanes - 1);
    }
  }

  #maxLanes(stream: number, { copies }: Peer): number {
    if (stream === RELAY_STREAM) return MAX_SESSIONS;
    const peers = Array.from(this.#peers.values()).filter(isParticipant).length;
    const share = Math.max(CALM_LANES, Math.floor(MAX_LANES_TOGETHER / Math.max(1, peers)));
    return Math.min(copies ? MAX_LOSSY_LANES : MAX_LANES, share);
  }

  /** Where the other way is sent as well, that is the copy; of what goes to the relay, if nobody there depends on it. */
  #isSentBothWays(stream: number, peer: Peer): boolean {
    if (stream !== RELAY_STREAM) {
      return this.#peers.get(RELAY_STREAM)?.isSent === true && this.#isRelayed(peer);
    }
    const others = Array.from(this.#peers.values()).filter(isParticipant);
    return others.every((other) => !this.#isRelayed(other) || (other.isSent && this.#isDirectOpen(other)));
  }

  /** Share of our datagrams of the last seconds that were lost on the way to the relay; null while it does not say. */
  #lostToRelay(): number | null {
    const { received, missing } = this.#relayed ?? { received: 0, missing: 0 };
    return share(missing, received + missing);
  }

  /** The same, unless it tells of fewer sessions or more, which lose another share. */
  #lostLately(sessions: number, nowMs: number): number | null {
    if (sessions !== this.#relaySessions.count) this.#relaySessions = { count: sessions, sinceMs: nowMs };
    return nowMs - this.#relaySessions.sinceMs > LOSS_SECONDS * 1000 ? this.#lostToRelay() : null;
  }

  /** Whether copies are sent to the relay, or would help on the way there or from it. */
  #needsSessions(relay: Peer): boolean {
    const isLossyThere = (this.#lostToRelay() ?? 0) > LOSSY_SHARE;
    if (relay.copies || (isLossyThere && !this.#isSentBothWays(RELAY_STREAM, relay))) return true;
    const [first, last] = [this.#relayedLately[0], this.#relayed];
    if (first === undefined || last === null) return false;
    const [lost, forwarded] = [last.lost - first.lost, last.forwarded - first.forwarded];
    return lost >= LOSSY_PACKETS && lost > forwarded * LOSSY_SHARE;
  }

  #wantLanes(stream: number, peer: Peer, count: number): void {
    peer.lanesWanted = count;
    this.#say({ type: "lanes-wanted", stream, count });
  }

  stats(): WorkerPeerStats[] {
    const peers = Array.from(this.#peers).filter(([stream]) => stream !== RELAY_STREAM);
    return peers.map(([stream, peer]) => ({
      stream,
      droppedBacklog: peer.lanes.dropped,
      refused: peer.refused,
      sent: this.#sentStats(peer),
      heardOpusBps: peer.heardOpusBps,
      opusDuplicates: peer.direct.duplicates + peer.relayed.duplicates,
      captures: peer.reports.captures(epochMs()),
      heard: peer.heard,
      farEnd: peer.reports.farEnd(epochMs()),
      mixedFarEnd: this.#mixedFarEnd(peer, epochMs()),
      mixerConcealedShare: this.#mixedSource(peer)?.concealed_share ?? null,
      lanes: peer.lanes.stats(),
      asked: peer.asked,
      relayOpen: this.#isRelayOpen(peer),
      ways: { direct: peer.direct.stats(epochMs()), relayed: peer.relayed.stats(epochMs()) },
    }));
  }

  #mixedSource(peer: Peer): MixedSource | undefined {
    return this.#relayed?.mixed.find(({ stream }) => stream === peer.number);
  }

  #mixedFarEnd(peer: Peer, nowMs: number): FarEnd | null {
    const source = this.#mixedSource(peer);
    const mixStream = this.#byNumber.get(MIX_STREAM);
    const mix = mixStream === undefined ? undefined : this.#peers.get(mixStream);
    if (source === undefined || mix === undefined) return null;
    return peer.reports.farEnd(nowMs, { reports: mix.reports, leadFrames: source.lead_frames });
  }

  /** The relay's sessions and what it says; null before the first. */
  relayStats(): RelayStats | null {
    const relay = this.#peers.get(RELAY_STREAM);
    if (relay === undefined) return null;
    const sessions = relay.lanes.stats();
    const rtts = sessions.flatMap(({ rttMs }) => (rttMs === null ? [] : [rttMs]));
    const said = this.#relayed;
    return {
      sessions,
      rttMs: rtts.length > 0 ? Math.min(...rtts) : null,
      wanted: this.#wanted.listeners,
      sent: this.#sentStats(relay),
      droppedBacklog: relay.lanes.dropped,
      strayDatagrams: relay.refused,
      forwarded: said?.forwarded ?? null,
      aged: said?.aged ?? null,
      overRate: said?.over_rate ?? null,
      lost: said?.lost ?? null,
      missingShare: this.#lostToRelay(),
      mixMs: said?.mix_us == null ? null : said.mix_us / 1000,
      mixRefused: said?.mix_refused === true,
    };
  }

  #sentStats(peer: Peer): SentStats | null {
    if (!peer.isSent || !peer.lanes.isOpen) return null;
    const { copies, copiesSent, renditions } = peer;
    const { rung, step, switches } = renditions;
    const { format, opusBps } = rung;
    return { format, opusBps, rung: step, copies, copiesSent, switches };
  }

  #add(stream: number): Peer {
    const now = performance.now();
    const peer: Peer = {
      lanes: new Lanes(),
      number: null,
      pin: "auto",
      wants: { direct: true, relayed: true },
      route: { direct: true, relay: true },
      path: null,
      asked: "forwarded",
      cameAtMs: epochMs(),
      // To the relay only once somebody listens there.
      isSent: stream !== RELAY_STREAM,
      direct: new Way(stream, this.#delivery),
      relayed: new Way(stream, this.#delivery),
      renditions: new Renditions(this.#rungsOf(stream)),
      ladder: null,
      copies: this.#sending.copies === "on",
      copiesSent: 0,
      burst: [],
      heardOpusBps: null,
      lanesWanted: 0,
      droppedBefore: 0,
      allowed: { datagrams: new TokenBucket(MOST_DATAGRAMS), others: new TokenBucket(MOST_OTHERS) },
      refused: 0,
      reviewedAtMs: now,
      bothWaysAtMs: Number.NEGATIVE_INFINITY,
      neededAtMs: now,
      renewedAtMs: Number.NEGATIVE_INFINITY,
      reports: new Reports(GRANULARITY_MS),
      heard: null,
    };
    this.#peers.set(stream, peer);
    this.#spread();
    return peer;
  }
}

/** Not so the relay itself, the loop, and the mix. */
function isParticipant(peer: Peer): peer is Peer & { number: number } {
  return peer.number !== null && peer.number !== MIX_STREAM;
}

/** How a peer's stream is to be taken from the relay, where `asked` is best for all. */
function askedOf(peer: Peer, asked: Asked): Asked {
  if (peer.pin === "mix") return "mixed";
  if (peer.pin === "relay") return "forwarded";
  if (isDirectAlone(peer)) return "nothing";
  // Whom one hears directly needs no part in a mix.
  return asked === "mixed" && isHeardDirectly(peer) ? "nothing" : asked;
}

/**
 * Whether the musician wants a peer directly, and hears it so, or may soon. By what is heard, not by open lanes: the peer may have chosen
 * the relay alone, not knowing who of its listeners takes it there.
 */
function isDirectAlone(peer: Peer): boolean {
  return peer.pin === "direct" && (isHeardDirectly(peer) || epochMs() - peer.cameAtMs < DIRECT_PATIENCE_MS);
}

function isHeardDirectly({ direct }: Peer): boolean {
  return direct.isHeard(epochMs());
}

/** Share of our datagrams that the peer says were lost; null if it does not. What is lost of a mix was lost behind the server. */
function lostOnTheWay({ heard }: Peer): number | null {
  return heard === null || heard.isMixed ? null : heard.lostShare;
}

/** Whether what little is sent finds a queue that something else fills. */
function isChoked(peer: Peer): boolean {
  const { rung, leaving } = peer.renditions;
  if (rung.format !== "opus" || leaving !== null) return false;
  if ((lostOnTheWay(peer) ?? 0) <= HEAVY_LOSS_SHARE) return false;
  return peer.lanes.open.every(({ queueMs }) => queueMs > FULL_QUEUE_MS);
}

function handleReply(peer: Peer, way: Way, lane: Lane, reply: Uint8Array, nowMs: number): void {
  const rttMs = roundTripMs(reply, nowMs);
  if (rttMs === null) return;
  // By the relay, the probe was of the whole way.
  if (way === peer.direct) lane.answered(rttMs);
  way.answered(rttMs, nowMs);
  peer.reports.offset.add(Number(probeTimeNs(reply)) / 1e6, Number(probeRepliedNs(reply)) / 1e6, nowMs);
}
