/** The connection to the server: docs/protocol.md, "Signalling". Reconnects by itself, keeping the identity. */

import type { RelayOffer } from "../shared/relay";

export interface RemoteParticipant {
  id: string;
  /** Its number in the room, which the relay's datagrams carry. */
  stream: number;
  name: string;
  present: boolean;
  /** By the owner, for everyone. */
  muted: boolean;
}

export interface Welcome {
  type: "welcome";
  version: number;
  id: string;
  room: string;
  sample_rate_hz: number;
  participants: RemoteParticipant[];
  owner: string;
  locked: boolean;
  /** Oneself, by the owner. */
  muted: boolean;
  ice_servers: RTCIceServer[];
  relay: RelayOffer | null;
  resumed: boolean;
}

export type FromServer =
  | Welcome
  | { type: "joined"; participant: RemoteParticipant }
  | { type: "away" | "back" | "left"; id: string }
  | { type: "renamed"; id: string; name: string }
  | { type: "owner"; id: string }
  | { type: "muted"; id: string; muted: boolean }
  | { type: "locked"; locked: boolean; passphrase: string | null }
  | { type: "relay"; relay: RelayOffer | null }
  | { type: "signal"; from: string; data: unknown }
  | { type: "error"; code: string; message: string };

export type Status = "offline" | "connecting" | "online";

/** Why there is no connection yet: the server is silent, or answers and takes no WebSocket of ours. */
export type Trouble = "silent" | "refuses";

const PROTOCOL_VERSION = 1;
/** Of a message: the server closes the connection of who sends a longer one, for good. */
const MAX_MESSAGE_BYTES = 65_536;
/** Between looks whether the server is back: doubled each time, and short to the end, so that all are back within 3 s. */
const FIRST_RETRY_MS = 250;
const LAST_RETRY_MS = 1_500;
/** A server that does not answer within so long is asked anew: it may have come back meanwhile. */
const PATIENCE_MS = 2_000;
/**
 * How often the server is asked for a sign of life, and how long it may take: a connection whose network has changed is dead, and
 * browsers say so only after minutes.
 */
const ASK_MS = 5_000;
/** One WebSocket that fails may be a server that stops at that moment. */
const REFUSALS = 2;
/** After these, trying again would change nothing. */
const FINAL_ERRORS = new Set([
  "bad_message",
  "bad_version",
  "room_full",
  "replaced",
  "passphrase",
  "removed",
]);

/** What the server is told first. */
export interface Hello {
  name: string;
  sample_rate_hz: number;
  /** Of a locked room: as it was said at the door, and then as the server says it. */
  passphrase?: string;
}

export class Signalling {
  readonly #room: string;
  readonly #hello: Hello;
  readonly #receive: (message: FromServer) => void;
  readonly #report: (status: Status, trouble?: Trouble) => void;
  readonly #secret: string;
  #socket: WebSocket | null = null;
  #retryMs = FIRST_RETRY_MS;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #asker: ReturnType<typeof setInterval> | undefined;
  /** By `Date.now()`, which goes on while the computer sleeps. */
  #askedAtMs = 0;
  /** Whether nothing has come since the server was asked. */
  #isOwed = false;
  /** Whether it was asked once more though it owed an answer. */
  #isExcused = false;
  #selfId: string | null = null;
  #closed = false;
  #wasIn = false;
  /** WebSockets in a row that never opened. */
  #refusals = 0;

