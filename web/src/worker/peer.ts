import type { Asked, Sending as PathChoice, Pin, Route } from "../shared/engine";
import type { WayName, WorkerPeerStats } from "../shared/messages";
import type { HeardStats } from "../shared/stats";
import { TokenBucket } from "../shared/token-bucket";
import {
  AUDIO_HEADER_BYTES,
  isOpus,
  KIND_AUDIO,
  KIND_PROBE,
  KIND_PROBE_REPLY,
  KIND_REPORT,
  kindOf,
  MIX_STREAM,
  OPUS_RATE_HZ,
  probeRepliedNs,
  probeReply,
  probeTimeNs,
  readAudioHeader,
  writeStream,
} from "../shared/wire";
import { epochMs } from "./clock";
import type { Delivery } from "./delivery";
import { type Lane, MAX_WAIT_MS, roundTripMs } from "./lane";
import { mostLanes } from "./lane-count";
import { type Circumstances, Listener, type Sending } from "./listener";
import type { RelayPeer } from "./relay-peer";
import { type Captured, Reports, toNs } from "./report";
import type { Trace } from "./trace";
import { Way } from "./way";

/** Resolution of `performance.now()` here and at the peer: with a page that is not cross-origin isolated, a millisecond in Firefox. */
const GRANULARITY_MS = globalThis.crossOriginIsolated ? 0.04 : 2;
/**
 * What a peer may send directly in a second: as much as by the relay, which is more than packets of 16 frames at 96 kHz are; and of what is not audio
 * nearly half as much again as the probes, replies and reports of 16 lanes.
 */
const MOST_DATAGRAMS = 8_000;
const MOST_OTHERS = 100;
/** What a report says was lost was lost in so long. */
const REPORTED_MS = 4_000;
/** Whom the musician wants directly has so long to be heard, before it is taken from the relay. */
const DIRECT_PATIENCE_MS = 5_000;
/**
 * Where so much of the little that Opus takes is lost, and a queue on the way is this full all the same, what fills it are the lanes themselves:
 * the SCTP of Firefox answers acknowledgements that tell of gaps with a FORWARD TSN each (RFC 3758, 3.5), which the other end acknowledges at
 * once, with all its gaps; on a narrow path these multiply until they are most of what is sent, and make the gaps. Lanes made anew begin
 * without; at most once in this time, for something else may fill the queue.
 */
const HEAVY_LOSS_SHARE = 0.1;
const FULL_QUEUE_MS = 40;
const RENEWAL_INTERVAL_MS = 10_000;

/** Another participant, the loop, or the mix: by which ways it is sent our sound, and we hear its. */
export class Peer {
  readonly stream: number;
  /** What it is sent directly. */
  readonly listener: Listener;
  readonly direct: Way;
  readonly relayed: Way;
  /** What the room calls it, and the relay's datagrams; null of the loop, and while the room does not know it. */
  number: number | null = null;
  #pin: Pin = "auto";
  /** By which ways it wants our stream, by its own word. */
  wants: Readonly<Record<WayName, boolean>> = { direct: true, relayed: true };
  route: Route = { direct: true, relay: true };
  /** Null of who is no participant, and if there are too many to judge. */
  path: PathChoice | null = null;
  /** How its stream is to be taken from the relay. */
  #asked: Asked = "forwarded";
  readonly #cameAtMs = epochMs();
  /** When it was last sent our sound both ways. */
  #bothWaysAtMs = Number.NEGATIVE_INFINITY;
  /** When all lanes were last made anew. */
  #renewedAtMs = Number.NEGATIVE_INFINITY;
  readonly #datagrams = new TokenBucket(MOST_DATAGRAMS);
  readonly #others = new TokenBucket(MOST_OTHERS);
  readonly #refusals = new TokenBucket(MOST_DATAGRAMS);
  /** Datagrams too long to be ours, or too many. */
  refused = 0;
  /** Of ours to the relay, while this peer was reached by it: those for which no session had room. */
  #droppedRelayed = 0;
  #relayDroppedBefore = 0;
  #opusBps: number | null = null;
  readonly reports = new Reports(GRANULARITY_MS);
  /** How it hears us, by its own report of its last seconds; null while it does not say. */
  #heard: HeardStats | null = null;
  readonly #relay: RelayPeer;
  readonly #delivery: Delivery;

  constructor(stream: number, sending: Sending, relay: RelayPeer, delivery: Delivery) {
    this.stream = stream;
    this.listener = new Listener(stream, sending);
    this.direct = new Way(stream, delivery);
    this.relayed = new Way(stream, delivery);
    this.#relay = relay;
    this.#delivery = delivery;
  }

  close(): void {
    this.listener.close();
    this.direct.close();
    this.relayed.close();
    this.path?.close();
  }

  /** Not so the loop, and the mix. */
  get isParticipant(): boolean {
    return this.number !== null && this.number !== MIX_STREAM;
  }

  /** The way the musician wants it, and by which it wants ours. */
  setWanted(pin: Pin, wants: Record<WayName, boolean>): void {
    this.#pin = pin;
    this.wants = wants;
    if (pin !== "auto") this.#asked = this.#askedFor(this.#asked);
  }

