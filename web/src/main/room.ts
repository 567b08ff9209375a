/** The room: how one comes in, what the server says while one is there, and how one leaves. */

import { closedDoorWords, type Stopped, stoppedBy } from "./door";
import { accepted } from "./ice";
import type { Member } from "./member";
import type { Members } from "./members";
import type { Entry, StudioState } from "./model";
import type { OwnDevices } from "./own-devices";
import type { PeerSignal } from "./peer-signal";
import { DEFAULT_NAME } from "./remembered";
import type { RunningSound } from "./running-sound";
import { type FromServer, newSecret, Signalling, type Trouble, type Welcome } from "./signalling";
import type { Store } from "./store";

/** What those are called who said no name: page and `antiphon join`. */
const NOBODY: ReadonlySet<string> = new Set([DEFAULT_NAME, "Antiphon"]);

export class Room {
  readonly #store: Store;
  readonly #sound: RunningSound;
  readonly #devices: OwnDevices;
  readonly #members: Members;
  readonly #beginsWithLoop: boolean;
  /** Of those who were muted for everyone by oneself when they left. */
  readonly #mutedNames = new Set<string>();
  readonly #secret = newSecret();
  #signalling: Signalling | null = null;
  /** Counts who wants in and who goes: by that somebody who waited for microphone or sound finds that the room was left meanwhile. */
  #entry = 0;
  /** One message of the server at a time: some wait for the sound, and so does a change of it. */
  #inbox: Promise<void> = Promise.resolve();
  /** Why the door stays closed, as it was said last since somebody wanted in. */
  #trouble: Trouble | null = null;
  /** What was said at the door, or is to be said there since the owner locked the room. */
  #passphrase: string | null = null;
  /** Whether the microphone was on when the room was left. */
  #hadMicrophone = false;

