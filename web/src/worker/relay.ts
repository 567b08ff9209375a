/** The server's relay over WebTransport: sessions as lanes, and the control stream. docs/protocol.md, "Relay". */

import {
  type FromRelay,
  type Listen,
  MAX_CONTROL_BYTES,
  NOBODY,
  parseControl,
  type RelayOffer,
  type RelayStatistics,
  type Wanted,
} from "../shared/relay";
import { RETIRED_MS, spareOf } from "../shared/spare";
import type { LaneChannel } from "./lane";

export const MAX_SESSIONS = 4;
/** What waits in the browser for longer is dropped there; what comes may wait for this thread for longer, and is then played or not. */
const OUTGOING_MAX_AGE_MS = 100;
const INCOMING_MAX_AGE_MS = 500;
/**
 * Datagrams that Chromium has under way out of this process at most: the next waits until this thread hears of the newest of them. At one, each of a block waited for the news of
 * the one before it, the last for 20 to 40 ms while this thread collected garbage (decision 19). But three of four are not seen waiting, so no more than it takes.
 */
const OUTGOING_HIGH_WATER_MARK = 4;
/** Datagrams that may wait for this thread: half a second of 3 streams. By default a browser keeps one, and drops the older. */
const INCOMING_HIGH_WATER_MARK = 512;
/** Between attempts to open a session: doubled each time. */
const FIRST_RETRY_MS = 250;
const LAST_RETRY_MS = 4_000;
/** After one that was open for so long they begin anew: the relay also ends some that it has opened. */
const LASTING_MS = 5_000;
/** The relay takes 20 control messages a second; a fader that moves makes more. */
const CONTROL_INTERVAL_MS = 100;
/** It makes four mixes of other shapes at once, and one a second in the long run; who asks for more loses the session. */
const SHAPE_INTERVAL_MS = 1_000;
/** A mix that was refused is asked for again when the relay has said so often, once a second, that it is: others may have left meanwhile. */
const MIX_REFUSALS = 10;
/** Probes go every half a second: a session that answers none for so long is dead, though the browser has not noticed. */
const SILENT_MS = 4_000;
/** One that has not opened after so long never does. Chromium delays what follows many that failed by up to a minute and a half. */
const OPENING_MS = 120_000;
/** So long after the last review this thread itself has stood still, and the other end is not to blame. */
const STANDSTILL_MS = 1_000;
/** Close codes after which the same token will not do: unknown, and of one who left or was removed. */
const REFUSED = new Set([1, 4]);

/** What the relay's sessions are to whoever spreads datagrams over lanes. */
export interface RelayHost {
  addLane(number: number, channel: LaneChannel): void;
  closeLane(number: number): void;
  /** Nothing more is sent on it; it is closed once what is under way on it has come. */
  retireLane(number: number): void;
  /** When the lane last answered a probe, ms of `performance.now()`; null before it has. */
  answeredAtMs(number: number): number | null;
  /** `wanted` or `statistics` came, or the last session is gone. */
  changed(): void;
}

/** Opens the WebTransport session; tests replace it. */
export type OpenTransport = (url: string, options: WebTransportOptions) => WebTransport;

/** The sessions with the relay, through all reconnections. */
export class Relay {
  /** How many take our stream by the relay: at 0 there is no use in sending. */
  wanted: Wanted = NOBODY;
  /** Of the newest session's control stream; null before it says so. */
  statistics: RelayStatistics | null = null;
  readonly #host: string;
  readonly #lanes: RelayHost;
  readonly #open: OpenTransport;
  #offer: RelayOffer | null = null;
  #isHeld = false;
  #isNeeded = true;
  #sessions: Session[] = [];
  #count = 1;
  #retryMs = FIRST_RETRY_MS;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #listen: Listen = { forward: [], mix: null, opus: true };
  #control: Control | null = null;
  #reviewedAtMs = Number.POSITIVE_INFINITY;
  #stoodStillAtMs = 0;

  /** `host`: name of the page's own host. */
  constructor(
    host: string,
    lanes: RelayHost,
    open: OpenTransport = (url, options) => new WebTransport(url, options),
  ) {
    this.#host = host;
    this.#lanes = lanes;
    this.#open = open;
  }

