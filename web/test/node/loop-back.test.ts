import { beforeEach, expect, it, vi } from "vitest";
import { LoopBack, NO_CALIBRATION } from "../../src/main/loop-back";
import type { StudioState } from "../../src/main/model";
import type { Sound } from "../../src/main/sound";
import { Store } from "../../src/main/store";

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
