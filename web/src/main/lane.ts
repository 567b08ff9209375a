/** One lane: a peer connection whose only content is the audio data channel, which lives in the worker. */

import type { Description, LaneSignal } from "./peer-signal";

/** As in docs/protocol.md, "Lanes". */
const CHANNEL: RTCDataChannelInit = { negotiated: true, id: 0, ordered: false, maxRetransmits: 0 };

/** How often it is looked for the path: until there is one, for the nomination may follow the connection; and then, for ICE may find a better one. */
const NOMINATION_MS = 500;
const PATH_MS = 10_000;
/** Candidates that a peer may have until it restarts ICE: each is checked against all of ours. A browser has a dozen. */
const MAX_CANDIDATES = 64;

export class Lane {
  readonly number: number;
  readonly epoch: number;
  readonly connection: RTCPeerConnection;
  readonly #signal: (signal: LaneSignal) => boolean;
  /** Candidates that came before the description they belong to. */
  #early: RTCIceCandidateInit[] | null = [];
  /** The peer's, since it last restarted ICE, which makes it forget those before. */
  #candidates = 0;
  /** Another one is a restart of ICE. */
  #ufrag: string | undefined;
  /** Negotiation steps, one after the other. */
  #steps: Promise<unknown> = Promise.resolve();
  candidateType: string | null = null;
  #lookTimer: ReturnType<typeof setTimeout> | undefined;
  /** The peer has closed the channel: it never opens again, though the connection may look alive. */
  hasClosed = false;
  /** When this end's description was last sent, ms of `performance.now()`. */
  describedAtMs = Number.NEGATIVE_INFINITY;

  /**
   * `open` must transfer the channel at once: a channel that has been used can no longer be. `signal`: false if it could not be sent
   * now.
   */
  constructor(
    number: number,
    epoch: number,
    iceServers: RTCIceServer[],
    open: (channel: RTCDataChannel) => void,
    signal: (signal: LaneSignal) => boolean,
    changed: (lane: Lane) => void,
  ) {
    this.number = number;
    this.epoch = epoch;
    this.#signal = signal;
    this.connection = new RTCPeerConnection({ iceServers });
    try {
      open(this.connection.createDataChannel("audio", CHANNEL));
    } catch (error) {
      // Nobody else could.
      this.connection.close();
      throw error;
    }
    // Both ends know the one channel beforehand: who opens another does not speak the protocol.
    this.connection.ondatachannel = () => {
      this.close();
      changed(this);
    };
    this.connection.onicecandidate = ({ candidate }) => {
      signal({ kind: "candidate", lane: number, epoch, candidate: candidate?.toJSON() ?? null });
    };
    this.connection.onconnectionstatechange = () => {
      void this.#lookForPath();
      changed(this);
    };
  }

  get connected(): boolean {
    return this.connection.connectionState === "connected" && !this.hasClosed;
  }

  /** Offers, from the side that makes all offers. `iceRestart`: after the path was lost. */
  offer(iceRestart: boolean): void {
    this.#step(async () => {
      await this.connection.setLocalDescription(await this.connection.createOffer({ iceRestart }));
      this.#sendDescription();
    });
  }

  handle(signal: LaneSignal): void {
    this.#step(async () => {
      if (signal.kind === "candidate") await this.#handleCandidate(signal.candidate);
      else await this.#handleDescription(signal.description);
    });
  }

  close(): void {
    this.connection.onicecandidate = null;
    this.connection.onconnectionstatechange = null;
    this.connection.close();
    clearTimeout(this.#lookTimer);
  }

  async #handleDescription({ type, sdp }: Description): Promise<void> {
    // An offer of ours has one answer.
    if (type === "answer" && this.connection.signalingState !== "have-local-offer") return;
    const [ufrag] = /^a=ice-ufrag:.*/m.exec(sdp) ?? [];
    const isRestart = this.#ufrag !== undefined && ufrag !== this.#ufrag;
    const candidates = (isRestart ? 0 : this.#candidates) + (sdp.match(/^a=candidate:/gm)?.length ?? 0);
    if (candidates > MAX_CANDIDATES) return;
    await this.connection.setRemoteDescription({ type, sdp });
    this.#ufrag = ufrag;
    this.#candidates = candidates;
    const early = this.#early ?? [];
    this.#early = null;
    for (const candidate of early) await this.connection.addIceCandidate(candidate);
    if (type === "offer") {
      await this.connection.setLocalDescription(await this.connection.createAnswer());
      this.#sendDescription();
    }
  }

  async #handleCandidate(candidate: RTCIceCandidateInit | null): Promise<void> {
    if (candidate === null || this.#candidates >= MAX_CANDIDATES) return;
    this.#candidates++;
    if (this.#early !== null) return void this.#early.push(candidate);
    await this.connection.addIceCandidate(candidate);
    // It may tell what the path in use is.
    void this.#lookForPath();
  }

  #sendDescription(): void {
    const { localDescription } = this.connection;
    if (localDescription === null) return;
    const { type, sdp } = localDescription;
    const isSent = this.#signal({
      kind: "description",
      lane: this.number,
      epoch: this.epoch,
      description: { type, sdp },
    });
    if (isSent) this.describedAtMs = performance.now();
  }

  /** A peer's nonsense must not stop what comes after it; a connection that fails is seen by its state. */
  #step(step: () => Promise<void>): void {
    this.#steps = this.#steps.then(step).catch(() => undefined);
  }

  async #lookForPath(): Promise<void> {
    if (!this.connected) return;
    this.candidateType = candidateTypeOf(
      await this.connection.getStats(),
      this.connection.remoteDescription?.sdp ?? "",
    );
    clearTimeout(this.#lookTimer);
    const waitMs = this.candidateType === null ? NOMINATION_MS : PATH_MS;
    this.#lookTimer = setTimeout(() => void this.#lookForPath(), waitMs);
  }
}

/**
 * Of the path that ICE chose: `relay` if it goes by either end's TURN server, else this end's; null before there is one. `remoteSdp`: the
 * peer's description, with its candidates.
 */
function candidateTypeOf(report: RTCStatsReport, remoteSdp: string): string | null {
  const stats = Array.from(report.values());
  const transport = stats.find(({ type }) => type === "transport");
  // Not every browser says which pair it sends by.
  const pair =
    report.get(transport?.selectedCandidatePairId) ??
    stats.find(
      ({ type, state, nominated }) => type === "candidate-pair" && state === "succeeded" && nominated,
    );
  const [local, remote] = [pair?.localCandidateId, pair?.remoteCandidateId].map((id) => report.get(id));
  // One whose check came before the peer's word of it stays a "prflx".
  const isRelayed =
    remote?.candidateType === "relay" || remoteSdp.includes(` ${remote?.address} ${remote?.port} typ relay`);
  return isRelayed ? "relay" : (local?.candidateType ?? null);
}
