/** Who is in the room: how they are shown, connected and mixed. */

import { COMMAND, type Pin } from "../shared/engine";
import type { WayName } from "../shared/messages";
import { type Member, newMember } from "./member";
import { Loop, type MeshHost, Peer } from "./mesh";
import { type Mix, Mixes } from "./mixes";
import type { Buffer, Participant, Problem } from "./model";
import { Negotiations } from "./negotiations";
import { DEFAULT_NAME, delayKey, hasSufficed, RememberedDelays } from "./remembered";
import type { RunningSound } from "./running-sound";
import { type Automation, nameOf } from "./settings";
import type { RemoteParticipant } from "./signalling";
import { BUDGET_SHARES } from "./sound";
import type { Store } from "./store";

const LOOP_ID = "loop";
/** How long those who were in the room are waited for when a server that was restarted does not know them: its own grace period. */
const RETURN_MS = 15_000;
/** A delay that has sufficed for so long is remembered. */
const KEEP_DELAYS_MS = 10_000;

/** What the members ask of whoever holds the signalling and the meters. */
export interface MembersHost extends Pick<MeshHost, "signal"> {
  removed(id: string): void;
}

/** docs/operating.md: what a browser must have. */
const oldBrowserProblem: Problem = {
  id: "old-browser",
  severity: "warning",
  title: "This browser is too old to send sound straight to the others.",
  remedy:
    "Update it, or take another: Chrome, Chromium or Edge from 130 on, or Firefox from 144 on. Until then sound takes the longer way through the server.",
};

export class Members {
  readonly #store: Store;
  readonly #sound: RunningSound;
  readonly #pin: Pin;
  readonly #host: MembersHost;
  readonly #mesh: MeshHost;
  readonly #byId = new Map<string, Member>();
  readonly #mixes: Mixes;
  readonly #delays = new RememberedDelays();
  #nextStream = 1;
  #selfId: string | null = null;
  #ownerId: string | null = null;
  #iceServers: RTCIceServer[] = [];

  /** `asked`: what the page's address asks for. */
  constructor(
    store: Store,
    sound: RunningSound,
    asked: Pick<Automation, "pin" | "buffer">,
    host: MembersHost,
  ) {
    this.#store = store;
    this.#sound = sound;
    this.#pin = asked.pin;
    this.#mixes = new Mixes(asked.buffer);
    this.#host = host;
    this.#mesh = {
      negotiations: Negotiations.ofPage(),
      addLane: (...lane) => this.#addLane(...lane),
      closeLane: (stream, lane) => sound.current?.closeLane(stream, lane),
      retireLane: (stream, lane) => sound.current?.retireLane(stream, lane),
      signal: (to, data) => host.signal(to, data),
      canSignal: () => store.state.signalling === "online",
      changed: () => {
        for (const member of this.all) this.#tellPeer(member);
        this.publish();
      },
    };
    setInterval(() => this.#keepDelays(), KEEP_DELAYS_MS);
  }

