import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { COMMAND } from "../../src/shared/engine";
import { COMMAND_RING_BYTES, type FromWorker, type WorkletChannels } from "../../src/shared/messages";
import { CommandRecord, sourceOf } from "../../src/shared/records";
import { Snapshot, WORKLET_STATS } from "../../src/shared/snapshot";
import { load } from "./golden";
import { SENDING } from "./sending";

const { module } = load();
const closed = vi.fn(async () => {});
const addModule = vi.fn(async () => {});
const setSinkId = vi.fn(async () => {});
const outputFailed = vi.fn();

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

let audioNode: object;
let lastContext: { onerror?: () => void };

/** What the audio thread of the last sound reads from, and publishes to. */
let audioThread: WorkletChannels;

beforeEach(() => {
  vi.resetModules();
  vi.stubGlobal("navigator", { userAgent: "" });
  vi.stubGlobal(
    "AudioContext",
    class {
      onerror?: () => void;
      constructor() {
        lastContext = this;
      }
      audioWorklet = { addModule };
      close = closed;
      state = "suspended";
      setSinkId = setSinkId;
    },
  );
  vi.stubGlobal(
    "AudioWorkletNode",
    class {
      constructor() {
        audioNode = this;
      }
      port = { postMessage: (channels: WorkletChannels) => (audioThread = channels) };
      connect(): void {}
    },
  );
  vi.stubGlobal("Worker", FakeWorker);
  vi.stubGlobal("fetch", async () => new Response());
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

async function start(receive: (message: FromWorker) => void = () => {}) {
  const { Sound } = await import("../../src/main/sound");
  const options = {
    transport: "shared",
    rateHz: 48_000,
    quantum: 64,
    outputDeviceId: "",
    sender: SENDING,
  } as const;
  return Sound.start(options, receive, outputFailed);
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

it("says that its output has failed though it has not started yet", async () => {
  vi.spyOn(WebAssembly, "compileStreaming").mockImplementationOnce(async () => {
    lastContext.onerror?.();
    return module;
  });
  await start();
  expect(outputFailed).toHaveBeenCalledTimes(1);
});

it("knows that a thread has failed, the worker only if its code did not come", async () => {
  vi.spyOn(WebAssembly, "compileStreaming").mockResolvedValue(module);
  const broken = await start();
  FakeWorker.last.onerror?.();
  expect(broken.standstill()).toEqual({ audio: false, worker: true });
  const sound = await start();
  FakeWorker.last.onmessage?.({ data: { type: "opus-failed", reason: "none" } });
  FakeWorker.last.onerror?.();
  expect(sound.standstill()).toEqual({ audio: false, worker: false });
  (audioNode as { onprocessorerror?: () => void }).onprocessorerror?.();
  expect(sound.standstill()).toEqual({ audio: true, worker: false });
});

it("misses an audio thread and a worker that ran and stand still, but nothing while that may be", async () => {
  vi.spyOn(WebAssembly, "compileStreaming").mockResolvedValue(module);
  vi.useFakeTimers({ toFake: ["performance"] });
  const sound = await start();
  if (!("storage" in audioThread.stats)) throw new Error("no shared memory");
  const published = new Snapshot(audioThread.stats.storage as unknown as SharedArrayBuffer);
  const [still, fine] = [true, false];
  Object.assign(sound.context, { state: "running" });
  const render = () => published.numbers[WORKLET_STATS.quanta]++;
  const tell = () => FakeWorker.last.onmessage?.({ data: { type: "opus-failed", reason: "none" } });
  /** Looks for so long, so often, at what goes on meanwhile. */
  const look = (ms: number, goesOn: (() => void)[], everyMs = 100) => {
    for (let passed = 0; passed < ms; passed += everyMs) {
      vi.advanceTimersByTime(everyMs);
      for (const go of goesOn) go();
      sound.standstill();
    }
    const { audio, worker } = sound.standstill();
    return [audio, worker];
  };
  expect(look(10_000, []), "both are being started").toEqual([fine, fine]);
  expect(look(5_000, [render, tell])).toEqual([fine, fine]);
  expect(look(1_900, [tell])).toEqual([fine, fine]);
  expect(look(100, [tell])).toEqual([still, fine]);
  expect(look(100, [render, tell]), "it goes on").toEqual([fine, fine]);
  expect(look(2_900, [render])).toEqual([fine, fine]);
  expect(look(100, [render])).toEqual([fine, still]);
  expect(look(100, [render, tell])).toEqual([fine, fine]);
  expect(look(60_000, [], 60_000), "the computer slept").toEqual([fine, fine]);
  expect(look(8_000, [], 1_000), "in the background").toEqual([fine, fine]);
  expect(look(7_000, [], 1_000)).toEqual([still, still]);
  Object.assign(sound.context, { state: "interrupted" });
  expect(look(10_000, [tell])).toEqual([fine, fine]);
  Object.assign(sound.context, { state: "running" });
  let change = () => {};
  setSinkId.mockImplementationOnce(
    () =>
      new Promise<void>((_, reject) => {
        change = () => reject(new Error("no such output"));
      }),
  );
  const changed = sound.setOutput("usb out");
  expect(look(10_000, [tell]), "the output is being changed").toEqual([fine, fine]);
  change();
  await expect(changed).rejects.toThrow("no such output");
  expect(look(1_900, [tell])).toEqual([fine, fine]);
  expect(look(200, [tell])).toEqual([still, fine]);
});

it.each([
  ["suspended", "opens", 1],
  ["suspended", "does not open", 1],
  ["running", "opens", 0],
] as const)("starts a sound that is %s after an output that %s %i times", async (state, opening, times) => {
  vi.spyOn(WebAssembly, "compileStreaming").mockResolvedValue(module);
  const sound = await start();
  const resume = vi.fn(() => Promise.reject(new Error("no output")));
  Object.assign(sound.context, { state, resume });
  const opens = opening === "opens";
  if (!opens) setSinkId.mockRejectedValueOnce(new Error("no such output"));
  const changed = sound.setOutput("usb out");
  expect(resume).not.toHaveBeenCalled();
  if (opens) await changed;
  else await expect(changed).rejects.toThrow("no such output");
  expect(resume).toHaveBeenCalledTimes(times);
});

it("believes the browser of its output what it says at the promptest, and follows an output that stood still", async () => {
  vi.spyOn(WebAssembly, "compileStreaming").mockResolvedValue(module);
  vi.useFakeTimers({ toFake: ["performance"] });
  const sound = await start();
  const context = { state: "running", currentTime: 1, getOutputTimestamp: () => ({}) };
  Object.assign(sound.context, context);
  expect(sound.outputClock(null)).toBeNull();
  const beganMs = performance.timeOrigin + performance.now();
  /** Frames are rendered when they are due, and leave 20 ms later; the sound system works every 21 ms. */
  const look = (looks: number, stoodStillMs = 0) => {
    for (let n = 0; n < looks; n++) {
      vi.advanceTimersByTime(97);
      const nowMs = performance.now();
      const contextMs = performance.timeOrigin + nowMs - beganMs - stoodStillMs;
      Object.assign(sound.context, {
        currentTime: contextMs / 1000,
        getOutputTimestamp: () => ({
          contextTime: contextMs / 1000,
          performanceTime: nowMs + 20 + ((n * 97) % 21),
        }),
      });
      sound.observeOutput();
    }
    const { playedLine, renderedLineMs } = sound.outputClock(null)!;
    return {
      rendered: renderedLineMs - beganMs,
      played: playedLine.ms - beganMs,
      errorMs: playedLine.errorMs,
    };
  };
  const { rendered, played, errorMs } = look(400);
  expect(rendered).toBeCloseTo(0, 6);
  expect(played).toBeGreaterThan(20);
  expect(played).toBeLessThan(23);
  expect(played + errorMs).toBeGreaterThan(29);
  const stood = look(21, 50);
  expect(stood.rendered).toBeCloseTo(50, 6);
  expect(stood.played).toBeCloseTo(50 + played, 0);
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
