import { afterEach, beforeEach, expect, it, vi } from "vitest";
import type { FromWorker } from "../../src/shared/messages";
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
      port = { postMessage: () => {} };
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