  /** `secret`: that of `newSecret`, the same for as long as the page is there. */
  constructor(
    room: string,
    secret: string,
    hello: Hello,
    receive: (message: FromServer) => void,
    report: (status: Status, trouble?: Trouble) => void,
  ) {
    this.#room = room;
    this.#secret = secret;
    this.#hello = hello;
    this.#receive = receive;
    this.#report = report;
    addEventListener("online", this.#lookNow);
    addEventListener("visibilitychange", this.#lookNow);
    this.#connect();
  }

  /** Whether the server has ever let this identity in. */
  get wasIn(): boolean {
    return this.#wasIn;
  }

  /** False while there is no connection, and where it is too long: the message is dropped. */
  send(message: { type: string } & Record<string, unknown>): boolean {
    if (this.#socket?.readyState !== WebSocket.OPEN) return false;
    const text = JSON.stringify(message);
    if (new TextEncoder().encode(text).length > MAX_MESSAGE_BYTES) return false;
    this.#socket.send(text);
    return true;
  }

  rename(name: string): void {
    this.#hello.name = name;
    this.send({ type: "rename", name });
  }

  /** By the owner only; null opens the room again. False as `send`. */
  lock(passphrase: string | null): boolean {
    return this.send({ type: "lock", passphrase });
  }

  leave(): void {
    this.send({ type: "leave" });
    this.#stop();
  }

  #stop(): void {
    this.#closed = true;
    clearTimeout(this.#timer);
    clearInterval(this.#asker);
    removeEventListener("online", this.#lookNow);
    removeEventListener("visibilitychange", this.#lookNow);
    this.#socket?.close();
    this.#report("offline");
  }

  #connect(): void {
    this.#report("connecting");
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}/ws/${this.#room}`);
    this.#socket = socket;
    this.#startAsking();
    this.#heard();
    this.#refusals++;
    socket.onopen = () => {
      this.#refusals = 0;
      const first = { type: "hello", version: PROTOCOL_VERSION, secret: this.#secret, ...this.#hello };
      this.send(this.#wasIn ? { ...first, returning: true } : first);
    };
    socket.onmessage = ({ data }) => {
      if (this.#socket !== socket) return;
      this.#heard();
      if (typeof data === "string") this.#handle(data);
    };
    socket.onclose = () => {
      if (this.#closed || this.#socket !== socket) return;
      this.#report("connecting");
      this.#schedule();
    };
  }

  #startAsking(): void {
    clearInterval(this.#asker);
    this.#askedAtMs = Date.now();
    this.#asker = setInterval(() => this.#askAgain(), ASK_MS);
  }

  #heard(): void {
    this.#isOwed = this.#isExcused = false;
  }

  /** What is sent to oneself comes back. */
  #ask(): void {
    this.#isOwed = true;
    if (this.#selfId !== null) this.send({ type: "signal", to: this.#selfId, data: {} });
  }

  #askAgain(): void {
    const elapsedMs = Date.now() - this.#askedAtMs;
    this.#askedAtMs += elapsedMs;
    // An answer may have come, and be handled only after this, if the computer slept or the page stood still. But once only: a page in the
    // background may be woken once a minute, and no more, for as long as it is there.
    const isExcused = elapsedMs >= 2 * ASK_MS && !this.#isExcused;
    if (this.#isOwed && !isExcused) this.#replace();
    else {
      this.#isExcused = this.#isOwed;
      this.#ask();
    }
  }

  /** Closing waits for an answer, too; but of what has not opened yet it is the end at once, and then the server is looked for. */
  #replace(): void {
    const socket = this.#socket;
    if (socket?.readyState === WebSocket.CLOSED) return;
    if (socket?.readyState !== WebSocket.CONNECTING) this.#connect();
    socket?.close();
  }

  #schedule(): void {
    clearTimeout(this.#timer);
    // Spread by a random half, so that a restarted server is not stormed.
    this.#timer = setTimeout(() => void this.#lookForServer(), this.#retryMs * (0.5 + Math.random()));
    this.#retryMs = Math.min(LAST_RETRY_MS, this.#retryMs * 2);
  }

  /** By a plain request: after some WebSockets that failed, Chromium delays the next by up to 5 s. */
  async #lookForServer(): Promise<void> {
    const signal = AbortSignal.timeout(PATIENCE_MS);
    const isThere = await fetch("/healthz", { cache: "no-store", signal }).then(
      // With JSON the server itself says that it is not well. It may still let one in; a proxy before none says so in HTML.
      ({ ok, headers }) => ok || headers.get("content-type") === "application/json",
      () => false,
    );
    if (this.#closed || this.#socket?.readyState !== WebSocket.CLOSED) return;
    if (!isThere) this.#report("connecting", "silent");
    else if (this.#refusals >= REFUSALS) this.#report("connecting", "refuses");
    if (isThere) this.#connect();
    else this.#schedule();
  }

  /** The network has changed, or somebody looks at the page again. */
  readonly #lookNow = (): void => {
    if (this.#socket?.readyState === WebSocket.CLOSED) {
      clearTimeout(this.#timer);
      this.#connect();
    } else {
      this.#startAsking();
      this.#ask();
    }
  };

  #handle(text: string): void {
    let message: FromServer;
    try {
      message = Object(JSON.parse(text)) as FromServer;
    } catch {
      return;
    }
    if (message.type === "welcome") {
      // When this page left, the server did not hear it, and the others would go on with what is forgotten here.
      // It leaves again; the server closes the connection, and it comes in anew.
      if (message.resumed && !this.#wasIn) {
        this.send({ type: "leave" });
        return;
      }
      // The room's, should a server that was restarted have to make it again.
      this.#hello.sample_rate_hz = message.sample_rate_hz;
      if (!message.locked) this.#setPassphrase(null);
      this.#retryMs = FIRST_RETRY_MS;
      this.#wasIn = true;
      this.#selfId = message.id;
      this.#report("online");
    }
    if (message.type === "locked") this.#setPassphrase(message.passphrase);
    // At the door the user is told to wait; who was in comes back by itself.
    const isFinal = (code: string) => FINAL_ERRORS.has(code) || (code === "too_fast" && !this.#wasIn);
    if (message.type === "error" && isFinal(message.code)) this.#stop();
    this.#receive(message);
  }

  /** To come in again after long, and to lock the room as before, should a server that was restarted have to make it again. */
  #setPassphrase(passphrase: string | null): void {
    if (passphrase === null) delete this.#hello.passphrase;
    else this.#hello.passphrase = passphrase;
  }
}

/** Who one is: an owner's mute goes with it. */
export function newSecret(): string {
  return hex(crypto.getRandomValues(new Uint8Array(32)));
}

function hex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
