/** The connection to the server: docs/protocol.md, "Signalling". Reconnects by itself, keeping the identity. */

export interface RemoteParticipant {
  id: string;
  name: string;
  present: boolean;
}

export interface Welcome {
  type: "welcome";
  version: number;
  id: string;
  room: string;
  sample_rate_hz: number;
  participants: RemoteParticipant[];
  ice_servers: RTCIceServer[];
  resumed: boolean;
}

export type FromServer =
  | Welcome
  | { type: "joined"; participant: RemoteParticipant }
  | { type: "away" | "back" | "left"; id: string }
  | { type: "renamed"; id: string; name: string }
  | { type: "signal"; from: string; data: unknown }
  | { type: "error"; code: string; message: string };

export type Status = "offline" | "connecting" | "online";

const PROTOCOL_VERSION = 1;
const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 10_000;
/** After these, trying again would change nothing. */
const FINAL_ERRORS = new Set(["bad_message", "bad_version", "room_full", "replaced"]);

export class Signalling {
  readonly #room: string;
  readonly #hello: { name: string; sample_rate_hz: number };
  readonly #receive: (message: FromServer) => void;
  readonly #report: (status: Status) => void;
  readonly #secret = hex(crypto.getRandomValues(new Uint8Array(32)));
  #socket: WebSocket | null = null;
  #retryMs = FIRST_RETRY_MS;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #closed = false;

  constructor(
    room: string,
    hello: { name: string; sample_rate_hz: number },
    receive: (message: FromServer) => void,
    report: (status: Status) => void,
  ) {
    this.#room = room;
    this.#hello = hello;
    this.#receive = receive;
    this.#report = report;
    addEventListener("online", this.#retryNow);
    this.#connect();
  }

  /** False while there is no connection: the message is dropped. */
  send(message: { type: string } & Record<string, unknown>): boolean {
    if (this.#socket?.readyState !== WebSocket.OPEN) return false;
    this.#socket.send(JSON.stringify(message));
    return true;
  }

  rename(name: string): void {
    this.#hello.name = name;
    this.send({ type: "rename", name });
  }

  leave(): void {
    this.send({ type: "leave" });
    this.#stop();
  }

  #stop(): void {
    this.#closed = true;
    clearTimeout(this.#timer);
    removeEventListener("online", this.#retryNow);
    this.#socket?.close();
    this.#report("offline");
  }

  #connect(): void {
    this.#report("connecting");
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}/ws/${this.#room}`);
    this.#socket = socket;
    socket.onopen = () => {
      this.send({ type: "hello", version: PROTOCOL_VERSION, secret: this.#secret, ...this.#hello });
    };
    socket.onmessage = ({ data }) => {
      if (this.#socket === socket && typeof data === "string") this.#handle(data);
    };
    socket.onclose = () => {
      if (this.#closed || this.#socket !== socket) return;
      this.#report("connecting");
      // Spread by a random half, so that a restarted server is not stormed.
      this.#timer = setTimeout(() => this.#connect(), this.#retryMs * (0.5 + Math.random()));
      this.#retryMs = Math.min(LAST_RETRY_MS, this.#retryMs * 2);
    };
  }

  readonly #retryNow = (): void => {
    if (this.#closed || this.#socket?.readyState !== WebSocket.CLOSED) return;
    clearTimeout(this.#timer);
    this.#connect();
  };

  #handle(text: string): void {
    let message: FromServer;
    try {
      message = JSON.parse(text) as FromServer;
    } catch {
      return;
    }
    if (message.type === "welcome") {
      // The room's, should a server that was restarted have to make it again.
      this.#hello.sample_rate_hz = message.sample_rate_hz;
      this.#retryMs = FIRST_RETRY_MS;
      this.#report("online");
    }
    if (message.type === "error" && FINAL_ERRORS.has(message.code)) this.#stop();
    this.#receive(message);
  }
}

function hex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
