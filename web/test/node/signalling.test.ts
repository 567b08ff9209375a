import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { Signalling } from "../../src/main/signalling";

/** As much of a WebSocket as the signalling uses. */
class Socket {
  static readonly OPEN = 1;
  static readonly CLOSED = 3;
  static all: Socket[] = [];
  readyState = 0;
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

beforeEach(() => {
  vi.useFakeTimers();
  Socket.all = [];
  vi.stubGlobal("WebSocket", Socket);
  vi.stubGlobal("location", { protocol: "https:", host: "play.example" });
  vi.stubGlobal("addEventListener", () => {});
  vi.stubGlobal("removeEventListener", () => {});
  vi.stubGlobal("fetch", async () => ({ ok: true }));
});
afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

/** The next connection, welcomed to a room that is locked or not, and the `hello` on it. */
async function welcomed(locked: boolean): Promise<[Socket, hello: Record<string, unknown>]> {
  await vi.advanceTimersByTimeAsync(2_000);
  const socket = Socket.all.at(-1)!;
  socket.readyState = Socket.OPEN;
  socket.onopen?.();
  socket.say({ type: "welcome", sample_rate_hz: 48_000, locked });
  return [socket, socket.sent[0]!];
}

it("says the passphrase that the server told last when it comes in again", async () => {
  const hello = { name: "a", sample_rate_hz: 48_000 };
  const signalling = new Signalling("room", hello, vi.fn(), vi.fn());
  let [socket, said] = await welcomed(false);
  expect(said).not.toHaveProperty("passphrase");
  // What one asked for oneself is not yet so.
  signalling.lock("x");
  socket.close();
  [socket, said] = await welcomed(false);
  expect(said).not.toHaveProperty("passphrase");
  socket.say({ type: "locked", locked: true, passphrase: "x" });
  socket.close();
  [socket, said] = await welcomed(true);
  expect(said.passphrase).toBe("x");
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
    new Signalling("room", { name: "a", sample_rate_hz: 48_000, passphrase: "guess" }, heard, status);
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
  vi.stubGlobal("fetch", async () => ({ ok: isThere }));
  const status = vi.fn();
  new Signalling("room", { name: "a", sample_rate_hz: 48_000 }, vi.fn(), status);
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
