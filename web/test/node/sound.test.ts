import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { COMMAND } from "../../src/shared/engine";
import { COMMAND_RING_BYTES, type FromWorker, type WorkletChannels } from "../../src/shared/messages";
import { CommandRecord, sourceOf } from "../../src/shared/records";
import { load } from "./golden";
import { SENDING } from "./sending";

const { module } = load();
const closed = vi.fn(async () => {});
const addModule = vi.fn(async () => {});

/** The thread of the last sound. */
class FakeWorker {
  static last: FakeWorker;
  onerror: (() => void) | null = null;
  onmessage: ((event: { data: unknown }) => void) | null = null;
  constructor() {
    FakeWorker.last = this;
  }
  postMessage(): void {}
}

/** What the audio thread of the last sound reads from. */
let audioThread: WorkletChannels;

beforeEach(() => {
  vi.resetModules();
  vi.stubGlobal("navigator", { userAgent: "" });
  vi.stubGlobal(
    "AudioContext",
    class {
      audioWorklet = { addModule };
      close = closed;
    },
  );
  vi.stubGlobal(
    "AudioWorkletNode",
    class {
      port = { postMessage: (channels: WorkletChannels) => (audioThread = channels) };
      connect(): void {}
    },
  );
  vi.stubGlobal("Worker", FakeWorker);
  vi.stubGlobal("fetch", async () => new Response());
});
afterEach(() => vi.unstubAllGlobals());

async function start(receive: (message: FromWorker) => void = () => {}) {
  const { Sound } = await import("../../src/main/sound");
  const options = {
    transport: "shared",
    rateHz: 48_000,
    quantum: 64,
    outputDeviceId: "",
    sender: SENDING,
  } as const;
  return Sound.start(options, receive);
}

it("loads the engine again that did not come the first time, and once only when it did", async () => {
  const { NotLoaded } = await import("../../src/main/sound");
  const compile = vi.spyOn(WebAssembly, "compileStreaming").mockResolvedValue(module);
  compile.mockRejectedValueOnce(new TypeError("no network"));
  await expect(start()).rejects.toThrow(NotLoaded);
  expect(closed).toHaveBeenCalledTimes(1);
  await start();
  await start();
  expect(compile).toHaveBeenCalledTimes(2);
});

it("says that it has stopped when the worker's code did not come, and not for an error later", async () => {
  vi.spyOn(WebAssembly, "compileStreaming").mockResolvedValue(module);
  const sound = await start();
  sound.stopped = vi.fn();
  FakeWorker.last.onerror?.();
  expect(sound.stopped).toHaveBeenCalledTimes(1);
  FakeWorker.last.onmessage?.({ data: { type: "opus-failed", reason: "none" } });
  FakeWorker.last.onerror?.();
  expect(sound.stopped).toHaveBeenCalledTimes(1);
});

it("loses no command while the audio thread takes none, and of many of a kind tells it the newest", async () => {
  vi.spyOn(WebAssembly, "compileStreaming").mockResolvedValue(module);
  const sound = await start();
  for (let n = 1; n <= 5_000; n++) sound.command(COMMAND.gain, 7, n);
  for (const stream of [8, 9]) sound.addStream(stream, "safe", null);
  sound.command(COMMAND.mute, 8, 1);
  sound.removeStream(9);
  const { ring } = sourceOf(audioThread.commands, COMMAND_RING_BYTES);
  const record = new CommandRecord();
  const taken: [number, number, number][] = [];
  const take = () => {
    while (ring.pop(record.bytes) >= 0) taken.push([ring.tag, record.stream, record.value]);
  };
  take();
  const before = taken.length;
  sound.observeOutput();
  take();
  expect(taken.slice(0, before).every(([, , value], at) => value === at + 1)).toBe(true);
  const waited = taken.slice(before);
  expect(waited[0]).toEqual([COMMAND.gain, 7, 5_000]);
  expect(waited.map(([code, stream]) => [code, stream])).toEqual([
    [COMMAND.gain, 7],
    [COMMAND.add, 8],
    [COMMAND.budget, 8],
    [COMMAND.target, 8],
    [COMMAND.mute, 8],
    [COMMAND.remove, 9],
  ]);
});