  /** Which relay to use from now on; null for none. Sessions of the same token stay. */
  setOffer(offer: RelayOffer | null): void {
    const isSame = offer !== null && offer.token === this.#offer?.token && offer.port === this.#offer.port;
    this.#offer = offer;
    this.#isHeld = false;
    this.#retryMs = FIRST_RETRY_MS;
    if (!isSame) for (const session of [...this.#sessions]) this.#end(session);
    this.#adjust();
  }

  /**
   * Opens no session until the next offer, which comes as soon as the server is back. After some that failed, Chromium delays the next
   * by seconds.
   */
  hold(): void {
    this.#isHeld = true;
  }

  /** Whether somebody may come or go by the relay. What is open stays open: it may soon be needed again. */
  setNeeded(isNeeded: boolean): void {
    if (isNeeded === this.#isNeeded) return;
    this.#isNeeded = isNeeded;
    this.#adjust();
  }

  /** How many sessions there shall be. */
  setSessions(count: number): void {
    this.#count = Math.min(MAX_SESSIONS, Math.max(1, count));
    this.#adjust();
  }

  /** What to take from the relay; it is told again whenever the control stream is opened anew. */
  setListen(listen: Listen): void {
    this.#listen = listen;
    this.#control?.say(listen);
  }

  /** Gives up sessions that answer no more, or never open; to be called now and then. `nowMs`: performance.now(). */
  review(nowMs: number): void {
    // What answered meanwhile has not been looked at.
    if (nowMs - this.#reviewedAtMs > STANDSTILL_MS) this.#stoodStillAtMs = nowMs;
    this.#reviewedAtMs = nowMs;
    for (const session of [...this.#sessions]) {
      const { openedAtMs, madeAtMs } = session;
      const answeredAtMs = this.#lanes.answeredAtMs(session.number) ?? 0;
      const sinceMs = Math.max(openedAtMs ?? madeAtMs, answeredAtMs, this.#stoodStillAtMs);
      if (nowMs - sinceMs > (openedAtMs === null ? OPENING_MS : SILENT_MS)) this.#ended(session, null);
    }
  }

  #adjust(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    if (this.#offer === null || this.#isHeld || !this.#isNeeded) return;
    for (let number = 0; number < this.#count; number++) {
      // It is gone with the first session that this browser does not make.
      if (this.#offer === null) return;
      if (!this.#sessions.some((session) => session.number === number)) this.#make(number, this.#offer);
    }
    this.#endSpare();
  }

  #endSpare(): void {
    const look = ({ number, readyState }: Session) => ({ number, isOpen: readyState === "open" });
    for (const session of spareOf(this.#sessions, this.#count, look)) {
      if (session.readyState === "open") this.#retire(session);
      else this.#end(session);
    }
  }

  #make(number: number, { port, token, certificate_hashes }: RelayOffer): void {
    const options: WebTransportOptions = { congestionControl: "low-latency", requireUnreliable: true };
    if (certificate_hashes.length > 0) {
      options.serverCertificateHashes = certificate_hashes.map((hash) => ({
        algorithm: "sha-256",
        value: fromHex(hash),
      }));
    }
    let transport: WebTransport;
    try {
      transport = this.#open(`https://${this.#host}:${port}/relay/${token}`, options);
    } catch {
      // No WebTransport in this browser, or not this one: the same would happen again.
      this.#offer = null;
      return;
    }
    const session = new Session(number, transport);
    this.#sessions.push(session);
    session.opened.then(
      () => {
        if (!this.#sessions.includes(session)) return;
        this.#lanes.addLane(number, session);
        if (this.#control === null) this.#openControl(session);
        this.#endSpare();
      },
      () => this.#ended(session, null),
    );
    session.closed.then((code) => this.#ended(session, code));
  }

  #openControl(session: Session): void {
    let refusals = 0;
    const control = new Control(session.transport, (message) => {
      if (this.#control !== control) return;
      if (message.type === "wanted") this.wanted = message;
      else {
        this.statistics = message;
        refusals = message.mix_refused ? refusals + 1 : 0;
        if (refusals > 0 && refusals % MIX_REFUSALS === 0) control.say(this.#listen);
      }
      this.#lanes.changed();
    });
    this.#control = control;
    session.control = control;
    control.say(this.#listen);
    // Without it the relay does not know what to send: another session, and another stream.
    control.ended.then(() => this.#ended(session, null));
  }

  /** By itself: it is made anew, unless the relay refuses the token. */
  #ended(session: Session, code: number | null): void {
    if (!this.#sessions.includes(session)) return;
    this.#end(session);
    if (code !== null && REFUSED.has(code)) {
      this.#offer = null;
      return;
    }
    const nowMs = performance.now();
    if (nowMs - (session.openedAtMs ?? nowMs) > LASTING_MS) this.#retryMs = FIRST_RETRY_MS;
    // Of several that fail together all are made anew at once, and it is one failure.
    if (this.#timer !== undefined) return;
    this.#timer = setTimeout(() => this.#adjust(), this.#retryMs);
    this.#retryMs = Math.min(LAST_RETRY_MS, this.#retryMs * 2);
  }

  #end(session: Session): void {
    session.close();
    this.#lanes.closeLane(session.number);
    this.#forget(session);
  }

  /** What the relay sends on it until it hears of that shall still come. */
  #retire(session: Session): void {
    session.control ??= new Control(session.transport, () => undefined);
    session.control.retire();
    this.#lanes.retireLane(session.number);
    // Its lane closes it as well, but may not have been made yet.
    setTimeout(() => session.close(), RETIRED_MS);
    this.#forget(session);
  }

  #forget(session: Session): void {
    this.#sessions = this.#sessions.filter((other) => other !== session);
    if (session.control === null || session.control !== this.#control) return;
    this.#control = null;
    this.statistics = null;
    const next = this.#sessions.find(({ readyState }) => readyState === "open");
    if (next !== undefined) this.#openControl(next);
    else this.wanted = NOBODY;
    this.#lanes.changed();
  }
}

/** The standard has had `createWritable` in place of `writable` for some time, and Safari has it alone; TypeScript's library does not know it yet. */
type Datagrams = WebTransportDatagramDuplexStream & { createWritable(): WritableStream<Uint8Array> };

/** One session, as a lane sees it: what a data channel is elsewhere. */
class Session implements LaneChannel {
  readonly number: number;
  readonly transport: WebTransport;
  readyState: LaneChannel["readyState"] = "connecting";
  /** Bytes that the browser has not taken yet. */
  bufferedAmount = 0;
  onmessage: LaneChannel["onmessage"] = null;
  onclose: LaneChannel["onclose"] = null;
  /** The one that was opened on this session, if it was. */
  control: Control | null = null;
  /** By `performance.now()`; null until it opens. */
  openedAtMs: number | null = null;
  readonly madeAtMs = performance.now();
  /** Rejects if it never opens, or is none that datagrams can be written to. */
  readonly opened: Promise<void>;
  /** Resolves to the application's close code; null if the connection failed. */
  readonly closed: Promise<number | null>;
  #writer: WritableStreamDefaultWriter<Uint8Array> | null = null;
  /** Views that the browser has let go of, by length, to be used again: one that it was handed lives until it collects all garbage, which holds up this thread. */
  readonly #spare: Uint8Array<ArrayBuffer>[][] = [];

  constructor(number: number, transport: WebTransport) {
    this.number = number;
    this.transport = transport;
    this.opened = transport.ready.then(() => this.#start());
    this.closed = transport.closed
      .then(
        ({ closeCode }) => closeCode ?? 0,
        () => null,
      )
      .finally(() => {
        this.readyState = "closed";
      });
  }

  #start(): void {
    const datagrams = this.transport.datagrams as Datagrams;
    // A datagram that waits longer is no use.
    datagrams.outgoingMaxAge = OUTGOING_MAX_AGE_MS;
    datagrams.outgoingHighWaterMark = OUTGOING_HIGH_WATER_MARK;
    datagrams.incomingMaxAge = INCOMING_MAX_AGE_MS;
    datagrams.incomingHighWaterMark = INCOMING_HIGH_WATER_MARK;
    this.#writer = (datagrams.writable ?? datagrams.createWritable()).getWriter();
    this.readyState = "open";
    this.openedAtMs = performance.now();
    void this.#read(datagrams.readable.getReader()).catch(() => undefined);
  }

  async #read(reader: ReadableStreamDefaultReader<Uint8Array<ArrayBuffer>>): Promise<void> {
    while (true) {
      const { value, done } = await reader.read();
      if (done) return;
      const isWhole = value.byteLength === value.buffer.byteLength;
      try {
        this.onmessage?.({ data: isWhole ? value.buffer : value.slice().buffer });
      } catch (error) {
        // As in a data channel, it costs this datagram, not all that would follow.
        reportError(error);
      }
    }
  }

  send(bytes: Uint8Array<ArrayBuffer>): void {
    if (this.#writer === null || this.readyState !== "open") throw new Error("not open");
    const { length } = bytes;
    // A copy of its own: the stream may hold it for a while, and `bytes` is mostly a view of an area that is used again.
    this.#spare[length] ??= [];
    const spare = this.#spare[length];
    const copy = spare.pop() ?? new Uint8Array(length);
    copy.set(bytes);
    this.bufferedAmount += length;
    const settled = () => {
      this.bufferedAmount -= length;
      spare.push(copy);
    };
    this.#writer.write(copy).then(settled, settled);
  }

  close(): void {
    if (this.readyState === "closed") return;
    this.readyState = "closed";
    this.control?.close();
    try {
      this.transport.close({ closeCode: 0 });
    } catch {
      // It never opened, or has failed: there is nothing to close.
    }
  }
}

/** The control stream: lines of JSON. */
class Control {
  /** Resolves when it is over, whichever end ended it. */
  readonly ended: Promise<void>;
  readonly #stream: Promise<WebTransportBidirectionalStream>;
  #next: Listen | null = null;
  /** Of the mix that was asked for last, and when it became so. */
  #shape: string | null = null;
  #shapedAtMs = Number.NEGATIVE_INFINITY;
  #isSaying = false;
  #isRetired = false;
  #isClosed = false;

  constructor(transport: WebTransport, receive: (message: FromRelay) => void) {
    this.#stream = transport.createBidirectionalStream();
    this.ended = this.#read(receive).catch(() => undefined);
  }

  /** What to take, now or, if the last was said a moment ago, then. */
  say(listen: Listen): void {
    this.#next = listen;
    if (!this.#isSaying) void this.#say().catch(() => undefined);
  }

  /** Nothing more is to be sent on this session. */
  retire(): void {
    this.#isRetired = true;
    if (!this.#isSaying) void this.#say().catch(() => undefined);
  }

  close(): void {
    this.#isClosed = true;
  }

  async #say(): Promise<void> {
    this.#isSaying = true;
    try {
      const { writable } = await this.#stream;
      const writer = writable.getWriter();
      try {
        while ((this.#isRetired || this.#next !== null) && !this.#isClosed) {
          if (this.#isRetired) {
            await writer.write(toLine({ type: "retire" }));
            return;
          }
          if (this.#next !== null && this.#mayShape(this.#next)) {
            const listen = this.#next;
            this.#next = null;
            await writer.write(toLine({ type: "listen", ...listen }));
          }
          await new Promise((resolve) => setTimeout(resolve, CONTROL_INTERVAL_MS));
        }
      } finally {
        writer.releaseLock();
      }
    } finally {
      this.#isSaying = false;
    }
  }

  /** Whether the mix may be of that shape now, as it then is; later the newest may. */
  #mayShape({ mix }: Listen): boolean {
    const shape = mix && `${mix.format} ${mix.packet_frames}`;
    const nowMs = performance.now();
    if (shape !== null && shape !== this.#shape) {
      if (nowMs - this.#shapedAtMs < SHAPE_INTERVAL_MS) return false;
      this.#shapedAtMs = nowMs;
    }
    this.#shape = shape;
    return true;
  }

  /** Until the stream ends, or says what the protocol does not know. */
  async #read(receive: (message: FromRelay) => void): Promise<void> {
    const { readable } = await this.#stream;
    const reader: ReadableStreamDefaultReader<Uint8Array> = readable.getReader();
    const decoder = new TextDecoder();
    let text = "";
    while (true) {
      const { value, done } = await reader.read();
      if (done) return;
      text += decoder.decode(value, { stream: true });
      const lines = text.split("\n");
      text = lines.pop() ?? "";
      for (const line of lines) {
        const message = parseControl(line);
        if (message === null) return;
        receive(message);
      }
      if (text.length > MAX_CONTROL_BYTES) return;
    }
  }
}

function toLine(message: { type: "retire" } | ({ type: "listen" } & Listen)): Uint8Array<ArrayBuffer> {
  return new TextEncoder().encode(`${JSON.stringify(message)}\n`);
}

function fromHex(hex: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(hex.match(/../g) ?? [], (digits) => Number.parseInt(digits, 16));
}