  /** `beginsWithLoop`: one hears oneself through the network as soon as one is in. */
  constructor(
    store: Store,
    sound: RunningSound,
    devices: OwnDevices,
    members: Members,
    beginsWithLoop: boolean,
  ) {
    this.#store = store;
    this.#sound = sound;
    this.#devices = devices;
    this.#members = members;
    this.#beginsWithLoop = beginsWithLoop;
    // A page that goes away says so, instead of leaving the others to wait for its return.
    addEventListener("pagehide", () => this.#signalling?.leave());
    // Browsers may bring it back as it was.
    addEventListener("pageshow", ({ persisted }) => persisted && this.#comeBack());
  }

  /** What the others call one. */
  get ownName(): string {
    return this.#store.state.settings.name;
  }

  // ---- Coming and going ----

  async join({ passphrase, microphone = false }: Entry = {}): Promise<void> {
    if (passphrase !== undefined) this.#passphrase = passphrase.trim() || null;
    this.#store.clear("server");
    this.#trouble = null;
    this.#store.set({ phase: "joining" });
    const entry = ++this.#entry;
    const isOver = () => entry !== this.#entry;
    try {
      if (microphone) await this.#devices.enableMicrophone();
      if (isOver()) return;
      await this.#sound.start();
    } catch (error) {
      if (isOver()) return;
      this.#store.set({ phase: "lobby" });
      this.#sound.failed(error);
      return;
    }
    if (isOver()) return;
    const signalling = new Signalling(
      this.#store.state.room,
      this.#secret,
      {
        name: this.ownName,
        sample_rate_hz: this.#sound.rateHz,
        ...(this.#passphrase === null ? {} : { passphrase: this.#passphrase }),
      },
      (message) => {
        this.#inTurn(async () => {
          if (this.#signalling === signalling) await this.#handleServer(message);
        }).catch((error) => this.#messageFailed(error));
      },
      (status, trouble) => this.#handleStatus(status, trouble),
    );
    this.#signalling = signalling;
  }

  rejoin(): Promise<void> {
    return this.join({ microphone: this.#hadMicrophone });
  }

  async toLobby(): Promise<void> {
    this.#store.set({ phase: "lobby" });
    if (this.#hadMicrophone) await this.#devices.enableMicrophone();
  }

  leave(): void {
    this.#end("left");
  }

  /** To where it was when the page went away. */
  #comeBack(): void {
    this.stopJoining();
    if (this.#store.state.phase !== "joined") return;
    this.leave();
    void this.rejoin();
  }

  stopJoining(): void {
    const { phase, passphrase } = this.#store.state;
    if (phase === "joining") this.#backToLobby(passphrase);
  }

  #end(phase: "left" | "failed" | "removed"): void {
    this.#disconnect(phase);
    void this.#sound.stop();
    this.#devices.microphone.close();
    const { microphone } = this.#store.state;
    this.#hadMicrophone = microphone === "on" || microphone === "asking" || microphone === "ended";
    this.#sound.setRelay(null);
    this.#store.set({ looping: false, microphone: "unasked", signalling: "offline", passphrase: "none" });
  }

  /** With the microphone on. */
  #backToLobby(passphrase: StudioState["passphrase"]): void {
    this.#disconnect("lobby");
    this.#sound.setRelay(null);
    this.#store.set({ looping: false, signalling: "offline", passphrase });
  }

  /** From the room: its members go, and what was said of the server with it. First the phase, or each of them would be said to leave. */
  #disconnect(phase: StudioState["phase"]): void {
    this.#entry++;
    this.#store.set({ phase });
    this.#signalling?.leave();
    this.#signalling = null;
    this.#members.removeAll();
    this.#mutedNames.clear();
    this.#setMutedByOwner(false);
    this.#store.end("server-gone", "not-ordered", "ice", "unlocked", "not-owner");
  }

  /** In a room by joining it anew: the lanes end with the worker that has them. */
  async recoverSound(): Promise<void> {
    if (this.#store.state.phase === "lobby") {
      await this.#sound.restart().catch((error) => this.#sound.failed(error));
      return;
    }
    this.leave();
    await this.rejoin();
  }

  /** Starts the sound anew for a quantum that was chosen. Not in a room: lanes would end with their worker. A welcome waits meanwhile: lanes need the sound. */
  followQuantum(): Promise<void> {
    return this.#inTurn(async () => {
      await this.#sound.started();
      const { current } = this.#sound;
      const { phase, settings } = this.#store.state;
      if (current === null || current.quantum === settings.quantum || phase === "joined") return;
      await this.#sound.restart().catch((error) => {
        this.stopJoining();
        this.#sound.failed(error);
      });
    });
  }

  #inTurn(act: () => Promise<void>): Promise<void> {
    const done = this.#inbox.then(act);
    this.#inbox = done.catch(() => {});
    return done;
  }

  // ---- What the server is told ----

  rename(): void {
    this.#signalling?.rename(this.ownName);
  }

  /** False if it could not be sent now. */
  signal(to: string, data: PeerSignal): boolean {
    return this.#signalling?.send({ type: "signal", to, data }) ?? false;
  }

  moderate(id: string, action: "mute" | "unmute" | "remove"): boolean {
    return this.#ordered(this.#signalling?.send({ type: "moderate", to: id, action }));
  }

  lock(passphrase: string | null): boolean {
    return this.#ordered(this.#signalling?.lock(passphrase?.trim() ?? null));
  }

  /** Whether what the room's owner wants has reached the server. It is not kept until it does: by then it may be the wrong thing. */
  #ordered(isSent = false): boolean {
    // Also to be said anew: a screen reader says what enters the page.
    this.#store.clear("not-ordered");
    if (isSent) return true;
    this.#store.raise({
      id: "not-ordered",
      severity: "error",
      title: "Nothing has changed: the server does not answer.",
      remedy: "Do it again when the server is back.",
    });
    return false;
  }

  // ---- What the server says ----

  #handleStatus(signalling: StudioState["signalling"], trouble?: Trouble): void {
    this.#store.set({ signalling });
    if (signalling === "connecting") this.#sound.current?.holdRelay();
    if (signalling === "online") this.#store.end("server-gone", "not-ordered");
    // In the room, a line of the page says it: a card would push everyone's controls away.
    else if (this.#store.state.phase === "joining" && trouble !== undefined && trouble !== this.#trouble) {
      // It is found at each try, and may have been dismissed.
      this.#trouble = trouble;
      this.#store.raise({ id: "server-gone", severity: "error", ...closedDoorWords[trouble] });
    }
  }

  /** What the server said could not be done: who is not in yet can try again. */
  #messageFailed(error: unknown): void {
    this.stopJoining();
    this.#store.raise({
      id: "server",
      severity: "error",
      title: "This page could not do what the server said.",
      remedy: `Reload it, or take another browser. The browser says: ${String(error)}`,
    });
  }

  async #handleServer(message: FromServer): Promise<void> {
    switch (message.type) {
      case "welcome":
        await this.#handleWelcome(message);
        break;
      case "joined":
        this.#members.meet(message.participant, false);
        this.#muteAgain(message.participant.id);
        break;
      case "away":
        this.#members.update(message.id, { present: false });
        break;
      case "back":
        this.#members.update(message.id, { present: true });
        this.#members.sayAgain(message.id);
        break;
      case "renamed":
        this.#members.rename(message.id, message.name);
        break;
      case "left":
        this.#keepMuted(message.id);
        this.#members.remove(message.id);
        break;
      case "owner":
        this.#members.setOwner(message.id);
        if (message.id === this.#members.selfId) this.#store.end("not-owner");
        break;
      case "muted":
        if (message.id === this.#members.selfId) this.#setMutedByOwner(message.muted);
        else {
          this.#members.update(message.id, { mutedByOwner: message.muted });
          if (!message.muted) this.#mutedNames.delete(this.#members.get(message.id)?.name ?? "");
        }
        break;
      case "locked":
        this.#passphrase = message.passphrase;
        if (message.locked) this.#store.end("unlocked");
        this.#store.set({ locked: message.locked, roomPassphrase: message.passphrase });
        break;
      case "relay":
        this.#sound.setRelay(message.relay);
        break;
      case "signal":
        this.#members.peer(message.from)?.handle(message.data);
        break;
      case "error":
        this.#handleServerError(message.code, message.message);
        break;
    }
  }

  /** Whom one has muted for everyone does not get out of it by loading the page anew. */
  #keepMuted(id: string): void {
    const member = this.#members.get(id);
    if (member === undefined || !this.#store.state.isOwner || !member.participant.mutedByOwner) return;
    // Its page may have ended without a word, and be back before the server knows.
    if (this.#namesakes(member).length === 0 && !NOBODY.has(member.name)) this.#mutedNames.add(member.name);
  }

  #muteAgain(id: string): void {
    const member = this.#members.get(id);
    if (member === undefined || !this.#store.state.isOwner || NOBODY.has(member.name)) return;
    const others = this.#namesakes(member);
    const isBack = others.length === 1 && others.every(isMutedAndAway);
    if (this.#mutedNames.delete(member.name) || isBack) this.moderate(id, "mute");
  }

  #namesakes(member: Member): Member[] {
    return this.#members.all.filter((other) => other !== member && other.name === member.name);
  }

  async #handleWelcome(welcome: Welcome): Promise<void> {
    this.#members.enter(welcome.id, this.#accepted(welcome.ice_servers));
    if (welcome.sample_rate_hz !== this.#sound.rateHz) {
      this.#sound.rateHz = welcome.sample_rate_hz;
      // Their lanes end with the worker that has them.
      this.#members.removeAll();
      const { microphone } = this.#store.state;
      const signalling = this.#signalling;
      if (microphone === "on" || microphone === "mismatched")
        await this.#devices.microphone.enable(this.#sound.rateHz);
      // It ended with the room that was left meanwhile; in the lobby it goes on, and is to have this rate.
      if (this.#sound.current === null) return;
      try {
        await this.#sound.restart();
      } catch (error) {
        if (this.#signalling !== signalling) return;
        this.#backToLobby("none");
        this.#sound.failed(error);
      }
      if (this.#signalling !== signalling) return;
    }
    if (!welcome.locked) this.#passphrase = null;
    this.#sound.setRelay(welcome.relay);
    this.#members.meetAll(welcome.participants, welcome.resumed);
    const isFirst = this.#store.state.phase !== "joined";
    if (welcome.locked) this.#store.end("unlocked");
    else if (this.#store.state.locked && !isFirst && !welcome.resumed) this.#sayUnlocked();
    if (isFirst) this.#devices.adviseLaunch();
    else this.#sound.current?.doubtLanes();
    // First who owns the room: whoever comes in is told of changes from then on.
    const hadRoom = !isFirst && this.#store.state.isOwner;
    this.#members.setOwner(welcome.owner);
    if (this.#store.state.isOwner) this.#store.end("not-owner");
    else if (hadRoom) this.#sayOwnedBy(welcome.owner);
    const { locked } = welcome;
    this.#store.set({ phase: "joined", locked, roomPassphrase: this.#passphrase, passphrase: "none" });
    this.#setMutedByOwner(welcome.muted);
    if ((isFirst && this.#beginsWithLoop) || this.#store.state.looping) this.#members.setLoop(true);
  }

  /** A server that was restarted made the room again without its lock. */
  #sayUnlocked(): void {
    this.#store.raise({
      id: "unlocked",
      severity: "warning",
      title: "This room was locked, and is unlocked now.",
      remedy:
        "The server has started anew, and somebody without the passphrase was back first. Look who is here; the room's owner can lock it again.",
    });
  }

  /** A server that was restarted, or that one was away from for long, gives the room to who is there first. */
  #sayOwnedBy(id: string): void {
    const name = this.#members.get(id)?.participant.name ?? "Somebody else";
    this.#store.raise({
      id: "not-owner",
      severity: "warning",
      title: `${name} owns the room now, no longer you.`,
      remedy:
        "The server has started anew, or you were away from it for too long, and they were there first. Ask them to lock the room, or to mute or remove somebody.",
    });
  }

  #handleServerError(code: string, text: string): void {
    // What the server says itself helps where something is broken; elsewhere it only says the same again.
    const remedies: Record<string, [title: string, remedy: string]> = {
      room_full: ["The room is full.", "Ask somebody to leave, or make a new room."],
      server_full: ["The server is full.", "Try again in a minute, or ask whoever runs it."],
      bad_version: ["This page is older or newer than the server.", `Reload it. (${text})`],
      replaced: [
        "This session was taken over.",
        "Another page resumed it. Press “Try again” to continue here.",
      ],
      bad_message: ["The server did not understand this page.", `Reload it. (${text})`],
    };
    const stopped = stoppedBy(code, this.#passphrase !== null, this.#signalling?.wasIn === true);
    if (stopped !== null) {
      this.#askForPassphrase(stopped);
      return;
    }
    if (code === "not_now")
      this.#store.raise({
        id: "not-ordered",
        severity: "error",
        title: "Your last change was not made: too many were made here at once.",
        remedy: "Make it again in a few seconds.",
      });
    // The page of those who were removed says all there is to say.
    if (code === "removed") this.#end("removed");
    const known = remedies[code];
    // The others end by themselves: the connection is retried, or the peer has left.
    if (known === undefined) return;
    this.#end("failed");
    const [title, remedy] = known;
    // As it is, this page would fail again.
    const action = { label: "Reload the page", run: () => location.reload() };
    const isStale = code === "bad_version" || code === "bad_message";
    this.#store.raise({ id: "server", severity: "error", title, remedy, ...(isStale ? { action } : {}) });
  }

  #askForPassphrase(passphrase: Stopped): void {
    this.#passphrase = null;
    this.#store.set({ refusals: this.#store.state.refusals + 1 });
    this.#backToLobby(passphrase);
  }

  #accepted(servers: RTCIceServer[]): RTCIceServer[] {
    const taken = accepted(servers);
    if (taken.length === servers.length) {
      this.#store.clear("ice");
      return taken;
    }
    this.#store.raise({
      id: "ice",
      severity: "warning",
      title: "This browser refuses something that the server offers to find ways through firewalls.",
      remedy:
        "If somebody cannot be reached, another browser may help. Whoever runs the server should check its ICE servers.",
    });
    return taken;
  }

  #setMutedByOwner(mutedByOwner: boolean): void {
    this.#store.set({ mutedByOwner });
    if (!mutedByOwner) {
      this.#store.clear("muted-by-owner");
      return;
    }
    this.#store.raise({
      id: "muted-by-owner",
      severity: "error",
      title: "The room's owner has muted you: nobody hears you.",
      remedy: "Only the owner can change that. You still hear the others.",
    });
  }
}

function isMutedAndAway({ participant }: Member): boolean {
  return participant.mutedByOwner && !participant.present;
}
