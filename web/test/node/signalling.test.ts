import fc from "fast-check";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { Signalling } from "../../src/main/signalling";

/** As much of a WebSocket as the signalling uses. */
class Socket {
  static readonly CONNECTING = 0;
  static readonly OPEN = 1;
  static readonly CLOSED = 3;
  static all: Socket[] = [];
  readyState: number = Socket.CONNECTING;
  readonly sent: Record<string, unknown>[] = [];
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: unknown }) => void) | null = null;
  onclose: (() => void) | null = null;

  constructor() {
    Socket.all.push(this);
  }
  send(text: string): void {
    this.sent.push(JSON.parse(text));
  }
  say(message: Record<string, unknown>): void {
    this.onmessage?.({ data: JSON.stringify(message) });
  }
  close(): void {
    this.readyState = Socket.CLOSED;
    this.onclose?.();
  }
}

let page: EventTarget;

beforeEach(() => {
  vi.useFakeTimers();
  Socket.all = [];
  vi.stubGlobal("WebSocket", Socket);
  vi.stubGlobal("location", { protocol: "https:", host: "play.example" });
  page = new EventTarget();
  vi.stubGlobal("addEventListener", page.addEventListener.bind(page));
  vi.stubGlobal("removeEventListener", page.removeEventListener.bind(page));
  vi.stubGlobal("fetch", async () => ({ ok: true }));
});
afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

/** What a proxy says that finds no server. */
const badGateway = () =>
  new Response("<p>Bad gateway</p>", { status: 502, headers: { "content-type": "text/html" } });

/** The next connection, welcomed to a room that is locked or not, and the `hello` on it. */
async function welcomed(locked: boolean): Promise<[Socket, hello: Record<string, unknown>]> {
  await vi.advanceTimersByTimeAsync(2_000);
  const socket = Socket.all.at(-1)!;
  socket.readyState = Socket.OPEN;
  socket.onopen?.();
  socket.say({ type: "welcome", id: "oneself", sample_rate_hz: 48_000, locked });
  return [socket, socket.sent[0]!];
}

it("says the passphrase that the server told last when it comes in again", async () => {
  const hello = { name: "a", sample_rate_hz: 48_000 };
  const signalling = new Signalling("room", "secret", hello, vi.fn(), vi.fn());
  let [socket, said] = await welcomed(false);
  expect(said).not.toHaveProperty("passphrase");
  expect(said).not.toHaveProperty("returning");
  // What one asked for oneself is not yet so.
  signalling.lock("x");
  socket.close();
  [socket, said] = await welcomed(false);
  expect(said).not.toHaveProperty("passphrase");
  socket.say({ type: "locked", locked: true, passphrase: "x" });
  socket.close();
  [socket, said] = await welcomed(true);
  expect(said).toMatchObject({ passphrase: "x", returning: true });
  socket.say({ type: "locked", locked: false, passphrase: null });
  socket.close();
  [socket, said] = await welcomed(false);
  expect(said).not.toHaveProperty("passphrase");
  // Opened while one was away: one is not told, but sees it.
  socket.say({ type: "locked", locked: true, passphrase: "y" });
  socket.close();
  [socket, said] = await welcomed(false);
  expect(said.passphrase).toBe("y");
  socket.close();
  [, said] = await welcomed(false);
  expect(said).not.toHaveProperty("passphrase");
});

it("does not knock again by itself after too many wrong passphrases, but comes back where it was in", async () => {
  const heard = vi.fn();
  const status = vi.fn();
  const knock = () =>
    new Signalling(
      "room",
      "secret",
      { name: "a", sample_rate_hz: 48_000, passphrase: "guess" },
      heard,
      status,
    );
  const refuse = (socket: Socket) => {
    const message = { type: "error", code: "too_fast", message: "too many wrong passphrases; wait a minute" };
    socket.say(message);
    socket.close();
    expect(heard).toHaveBeenLastCalledWith(message);
  };
  const outside = knock();
  refuse(Socket.all[0]!);
  await vi.advanceTimersByTimeAsync(120_000);
  expect(Socket.all).toHaveLength(1);
  expect([outside.wasIn, status.mock.lastCall]).toEqual([false, ["offline"]]);

  const inside = knock();
  const [socket] = await welcomed(true);
  refuse(socket);
  await vi.advanceTimersByTimeAsync(2_000);
  expect(Socket.all.length).toBeGreaterThan(2);
  expect(inside.wasIn).toBe(true);
});

