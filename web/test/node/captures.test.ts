import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { Captures } from "../../src/main/captures";
import { epochMs } from "../../src/main/clock";

const frames = new Set<unknown>();
let permission = "granted";
let duringQuestion = () => {};
let stopped = 0;
const asked: { audio: MediaTrackConstraints; atMs: number }[] = [];

beforeEach(() => {
  frames.clear();
  asked.length = 0;
  duringQuestion = () => {};
  stopped = 0;
  permission = "granted";
  vi.stubGlobal("navigator", {
    userAgent: "Mozilla/5.0 (X11; Linux x86_64) Chrome/156.0.0.0",
    permissions: { query: async () => ({ state: permission }) },
  });
  vi.stubGlobal("document", {
    createElement() {
      const frame = {
        remove: () => frames.delete(frame),
        contentWindow: {
          navigator: {
            mediaDevices: {
              async getUserMedia({ audio }: { audio: MediaTrackConstraints }) {
                asked.push({ audio, atMs: epochMs() });
                duringQuestion();
                return { getAudioTracks: () => [{ stop: () => stopped++ }] };
              },
            },
          },
        },
      };
      return frame;
    },
    body: { append: (frame: unknown) => frames.add(frame) },
  });
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

const track = {
  getSettings: () => ({ deviceId: "usb" }),
  getConstraints: () => ({ echoCancellation: false, deviceId: "default" }),
} as unknown as MediaStreamTrack;
const anyTime = { atMs: null, everyMs: 20 };

it("asks for the same microphone as it is used, in a frame that goes with the capture", async () => {
  const captures = new Captures();
  const one = await captures.add(track, anyTime);
  const other = await captures.add(track, anyTime);
  expect(asked[0].audio).toEqual({ echoCancellation: false, deviceId: { exact: "usb" } });
  expect([one?.id, other?.id, frames.size]).toEqual([1, 2, 2]);
  captures.end(1);
  expect(frames.size).toBe(1);
  captures.endAll();
  expect(frames.size).toBe(0);
});

it("asks at the time wanted, whatever the worker's clock says besides", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "performance"] });
  const captures = new Captures();
  for (const offMs of [7, 500, -100_007, 100_007]) {
    const atMs = epochMs() + offMs;
    const adding = captures.add(track, { atMs, everyMs: 20 });
    await vi.advanceTimersByTimeAsync(1_000);
    await adding;
    expect((asked.at(-1)!.atMs - atMs) / 20).toBeCloseTo(Math.round((asked.at(-1)!.atMs - atMs) / 20), 1);
  }
});

it("does not even ask when none is wanted any more", async () => {
  const captures = new Captures();
  const adding = captures.add(track, anyTime);
  captures.endAll();
  expect(frames.size).toBe(0);
  expect(await adding).toBe(null);
  expect([asked.length, frames.size]).toEqual([0, 0]);
});

it("keeps nothing of a capture that comes too late, or that the browser refuses", async () => {
  const captures = new Captures();
  duringQuestion = () => captures.endAll();
  expect(await captures.add(track, anyTime)).toBe(null);
  expect([asked.length, stopped, frames.size]).toEqual([1, 1, 0]);
  duringQuestion = () => {
    throw new Error("refused");
  };
  expect(await captures.add(track, anyTime)).toBe(null);
  expect([asked.length, frames.size]).toEqual([2, 0]);
});

it("never makes the browser ask the musician", async () => {
  permission = "prompt";
  expect(await new Captures().add(track, anyTime)).toBe(null);
  expect([asked.length, frames.size]).toEqual([0, 0]);
});