  /** *Errors* where the browser hands no channel to another thread: then all goes through the server. */
  #addLane(...lane: Parameters<MeshHost["addLane"]>): void {
    try {
      this.#sound.current?.addLane(...lane);
    } catch (error) {
      this.#store.raise(oldBrowserProblem);
      throw error;
    }
  }

  /** In order of joining. */
  get all(): Member[] {
    return Array.from(this.#byId.values());
  }

  get(id: string): Member | undefined {
    return this.#byId.get(id);
  }

  /** One's own, once the server has said it. */
  get selfId(): string | null {
    return this.#selfId;
  }

  /** Null of the loop, too. */
  peer(id: string): Peer | null {
    return peerOf(this.#byId.get(id));
  }

  /** Whose stream it is. */
  peerOfStream(stream: number): Peer | null {
    return peerOf(this.all.find((member) => member.stream === stream));
  }

  /** The loop is made anew then, for its lanes are offered only once. */
  laneClosed(stream: number, lane: number, epoch: number): void {
    if (this.#byId.get(LOOP_ID)?.stream === stream) {
      this.setLoop(false);
      this.setLoop(true);
    } else this.peerOfStream(stream)?.laneClosed(lane, epoch);
  }

  /** One that nobody has had. */
  newStream(): number {
    return this.#nextStream++;
  }

  /** Whether a member is heard in the server's mix. */
  isMixed({ stream }: Member): boolean {
    return this.#sound.current?.mixing.isMixed(stream) ?? false;
  }

  // ---- Coming and going ----

  /** One is in the room, as `selfId`. Lanes made from now on ask these servers. */
  enter(selfId: string, iceServers: RTCIceServer[]): void {
    this.#selfId = selfId;
    this.#iceServers = iceServers;
    for (const member of this.all) {
      const peer = peerOf(member);
      if (peer !== null) peer.iceServers = iceServers;
    }
  }

  /** Those whom the server finds there. `resumed`: it has known us all the time. */
  meetAll(participants: RemoteParticipant[], resumed: boolean): void {
    const here = new Set(participants.map(({ id }) => id));
    for (const id of Array.from(this.#byId.keys())) {
      if (id === LOOP_ID || here.has(id)) continue;
      if (resumed) this.remove(id);
      else this.#waitFor(id);
    }
    if (!resumed) this.#forgetNumbers();
    for (const participant of participants) this.meet(participant, resumed);
  }

  /** Somebody who came, or is found there. `resumed`: the server has known us all the time. */
  meet({ id, stream, name: said, present, muted }: RemoteParticipant, resumed: boolean): void {
    const name = seenName(said);
    const isNew = !this.#byId.has(id);
    if (isNew) this.#addPeer(id, name);
    const member = this.#byId.get(id);
    if (member === undefined) return;
    clearTimeout(member.returnTimer);
    const isKnown = resumed && member.number === stream;
    member.number = stream;
    // It has been gone, whether we were told or not; or we have.
    if (!isNew && !isKnown) {
      member.wanted = { direct: true, relayed: true };
      this.peer(id)?.meetAgain();
    }
    this.#tellPeer(member);
    member.name = name;
    this.update(id, { present, mutedByOwner: muted });
    if (isKnown) this.sayAgain(id);
  }

  /** A server that was restarted does not know yet who is here: they come back as we did, and meanwhile the music goes on. */
  #waitFor(id: string): void {
    this.update(id, { present: false });
    const member = this.#byId.get(id);
    if (member === undefined) return;
    clearTimeout(member.returnTimer);
    member.returnTimer = setTimeout(() => this.remove(id), RETURN_MS);
  }

  /** A server that was restarted gives them anew, to others: what is sent to one who is waited for would go to another. */
  #forgetNumbers(): void {
    for (const member of this.all) {
      member.number = null;
      this.#tellPeer(member);
    }
  }

  #addPeer(id: string, name: string): void {
    if (this.#selfId === null) return;
    const { lanes } = this.#store.state.settings;
    const member = this.#add(id, name);
    member.peer = new Peer(this.#selfId, id, member.stream, lanes, this.#iceServers, this.#mesh);
  }

  /** "Hear yourself through the network". */
  setLoop(looping: boolean): void {
    if (looping === this.#byId.has(LOOP_ID)) return;
    this.#store.set({ looping });
    if (!looping) {
      this.remove(LOOP_ID);
      return;
    }
    const member = this.#add(LOOP_ID, "Yourself, through the network");
    const { lanes } = this.#store.state.settings;
    try {
      member.peer = new Loop(member.stream, lanes, this.#iceServers, this.#mesh);
    } catch {
      this.setLoop(false);
    }
    this.publish();
  }

  /** As it was mixed when it was here last. */
  #add(id: string, name: string): Member {
    const isLoop = id === LOOP_ID;
    const kept = this.#mixes.of({ id, name }, this.#namesBeside(id));
    const { buffer } = this.#store.state.settings;
    const pin = isLoop ? "auto" : this.#pin;
    const mix = { gain: 1, pan: 0, muted: false, solo: false, buffer, pin, ...kept };
    const stream = this.newStream();
    const member = newMember(stream, { id, name, isLoop, isOwner: id === this.#ownerId }, mix);
    this.#byId.set(id, member);
    const sound = this.#sound.current;
    sound?.addStream(stream, mix.buffer, this.#delays.of(this.#delayKeyOf(member)));
    if (kept !== undefined) {
      sound?.command(COMMAND.gain, stream, mix.gain);
      sound?.command(COMMAND.pan, stream, mix.pan);
      sound?.command(COMMAND.solo, stream, Number(mix.solo));
    }
    return member;
  }

  remove(id: string): void {
    const member = this.#byId.get(id);
    if (member === undefined) return;
    this.#byId.delete(id);
    this.#host.removed(id);
    clearTimeout(member.returnTimer);
    member.peer?.close();
    this.#sound.current?.removeStream(member.stream);
    this.#store.clear(`unreachable-${id}`);
    this.publish();
  }

  removeAll(): void {
    for (const id of Array.from(this.#byId.keys())) this.remove(id);
  }

  // ---- As they are shown ----

  update(id: string, change: Partial<Participant>): void {
    const member = this.#byId.get(id);
    if (member === undefined) return;
    member.participant = { ...member.participant, ...change };
    this.silence(member);
    this.publish();
  }

  setOwner(id: string): void {
    this.#ownerId = id;
    this.#store.set({ isOwner: id === this.#selfId });
    for (const member of this.all)
      member.participant = { ...member.participant, isOwner: member.participant.id === id };
    this.publish();
  }

  rename(id: string, said: string): void {
    const name = seenName(said);
    const member = this.#byId.get(id);
    if (member !== undefined) member.name = name;
    this.#mixes.rename({ id, name }, this.#namesBeside(id));
    this.publish();
  }

  /** Of the others who are there. */
  #namesBeside(id: string): string[] {
    return this.all.flatMap(({ name, participant }) =>
      participant.present && participant.id !== id ? [name] : [],
    );
  }

  /** Those whose names look alike, oneself among them, are told apart by their numbers in the room, which are the same for everyone. */
  #shownName({ name, number }: Member): string {
    const look = (of: string) => of.normalize("NFKC").toLowerCase();
    const names = [this.#store.state.settings.name, ...this.all.map((member) => member.name)];
    const isShared = names.filter((other) => look(other) === look(name)).length > 1;
    return isShared && number !== null ? `${name} ${number}` : name;
  }

  /** By whichever way there is. */
  #connectionOf(member: Member): Participant["connection"] {
    const worker = this.#sound.worker.peer(member.stream);
    const isRelayed = worker?.relayOpen === true || this.isMixed(member);
    const byRelay = isRelayed && worker?.asked !== "nothing";
    const connection = byRelay ? "connected" : (member.peer?.connection ?? member.participant.connection);
    // There may be lanes: nothing moves on them.
    return connection === "connected" && this.#sound.isWorkerStill ? "interrupted" : connection;
  }

  /** What the worker tells may have changed them. */
  publishConnections(): void {
    if (this.all.some((member) => this.#connectionOf(member) !== member.participant.connection))
      this.publish();
  }

  publish(): void {
    for (const member of this.all) {
      const name = this.#shownName(member);
      if (name !== member.participant.name) member.participant = { ...member.participant, name };
      const { participant } = member;
      const connection = this.#connectionOf(member);
      // Who has gone is not behind a firewall; the strip says it.
      if (connection !== "failed" || !participant.present) this.#store.clear(`unreachable-${participant.id}`);
      if (connection === participant.connection) continue;
      member.participant = { ...participant, connection };
      // While the server is gone, that is the reason, and said already.
      if (connection === "failed" && participant.present && this.#store.state.signalling === "online")
        this.#store.raise(unreachable(participant));
    }
    this.#store.set({ participants: this.all.map(({ participant }) => participant) });
  }

  // ---- What they and the two other threads are told ----

  /** A participant's own stream is silent while it is heard in the mix, and while one of us has muted it. */
  silence(member: Member): void {
    const { participant, stream } = member;
    const isSilent = participant.muted || participant.mutedByOwner || this.isMixed(member);
    if (isSilent !== member.isSilent) this.#sound.current?.command(COMMAND.mute, stream, Number(isSilent));
    member.isSilent = isSilent;
  }

  /** What the worker needs to know of a peer to find its way. */
  #tellPeer(member: Member): void {
    const { stream, number, participant } = member;
    const peer = peerOf(member);
    if (peer === null) return;
    const told = JSON.stringify([number, participant.pin, peer.wants]);
    if (told === member.told) return;
    member.told = told;
    this.#sound.current?.setPeer(stream, number, participant.pin, peer.wants);
  }

  /** Tells a peer by which ways its sound is to come. */
  tellWanted({ participant, wanted }: Member, now: Record<WayName, boolean>): void {
    for (const kind of ["relayed", "direct"] as const) {
      if (now[kind] === wanted[kind]) continue;
      if (this.#host.signal(participant.id, { kind, wanted: now[kind] })) wanted[kind] = now[kind];
    }
  }

  /** To a peer that has forgotten nothing: what was said into a connection that was dead already, the peer's or ours, is lost. */
  sayAgain(id: string): void {
    const member = this.#byId.get(id);
    if (member !== undefined) member.wanted = { direct: null, relayed: null };
    this.peer(id)?.retry();
  }

  // ---- As one mixes them ----

  control(id: string, change: Partial<Mix>, code: number, value: number): void {
    const member = this.#byId.get(id);
    if (member === undefined) return;
    this.#sound.current?.command(code, member.stream, value);
    this.mix(id, change);
  }

  mix(id: string, change: Partial<Mix>): void {
    this.update(id, change);
    const member = this.#byId.get(id);
    if (member !== undefined && id !== LOOP_ID)
      this.#mixes.keep({ id, name: member.name }, member.participant);
  }

  setBuffer(id: string, buffer: Buffer): void {
    const member = this.#byId.get(id);
    if (member === undefined) return;
    this.#sound.current?.setBuffer(member.stream, buffer);
    this.mix(id, { buffer });
  }

  /** Of all, and of those who come back. */
  setBuffers(buffer: Buffer): void {
    this.#mixes.setBuffer(buffer);
    for (const id of this.#byId.keys()) this.setBuffer(id, buffer);
  }

  setPin(id: string, pin: Pin): void {
    this.mix(id, { pin });
    const member = this.#byId.get(id);
    if (member !== undefined) this.#tellPeer(member);
  }

  wantLanes(lanes: number | "auto"): void {
    for (const member of this.all) peerOf(member)?.wantLanes(lanes);
  }

  #delayKeyOf({ name, participant }: Member): string | null {
    return delayKey({ name, isLoop: participant.isLoop }, this.#sound.rateHz);
  }

  /** Remembers the delays that have sufficed since it was last called. */
  #keepDelays(): void {
    const numbers = this.#sound.current?.numbers();
    for (const member of this.all) {
      const number = this.#sound.number(member.stream, numbers);
      const [playedFrames, concealedFrames] = [number("played") || 0, number("concealed") || 0];
      const grown = {
        playedFrames: playedFrames - member.looked.playedFrames,
        concealedFrames: concealedFrames - member.looked.concealedFrames,
      };
      member.looked = { playedFrames, concealedFrames };
      const key = this.#delayKeyOf(member);
      const { buffer } = member.participant;
      if (key === null || typeof buffer !== "string") continue;
      if (hasSufficed(grown, BUDGET_SHARES[buffer])) this.#delays.keep(key, number("target") || 0);
    }
  }
}

function peerOf(member: Member | undefined): Peer | null {
  return member?.peer instanceof Peer ? member.peer : null;
}

/** What was said, as it is seen. */
function seenName(said: string): string {
  return nameOf(said) || DEFAULT_NAME;
}

function unreachable({ id, name, isLoop }: Participant): Problem {
  const [title, remedy] = isLoop
    ? [
        "You cannot hear yourself through the network.",
        "Most likely a firewall or an extension of the browser is in the way. The page keeps trying; another network helps.",
      ]
    : [
        `${name} cannot be reached.`,
        "Most likely a firewall is in the way at one of you, and the server's relay is out of reach, too; or one of the computers is too busy to answer. The page keeps trying; another network helps.",
      ];
  return { id: `unreachable-${id}`, severity: "error", title, remedy };
}