it("tells a server that is silent from one that takes no connection, and goes on trying", async () => {
  let isThere = true;
  vi.stubGlobal("fetch", async () => (isThere ? Response.json({}) : badGateway()));
  const status = vi.fn();
  new Signalling("room", "secret", { name: "a", sample_rate_hz: 48_000 }, vi.fn(), status);
  const refuse = async () => {
    Socket.all.at(-1)!.close();
    await vi.advanceTimersByTimeAsync(3_000);
  };
  const troubles = () => status.mock.calls.flatMap(([, trouble]) => trouble ?? []);
  await refuse();
  expect(troubles(), "one may be chance").toEqual([]);
  await refuse();
  expect(troubles()).toEqual(["refuses"]);
  isThere = false;
  await refuse();
  expect(new Set(troubles().slice(1))).toEqual(new Set(["silent"]));
  isThere = true;
  await welcomed(false);
  expect(status).toHaveBeenLastCalledWith("online");
  const before = troubles().length;
  await refuse();
  expect(troubles().length, "that one was open").toBe(before);
});

it("sends nothing that is longer than the server takes, in bytes", async () => {
  const signalling = new Signalling(
    "room",
    "secret",
    { name: "a", sample_rate_hz: 48_000 },
    vi.fn(),
    vi.fn(),
  );
  const [socket] = await welcomed(false);
  const signal = (data: string) => ({ type: "signal", to: "b", data });
  const room = 65_536 - JSON.stringify(signal("")).length;
  for (const [data, isSent] of [
    ["x".repeat(room), true],
    ["x".repeat(room + 1), false],
    ["é".repeat(Math.floor(room / 2)), true],
    ["é".repeat(Math.floor(room / 2) + 1), false],
  ] as const) {
    const before = socket.sent.length;
    expect(signalling.send(signal(data))).toBe(isSent);
    expect(socket.sent.length).toBe(before + Number(isSent));
  }
});

it("leaves once more where the server has not heard that it left, and comes in anew", async () => {
  const received = vi.fn();
  new Signalling("room", "secret", { name: "a", sample_rate_hz: 48_000 }, received, vi.fn());
  const [socket] = Socket.all;
  const welcome = { type: "welcome", id: "oneself", sample_rate_hz: 48_000, locked: false };
  socket!.readyState = Socket.OPEN;
  socket!.onopen?.();
  socket!.say({ ...welcome, resumed: true });
  expect(socket!.sent.map(({ type }) => type)).toEqual(["hello", "leave"]);
  expect(received).not.toHaveBeenCalled();
  socket!.close();
  const [again, { secret }] = await welcomed(false);
  expect(secret).toBe("secret");
  expect(received).toHaveBeenCalledTimes(1);
  // From then on nothing is forgotten.
  again.close();
  await vi.advanceTimersByTimeAsync(2_000);
  const back = Socket.all.at(-1)!;
  back.readyState = Socket.OPEN;
  back.onopen?.();
  back.say({ ...welcome, resumed: true });
  expect(back.sent.map(({ type }) => type)).toEqual(["hello"]);
  expect(received).toHaveBeenCalledTimes(2);
});

/** What keeps a connection: it is sent to oneself, and comes back. */
const question = { type: "signal", to: "oneself", data: {} };
const questions = ({ sent }: Socket) => sent.filter(({ type }) => type === "signal");
const answer = (socket: Socket) => socket.say({ type: "signal", from: "oneself", data: {} });

it("replaces a connection on which nothing comes any more, though the browser says nothing of it", async () => {
  const status = vi.fn();
  const received = vi.fn();
  const signalling = new Signalling(
    "room",
    "secret",
    { name: "a", sample_rate_hz: 48_000 },
    received,
    status,
  );
  const [dead, { secret }] = await welcomed(false);
  for (let n = 1; n <= 10; n++) {
    await vi.advanceTimersByTimeAsync(5_000);
    expect(questions(dead)).toEqual(Array(n).fill(question));
    answer(dead);
  }
  expect(Socket.all).toHaveLength(1);
  // It is asked 3 s after the last answer, and 5 s later that is too long.
  await vi.advanceTimersByTimeAsync(7_900);
  expect(status).toHaveBeenLastCalledWith("online");
  await vi.advanceTimersByTimeAsync(100);
  expect(status).toHaveBeenLastCalledWith("connecting");
  expect(Socket.all).toHaveLength(2);
  received.mockClear();
  dead.say({ type: "error", code: "replaced", message: "it was resumed" });
  expect(received).not.toHaveBeenCalled();
  const [, hello] = await welcomed(false);
  expect(Socket.all).toHaveLength(2);
  expect(hello).toMatchObject({ type: "hello", secret });
  expect(status).toHaveBeenLastCalledWith("online");
  signalling.leave();
  await vi.advanceTimersByTimeAsync(60_000);
  expect(Socket.all).toHaveLength(2);
});

