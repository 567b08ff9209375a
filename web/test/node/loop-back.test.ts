import { beforeEach, expect, it, vi } from "vitest";
import { LoopBack, NO_CALIBRATION } from "../../src/main/loop-back";
import type { StudioState } from "../../src/main/model";
import type { Sound } from "../../src/main/sound";
import { Store } from "../../src/main/store";
import { storage } from "./storage";

beforeEach(() => {
  vi.useFakeTimers();
});

it("plays no more hisses once the room is joined: everybody would hear them", async () => {
  const state = { phase: "lobby", calibration: NO_CALIBRATION } as Partial<StudioState> as StudioState;
  const store = new Store(state);
  const setup = { input: "in", output: "out", rateHz: 48_000, quantum: 128, capturePath: "track" };
  const loopBack = new LoopBack(store, () => setup);
  const stop = vi.fn();
  const play = vi.fn(() => ({ stop }));
  const playedLine = { ms: 0, errorMs: 0 };
  const sound = {
    context: { sampleRate: 48_000, currentTime: 1 },
    outputClock: () => ({ playedLine, renderedLineMs: 0, device: null }),
    record: () => {},
    play,
  } as unknown as Sound;
  const measured = loopBack.run(
    sound,
    () => true,
    async () => {},
  );
  await vi.advanceTimersByTimeAsync(1_000);
  expect(play).toHaveBeenCalled();
  expect(stop).not.toHaveBeenCalled();
  store.set({ phase: "joined" });
  await vi.advanceTimersByTimeAsync(200);
  expect(stop).toHaveBeenCalledTimes(play.mock.calls.length);
  await measured;
  expect(store.state.calibration.phase).toBe("failed");
});

it("does not keep what was measured of one set-up for the one that was looked up before", async () => {
  vi.stubGlobal("localStorage", storage()());
  const state = { phase: "lobby", calibration: NO_CALIBRATION } as Partial<StudioState> as StudioState;
  const store = new Store(state);
  const chosen = { input: "in", output: "usb out", rateHz: 48_000, quantum: 128, capturePath: "track" };
  let setup = chosen;
  const loopBack = new LoopBack(store, () => setup);
  loopBack.recall();
  setup = { ...chosen, output: "" };
  const samples = new Float32Array(10 * 48_000);
  const sound = {
    context: { sampleRate: 48_000, currentTime: 0 },
    outputClock: () => ({ playedLine: { ms: 0, errorMs: 0 }, renderedLineMs: 0, device: null }),
    record: () => {},
    play: (shape: Float32Array, frame: number) => {
      // 10 ms later it is heard.
      samples.set(shape, frame + 480);
      return { stop: () => {} };
    },
  } as unknown as Sound;
  const measured = loopBack.run(
    sound,
    () => true,
    async () => {},
  );
  for (let n = 0; n < 20; n++) {
    await vi.advanceTimersByTimeAsync(500);
    loopBack.handleRecording({ type: "recording", samples, startMs: 0, blockMs: 0 });
  }
  await measured;
  expect(store.state.calibration).toMatchObject({ phase: "done", roundTripMs: 10 });
  setup = chosen;
  loopBack.follow();
  expect(store.state.calibration.phase).toBe("none");
  vi.unstubAllGlobals();
});