  /** The relay limits what a participant sends; here nobody else does. */
  receiveDirectly(lane: Lane, bytes: Uint8Array<ArrayBuffer>, trace: Trace | null): void {
    const nowMs = performance.now();
    const kind = this.#datagrams.take(nowMs) ? kindOf(bytes) : null;
    if (kind === null || (kind !== KIND_AUDIO && !this.#others.take(nowMs))) this.refuse(lane);
    else this.receive(this.direct, lane, kind, bytes, trace);
  }

  /** Even to pass over costs time, which all peers share: the lane of one that goes on and on ends, and is made anew ever less often. */
  refuse(lane: Lane): void {
    this.refused++;
    if (!this.#refusals.take(performance.now())) lane.close();
  }

  receive(way: Way, lane: Lane, kind: number, bytes: Uint8Array<ArrayBuffer>, trace: Trace | null): void {
    const nowMs = epochMs();
    if (kind > 0) way.heardAtMs = nowMs;
    switch (kind) {
      case KIND_PROBE:
        lane.sendControl(probeReply(bytes, toNs(epochMs())));
        return;
      case KIND_PROBE_REPLY:
        this.#handleReply(way, lane, bytes, nowMs);
        return;
      case KIND_REPORT:
        this.reports.handleReport(bytes, nowMs);
        this.#heard = this.reports.heard(nowMs);
        return;
    }
    lane.received++;
    if (kind === KIND_AUDIO) this.#hear(way, bytes, nowMs, trace);
    else this.#delivery.give(this.stream, bytes);
  }

  #handleReply(way: Way, lane: Lane, reply: Uint8Array, nowMs: number): void {
    const rttMs = roundTripMs(reply, nowMs);
    if (rttMs === null) return;
    // By the relay, the probe was of the whole way.
    if (way === this.direct) lane.answered(rttMs);
    way.answered(rttMs, nowMs);
    this.reports.offset.add(Number(probeTimeNs(reply)) / 1e6, Number(probeRepliedNs(reply)) / 1e6, nowMs);
  }

  #hear(way: Way, audio: Uint8Array<ArrayBuffer>, nowMs: number, trace: Trace | null): void {
    const isDirect = way === this.direct;
    const other = isDirect ? this.relayed : this.direct;
    // The relay passes on what was asked for, of whom the owner has not muted.
    if (!isDirect && !way.isHeard(nowMs)) way.numbering.interrupt();
    way.hear(nowMs);
    // Where the other way is pinned, and heard, this one is not wanted; the peer has been told, and stops in a moment.
    if (this.#pin === (isDirect ? "relay" : "direct") && other.isHeard(nowMs)) {
      way.numbering.interrupt();
      return;
    }
    const { frames, timestamp } = readAudioHeader(audio);
    if (way.isFirst(timestamp, other, nowMs)) this.reports.handleAudio(audio, nowMs);
    trace?.received(this.stream, audio);
    this.#opusBps = isOpus(audio) ? ((audio.length - AUDIO_HEADER_BYTES) * 8 * OPUS_RATE_HZ) / frames : null;
    way.play(audio);
  }

  /** What the peer is to be told, if it is time. `captureOf`: what to say of the capture to a rung's listeners. */
  report(captureOf: (key: string) => Captured | null): void {
    this.#heard = this.reports.heard(epochMs());
    const relay = this.#relay.listener;
    const relayDropped = relay?.lanes.dropped ?? 0;
    if (this.isRelayed) this.#droppedRelayed += relayDropped - this.#relayDroppedBefore;
    this.#relayDroppedBefore = relayDropped;
    const direct = this.listener.lanes.leastWait;
    const relayed = this.number === null ? null : (relay?.lanes.leastWait ?? null);
    if (direct === null && relayed === null) return;
    const sent = this.listener.isSent && direct !== null ? this.listener : (relay ?? this.listener);
    const { rung, leaving } = sent.renditions;
    const dropped = this.listener.lanes.dropped + this.#droppedRelayed;
    const report = this.reports.poll(captureOf((leaving ?? rung).key), dropped, epochMs());
    if (report === null) return;
    // By both: the one that comes second is not newer, and ignored.
    direct?.sendControl(report);
    if (relayed !== null) this.sendRelayed(relayed, report);
  }

  /** By a session with the relay, to this peer. */
  sendRelayed(session: Lane, datagram: Uint8Array<ArrayBuffer>): void {
    if (this.number === null) return;
    writeStream(datagram, this.number);
    session.sendControl(datagram);
  }

  get isRelayOpen(): boolean {
    return this.#relay.isOpen && !this.relayed.isSilent(epochMs());
  }

  /** Whether our stream reaches it by the relay, if it is sent there. */
  get isRelayed(): boolean {
    return this.isRelayOpen && this.wants.relayed && this.#relay.wanted.listeners > 0;
  }

  /** Whether a lane is open. One by which nothing comes is dead long before ICE says so, but where there is no relay it may as well be tried. */
  get isDirectOpen(): boolean {
    return this.listener.lanes.isOpen && !(this.direct.isSilent(epochMs()) && this.isRelayed);
  }

  /** Whether it may be heard, or reached, by the relay. */
  get needsRelay(): boolean {
    return !(this.wants.direct && this.#isDirectAlone);
  }

  /**
   * Whether the musician wants it directly, and hears it so, or may soon. By what is heard, not by open lanes: the peer may have chosen
   * the relay alone, not knowing who of its listeners takes it there.
   */
  get #isDirectAlone(): boolean {
    const nowMs = epochMs();
    const mayBeHeard = this.direct.isHeard(nowMs) || nowMs - this.#cameAtMs < DIRECT_PATIENCE_MS;
    return this.#pin === "direct" && mayBeHeard;
  }

  /** How its stream is to be taken from the relay, where `asked` is best for all. */
  #askedFor(asked: Asked): Asked {
    if (this.#pin === "mix") return "mixed";
    if (this.#pin === "relay") return "forwarded";
    if (this.#isDirectAlone) return "nothing";
    // Whom one hears directly needs no part in a mix.
    return asked === "mixed" && this.direct.isHeard(epochMs()) ? "nothing" : asked;
  }

  /** Which way sound goes to it and comes from it until the next review. */
  choosePath(elapsedMs: number, isRelayShort: boolean, asked: Asked): void {
    const nowMs = epochMs();
    // And a little before: replies to probes come twice a second as well. What has died begins to drop only so much later.
    const isAnswered = ({ heardAtMs }: Way) => nowMs - heardAtMs < elapsedMs + MAX_WAIT_MS;
    this.route = this.path?.review({
      elapsedMs,
      // What is pinned here is how we hear the peer; what the peer has pinned, it tells.
      pin: this.wants.direct ? "auto" : "relay",
      isDirectOpen: this.isDirectOpen,
      isRelayOpen: this.isRelayOpen,
      // What comes to us either way tells what is lost of ours: a report tells only of both together.
      directLostShare: this.direct.lostShare,
      relayLostShare: this.relayed.lostShare,
      // One peer's bad lanes are no reason to leave another's.
      direct: { isShort: this.listener.isShort(), isAnswered: isAnswered(this.direct) },
      relay: { isShort: isRelayShort, isAnswered: isAnswered(this.relayed) },
      relayListeners: this.wants.relayed ? this.#relay.wanted.listeners : 0,
    }) ?? { direct: true, relay: true };
    this.#asked = this.#askedFor(asked);
  }

  /** Of the review of its lanes, as one of so many peers. */
  circumstances(peers: number, nowMs: number): Circumstances {
    const isSentBothWays = this.#relay.listener?.isSent === true && this.isRelayed;
    if (isSentBothWays) this.#bothWaysAtMs = nowMs;
    return {
      isSentBothWays,
      lostShare: this.#directLostShare(nowMs),
      mostLanes: mostLanes(peers, this.listener.copies),
      isLossy: false,
    };
  }

  /** Share of our datagrams that it says were lost, if all went directly; null if it does not say. What is lost of a mix was lost behind the server. */
  #directLostShare(nowMs: number): number | null {
    // Of both ways together, and perhaps all of the other's.
    const isSaidOfBoth = nowMs - this.#bothWaysAtMs < REPORTED_MS;
    return isSaidOfBoth || this.#heard === null || this.#heard.isMixed ? null : this.#heard.lostShare;
  }

  /** Whether to make all lanes anew: what little is sent finds a queue that something else fills. */
  renewsLanes(nowMs: number): boolean {
    const { isSent, lanes, renditions } = this.listener;
    const isChoked =
      isSent &&
      renditions.rung.format === "opus" &&
      renditions.leaving === null &&
      (this.#directLostShare(nowMs) ?? 0) > HEAVY_LOSS_SHARE &&
      lanes.open.length > 0 &&
      lanes.open.every(({ queueMs }) => queueMs > FULL_QUEUE_MS);
    if (!isChoked || nowMs - this.#renewedAtMs < RENEWAL_INTERVAL_MS) return false;
    this.#renewedAtMs = nowMs;
    return true;
  }

  /** `mix`: the reports of the mix, if there is one. */
  stats(mix: Reports | undefined): WorkerPeerStats {
    const nowMs = epochMs();
    const source = this.#relay.mixed(this.number);
    const inMix = source && mix && { reports: mix, leadFrames: source.lead_frames };
    return {
      stream: this.stream,
      droppedBacklog: this.listener.lanes.dropped,
      refused: this.refused,
      sent: this.listener.stats(),
      heardOpusBps: this.#opusBps,
      opusDuplicates: this.direct.duplicates + this.relayed.duplicates,
      captures: this.reports.captures(nowMs),
      heard: this.#heard,
      farEnd: this.reports.farEnd(nowMs),
      mixedFarEnd: inMix ? this.reports.farEnd(nowMs, inMix) : null,
      mixerConcealedShare: source?.concealed_share ?? null,
      lanes: this.listener.lanes.stats(),
      asked: this.#asked,
      relayOpen: this.isRelayOpen,
      ways: { direct: this.direct.stats(nowMs), relayed: this.relayed.stats(nowMs) },
    };
  }
}