it.each(["online", "visibilitychange"])("asks at once on %s, and waits for 5 s", async (event) => {
  new Signalling("room", "secret", { name: "a", sample_rate_hz: 48_000 }, vi.fn(), vi.fn());
  const [socket] = await welcomed(false);
  page.dispatchEvent(new Event(event));
  expect(questions(socket)).toEqual([question]);
  answer(socket);
  page.dispatchEvent(new Event(event));
  await vi.advanceTimersByTimeAsync(4_900);
  expect(Socket.all).toHaveLength(1);
  await vi.advanceTimersByTimeAsync(100);
  expect(Socket.all).toHaveLength(2);
});

it("asks once more after a sleep, in which no answer could be heard", async () => {
  new Signalling("room", "secret", { name: "a", sample_rate_hz: 48_000 }, vi.fn(), vi.fn());
  const [socket] = await welcomed(false);
  await vi.advanceTimersByTimeAsync(5_000);
  expect(questions(socket)).toHaveLength(1);
  vi.setSystemTime(Date.now() + 3_600_000);
  await vi.advanceTimersByTimeAsync(5_000);
  expect(questions(socket)).toHaveLength(2);
  expect(Socket.all).toHaveLength(1);
  await vi.advanceTimersByTimeAsync(5_000);
  expect(Socket.all).toHaveLength(2);
});

it("replaces a dead connection where its timers come once a minute", async () => {
  new Signalling("room", "secret", { name: "a", sample_rate_hz: 48_000 }, vi.fn(), vi.fn());
  const [socket] = await welcomed(false);
  const nextMinute = async () => {
    vi.setSystemTime(Date.now() + 55_000);
    await vi.advanceTimersByTimeAsync(5_000);
  };
  for (let minute = 0; minute < 3; minute++) {
    await nextMinute();
    answer(socket);
  }
  for (let minute = 0; minute < 2; minute++) await nextMinute();
  answer(socket);
  for (let minute = 0; minute < 2; minute++) await nextMinute();
  expect(Socket.all, "an answer may yet be handled").toHaveLength(1);
  await nextMinute();
  expect(Socket.all).toHaveLength(2);
});

it("goes on to a server that says that it is not well", async () => {
  vi.stubGlobal("fetch", async () => Response.json({ status: "restart it" }, { status: 503 }));
  new Signalling("room", "secret", { name: "a", sample_rate_hz: 48_000 }, vi.fn(), vi.fn());
  Socket.all[0]!.close();
  await vi.advanceTimersByTimeAsync(3_000);
  expect(Socket.all.length).toBeGreaterThan(1);
});

it("gives up a connection that does not open within 10 s, and looks for the server", async () => {
  vi.stubGlobal("fetch", async () => badGateway());
  const status = vi.fn();
  new Signalling("room", "secret", { name: "a", sample_rate_hz: 48_000 }, vi.fn(), status);
  await vi.advanceTimersByTimeAsync(9_900);
  expect(Socket.all[0]!.readyState).toBe(Socket.CONNECTING);
  await vi.advanceTimersByTimeAsync(3_000);
  expect(Socket.all).toHaveLength(1);
  expect(status).toHaveBeenLastCalledWith("connecting", "silent");
});

it("survives whatever a server says", async () => {
  const types = fc.constantFrom("locked", "error", "signal", "joined");
  const messages = fc.record({ type: types, code: fc.jsonValue() });
  const texts = fc.oneof(
    fc.string(),
    fc.json(),
    messages.map((message) => JSON.stringify(message)),
  );
  const received = vi.fn();
  new Signalling("room", "secret", { name: "a", sample_rate_hz: 48_000 }, received, vi.fn());
  const [socket] = await welcomed(false);
  fc.assert(
    fc.property(texts, (data) => socket.onmessage?.({ data })),
    { examples: [["null"], ["3"]] },
  );
  expect(received.mock.calls.every(([message]) => message === Object(message))).toBe(true);
});
