import { RecordRing } from "@antiphon/ring";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { FIRST_CAPTURE, type FromWorker } from "../../src/shared/messages";
import { captureTag } from "../../src/shared/records";
import type { SendConfig } from "../../src/shared/rungs";
import { readAudioHeader } from "../../src/shared/wire";
import { Capture } from "../../src/worker/capture";
import type { LaneChannel } from "../../src/worker/lane";
import { Peers } from "../../src/worker/peers";
import { load } from "./golden";
import { SENDING } from "./sending";
import { type FakeData, FakeEncoder, installFakes, LOOKAHEAD_FRAMES, removeFakes } from "./webcodecs";

const { module } = load();

beforeEach(installFakes);
afterEach(() => {
  removeFakes();
  vi.useRealTimers();
});

function span(datagram: Uint8Array) {
  const { sequence, timestamp, frames, bits } = readAudioHeader(datagram);
  return { sequence, from: Number(timestamp), to: Number(timestamp) + frames, bits };
}

/** A capture that is fed by hand, and listeners with a lane each: what they are sent. */
function studio(config: SendConfig) {
  const port = { postMessage() {}, onmessage: null as ((event: { data: unknown }) => void) | null };
  const peers = new Peers({ push: () => true, push2: () => true }, () => {});
  const said: FromWorker[] = [];
  const capture = new Capture(module, { port }, config, peers, (message) => said.push(message));
  // Nothing has failed yet.
  expect(said.splice(0)).toEqual([{ type: "opus-failed", reason: null }]);
  capture.fromWorklet();
  const join = (stream: number, epoch = 0, sent: ReturnType<typeof span>[] = []) => {
    const send = (bytes: Uint8Array) => sent.push(span(bytes));
    const lane = { readyState: "open", bufferedAmount: 0, send, close() {} };
    peers.addLane(stream, 0, epoch, true, lane as unknown as LaneChannel);
    return sent;
  };
  const sent = join(1);
  /** Quanta of 128 frames of stereo. */
  const play = (quanta: number) => {
    const bytes = new Uint8Array(2 * 128 * 4);
    for (let n = 0; n < quanta; n++) port.onmessage?.({ data: { tag: captureTag(2, 128), bytes } });
  };
  /** The audio thread had no room for so many frames. */
  const lose = (frames: number) =>
    port.onmessage?.({ data: { tag: captureTag(0, frames), bytes: new Uint8Array(0) } });
  return { capture, peers, join, play, lose, said, sent };
}

function expectWhole(sent: { sequence: number; from: number; to: number }[]): void {
  expect(sent.map(({ sequence }) => sequence)).toEqual(sent.map((_, n) => n));
  let end = sent[0].from;
  const holes: number[] = [];
  for (const { from, to } of [...sent].sort((a, b) => a.from - b.from)) {
    if (from > end) holes.push(end);
    end = Math.max(end, to);
  }
  expect(holes).toEqual([]);
}

it("changes to Opus and back without a hole, each format at its media time", () => {
  const { capture, peers, play, sent } = studio(SENDING);
  play(100);
  capture.configure({ ...SENDING, bits: "opus" });
  play(500);
  expect(peers.rungsInUse().map(({ format }) => format)).toEqual(["opus"]);
  const opus = sent.filter(({ bits }) => bits === null);
  expect(opus.length).toBeGreaterThan(400);
  // Whole packets of the feed, which began with the change, less the lookahead.
  for (const { from } of opus) expect((from - 100 * 128 + LOOKAHEAD_FRAMES) % 120).toBe(0);
  capture.configure(SENDING);
  play(400);
  expect(peers.rungsInUse().map(({ format }) => format)).toEqual(["s16"]);
  expectWhole(sent);
  expect(sent.at(-1)).toMatchObject({ bits: 16, to: 1000 * 128 });
});

it("encodes as many channels as there are now, whatever there were when the format was begun", () => {
  const opus = { ...SENDING, bits: "opus" } as const;
  const { capture, play, sent } = studio(opus);
  play(600);
  const encodes = (config: SendConfig) => {
    capture.configure(config);
    const before = sent.length;
    play(200);
    return sent.slice(before).some(({ bits }) => bits === null);
  };
  expect(encodes({ ...SENDING, channels: 1 }), "until samples have taken over").toBe(true);
  expect(encodes({ ...opus, channels: 1 })).toBe(true);
  expect(encodes({ ...opus, channels: 3 }), "three are too many").toBe(false);
  expect(encodes(opus)).toBe(true);
});

it("goes on in Opus at once when the lane is made anew, and sets no encoder up for nobody", () => {
  vi.useFakeTimers({ toFake: ["performance"] });
  const { peers, join, play, sent } = studio({ ...SENDING, bits: "opus" });
  play(600);
  peers.closeLane(1, 0);
  play(10);
  // One that would be set up now takes for ever.
  Object.assign(globalThis, {
    AudioEncoder: class extends FakeEncoder {
      override encode(): void {}
    },
  });
  const formats = () => {
    const before = sent.length;
    play(75);
    return sent.slice(before).map(({ bits }) => bits);
  };
  join(1, 1, sent);
  expect(formats()).toEqual(Array(80).fill(null));
  peers.closeLane(1, 0);
  play(1);
  vi.advanceTimersByTime(10_000);
  play(1);
  join(1, 2, sent);
  expect(formats()).toEqual(Array(75).fill(16));
});

it("sends samples until an encoder for other channels has begun", () => {
  const opus = { ...SENDING, bits: "opus" } as const;
  const { capture, play, sent } = studio(opus);
  play(600);
  const before = sent.length;
  const late: (() => void)[] = [];
  Object.assign(globalThis, {
    AudioEncoder: class extends FakeEncoder {
      override encode(data: FakeData): void {
        late.push(() => super.encode(data));
      }
    },
  });
  capture.configure({ ...opus, channels: 1 });
  play(50);
  expect(sent.slice(before).map(({ from, bits }) => [from, bits])).toEqual(
    Array.from({ length: 50 }, (_, n) => [(600 + n) * 128, 16]),
  );
  installFakes();
  late.shift()!();
  capture.configure({ ...opus, channels: 2 });
  play(900);
  expectWhole(sent.slice(before).map((one, n) => ({ ...one, sequence: n })));
  expect(sent.at(-1)?.bits).toBe(null);
});

it("sends samples until an encoder has begun, also to who comes while it is set up", () => {
  const late: (() => void)[] = [];
  Object.assign(globalThis, {
    AudioEncoder: class extends FakeEncoder {
      override encode(data: FakeData): void {
        late.push(() => super.encode(data));
      }
    },
  });
  const { join, play, sent } = studio({ ...SENDING, bits: "opus" });
  play(10);
  const second = join(2);
  play(10);
  for (let n = 0; n < 900; n++) {
    for (const encode of late.splice(0)) encode();
    play(1);
  }
  for (const [one, first] of [
    [sent, 0],
    [second, 10 * 128],
  ] as const) {
    expect(one[0]).toMatchObject({ from: first, bits: 16 });
    expectWhole(one);
    expect(one.at(-1)?.bits).toBe(null);
  }
});

it("sends samples while an encoder stands still", () => {
  const late: (() => void)[] = [];
  let isStill = false;
  Object.assign(globalThis, {
    AudioEncoder: class extends FakeEncoder {
      override encode(data: FakeData): void {
        this.encodeQueueSize++;
        late.push(() => {
          this.encodeQueueSize--;
          super.encode(data);
        });
        if (!isStill) late.shift()!();
      }
    },
  });
  const { play, sent } = studio({ ...SENDING, bits: "opus" });
  play(600);
  isStill = true;
  play(400);
  // Not before its queue is full.
  const still = sent.filter(({ from }) => from >= 750 * 128);
  expect(still.map(({ from, bits }) => [from, bits])).toEqual(
    Array.from({ length: 250 }, (_, n) => [(750 + n) * 128, 16]),
  );
  isStill = false;
  for (const encode of late.splice(0)) encode();
  play(900);
  expect(sent.at(-1)?.bits).toBe(null);
  const after = sent.slice(sent.indexOf(still[0]));
  expectWhole(after.filter(({ from }) => from >= still[0].from).map((one, n) => ({ ...one, sequence: n })));
});

it.each(["16 bit", "Opus"])(
  "lets media time pass with the clock from one source to the next, in %s",
  (format) => {
    vi.useFakeTimers({ toFake: ["performance"] });
    const bits = format === "Opus" ? "opus" : 16;
    const { capture, play, sent } = studio({ ...SENDING, bits });
    play(600);
    const before = sent.length;
    capture.stop();
    vi.advanceTimersByTime(300);
    capture.fromWorklet();
    const first = 600 * 128 + 300 * 48 - 128;
    play(600);
    const after = sent.slice(before);
    expect(after[0].sequence).toBe(before);
    expect(Math.min(...after.map(({ from }) => from))).toBeGreaterThanOrEqual(first - LOOKAHEAD_FRAMES);
    if (bits === 16) expect(after[0].from).toBe(first);
    expectWhole(after.map((one, n) => ({ ...one, sequence: n })));
    expect(capture.stats().capturedFrames).toBe(1_200 * 128);
  },
);

it("counts what was lost on the way to it, and lets media time pass for it", () => {
  // Between two sources media time goes on by the clock.
  vi.useFakeTimers({ toFake: ["performance"] });
  const { capture, play, lose, sent } = studio(SENDING);
  play(10);
  lose(1_000);
  play(10);
  expect(sent[10]).toMatchObject({ sequence: 10, from: 10 * 128 + 1_000 });
  expect(sent).toHaveLength(20);
  expect(capture.stats()).toMatchObject({ overrunFrames: 1_000, capturedFrames: 20 * 128 });
  capture.stop();
  capture.fromWorklet();
  lose(500);
  play(1);
  expect(sent.at(-1)?.from, "of the source before").toBe(20 * 128 + 1_000);
  expect(capture.stats().overrunFrames).toBe(1_500);
});

it("claims no capture once frames have come no more for a second, though nobody says that it ended", () => {
  vi.useFakeTimers({ toFake: ["performance"] });
  const { capture, play } = studio(SENDING);
  const report = () => capture.reports(0)("main");
  const playFor = (ms: number) => {
    for (let n = 0; n < ms / 8; n++) {
      vi.advanceTimersByTime(8);
      play(3);
    }
  };
  expect(report()).toBeNull();
  playFor(400);
  vi.advanceTimersByTime(1_000);
  expect(report()).not.toBeNull();
  vi.advanceTimersByTime(1);
  expect(report()).toBeNull();
  playFor(8);
  expect(report()).not.toBeNull();
});

it("goes on after an error with what the audio thread captured, and says it once", async () => {
  const reported = vi.fn();
  vi.stubGlobal("reportError", reported);
  const storage = RecordRing.createStorage(1 << 14);
  const ring = new RecordRing(storage);
  const peers = new Peers({ push: () => true, push2: () => true }, () => {});
  const capture = new Capture(module, { storage }, SENDING, peers, () => {});
  let left = 2;
  vi.spyOn(peers, "sendCopies").mockImplementation(() => {
    if (left-- > 0) throw new Error("out of order");
  });
  capture.fromWorklet();
  for (let n = 1; n <= 4; n++) {
    ring.push(captureTag(2, 128), new Uint8Array(2 * 128 * 4));
    await vi.waitFor(() => expect(capture.stats().capturedFrames).toBe(n * 128));
  }
  capture.stop();
  expect(reported).toHaveBeenCalledTimes(1);
  vi.unstubAllGlobals();
});

it("counts what it throws away of a ring that holds impossible values", () => {
  const storage = RecordRing.createStorage(1 << 12);
  const peers = new Peers({ push: () => true, push2: () => true }, () => {});
  const capture = new Capture(module, { storage }, SENDING, peers, () => {});
  new RecordRing(storage).push(captureTag(2, 128), new Uint8Array(2 * 128 * 4));
  new Int32Array(storage, 256)[0] = -1;
  capture.fromWorklet();
  expect(capture.discards).toBe(1);
  capture.stop();
});

it("sends nothing of the source before, should some have been left", () => {
  vi.useFakeTimers({ toFake: ["performance"] });
  const { capture, play, sent } = studio(SENDING);
  play(10);
  capture.stop();
  play(3);
  vi.advanceTimersByTime(300);
  capture.fromWorklet();
  vi.advanceTimersByTime(100);
  play(1);
  expect(sent).toHaveLength(11);
  expect(sent[10]).toMatchObject({ sequence: 10, from: 10 * 128 + 400 * 48 - 128 });
});

it("changes between samples without a hole or an overlap", () => {
  const { capture, play, sent } = studio(SENDING);
  play(10);
  capture.configure({ ...SENDING, bits: 24 });
  play(10);
  capture.configure({ ...SENDING, bits: 32, packetFrames: 64 });
  play(10);
  expectWhole(sent);
  expect(sent.reduce((sum, { from, to }) => sum + to - from, 0)).toBe(30 * 128);
  expect(new Set(sent.map(({ bits }) => bits))).toEqual(new Set([16, 24, 32]));
});

it("sends samples where Opus cannot be, and goes on with them when an encoder fails", async () => {
  const { capture, play, sent } = studio({ ...SENDING, bits: "opus", rateHz: 96_000 });
  play(10);
  expect(new Set(sent.map(({ bits }) => bits))).toEqual(new Set([16]));
  Object.assign(globalThis, {
    AudioEncoder: class {
      state = "unconfigured";
      configure(): void {
        throw new Error("no Opus today");
      }
      close(): void {}
    },
  });
  capture.configure({ ...SENDING, bits: "opus" });
  play(1);
  await Promise.resolve();
  play(10);
  expectWhole(sent);
  expect(sent.at(-1)).toMatchObject({ bits: 16, to: 21 * 128 });
});

it("makes an encoder that fails anew, no sooner than a second after the last, and sends samples until that has begun", async () => {
  vi.useFakeTimers({ toFake: ["performance"] });
  const FAILS = 600;
  let encoded = 0;
  class Failing extends FakeEncoder {
    override encode(data: FakeData): void {
      if (++encoded === FAILS || encoded === FAILS + 1) this.fail();
      else super.encode(data);
    }
  }
  Object.assign(globalThis, { AudioEncoder: Failing });
  const { play, said, sent } = studio({ ...SENDING, bits: "opus" });
  const sendsOpus = async (ms: number) => {
    vi.advanceTimersByTime(ms);
    const before = sent.length;
    play(400);
    await Promise.resolve();
    return sent.slice(before).some(({ bits }) => bits === null);
  };
  expect(await sendsOpus(0)).toBe(true);
  expect(await sendsOpus(1_000)).toBe(true);
  expect(encoded).toBe(FAILS);
  const failed = sent.findLastIndex(({ bits }) => bits === null);
  expect(await sendsOpus(0), "the next, made at once, fails as well").toBe(false);
  expect(encoded).toBe(FAILS + 1);
  expect(await sendsOpus(900)).toBe(false);
  expect(await sendsOpus(100)).toBe(true);
  expectWhole(sent.slice(failed + 1).map((one, n) => ({ ...one, sequence: n })));
  // What was in the encoder, and the quantum at hand.
  expect(sent[failed + 1].from - sent[failed].to).toBeLessThan(LOOKAHEAD_FRAMES + 120 + 128);
  expect(said).toEqual([]);
});

/** Gives nothing at 256 kbit/s. */
class Mute extends FakeEncoder {
  #isMute = false;
  override configure(config?: { bitrate: number }): void {
    super.configure();
    this.#isMute = config?.bitrate === 256_000;
  }
  override encode(data: FakeData): void {
    if (!this.#isMute) super.encode(data);
  }
}

it("gives up a format whose encoders never give anything, and sends samples, as until then", async () => {
  vi.useFakeTimers({ toFake: ["performance"] });
  Object.assign(globalThis, { AudioEncoder: Mute });
  const config = { ...SENDING, bits: "opus", opusKbps: 256, adapts: true } as const;
  const { capture, peers, play, said, sent } = studio(config);
  for (let n = 0; n < 3; n++) {
    expect(said).toEqual([]);
    vi.advanceTimersByTime(1_000);
    play(1_000);
    await Promise.resolve();
  }
  const failed = { type: "opus-failed", reason: "No packet came of it." };
  expect(said.splice(0)).toEqual([failed]);
  play(1);
  expect(sent.map(({ from, bits }) => [from, bits])).toEqual(
    Array.from({ length: 3_001 }, (_, n) => [n * 128, 16]),
  );
  // Another one is as good as ever.
  capture.configure({ ...config, opusKbps: 128 });
  expect(said.splice(0)).toEqual([{ ...failed, reason: null }]);
  play(500);
  expect(peers.rungsInUse()).toMatchObject([{ opusBps: 128_000 }]);
  expect(sent.at(-1)).toMatchObject({ bits: null });
  capture.configure(config);
  expect(said).toEqual([failed]);
});

it("says of Opus that it cannot be once that is chosen, though it failed while something else was", async () => {
  vi.useFakeTimers({ toFake: ["performance"] });
  Object.assign(globalThis, { AudioEncoder: Mute });
  const config = { ...SENDING, bits: "opus", opusKbps: 256 } as const;
  const { capture, play, said } = studio(config);
  for (let n = 0; n < 3; n++) {
    vi.advanceTimersByTime(1_000);
    play(1);
    if (n === 2) capture.configure(SENDING);
    play(1_000);
    await Promise.resolve();
  }
  const [fine, failed] = [null, "No packet came of it."].map((reason) => ({ type: "opus-failed", reason }));
  expect(said.splice(0)).toEqual([fine, fine]);
  capture.configure(config);
  expect(said).toEqual([failed]);
});

/** Blocks of a track: 480 frames each; the one that is told to cannot be read. */
function track(
  blocks: { rateHz?: number; isBad?: boolean }[],
  end: (controller: ReadableStreamDefaultController) => void,
) {
  const closed: number[] = [];
  const readable = new ReadableStream<AudioData>({
    start(controller) {
      for (const [n, { rateHz = 48_000, isBad = false }] of blocks.entries()) {
        const data = {
          sampleRate: rateHz,
          numberOfFrames: 480,
          numberOfChannels: 2,
          timestamp: 0,
          copyTo() {
            if (isBad) throw new Error("not to be read");
          },
          close: () => closed.push(n),
        };
        controller.enqueue(data as unknown as AudioData);
      }
      end(controller);
    },
  });
  return { readable, closed };
}

const first = (readable: ReadableStream<AudioData>) => ({
  capture: FIRST_CAPTURE,
  askedMs: 0,
  readable,
  channels: 2,
});

it.each([
  ["the track ended", [{}, {}], [0, 1], 2],
  ["rate", [{}, { rateHz: 44_100 }, {}], [0, 1], 1],
  ["Error: not to be read", [{}, { isBad: true }, {}], [0, 1], 1],
])("closes every block and says why a track's capture ended: %s", async (reason, blocks, closes, taken) => {
  const { capture, said } = studio(SENDING);
  const { readable, closed } = track(blocks, (controller) => controller.close());
  await capture.fromTrack(first(readable));
  expect(said).toEqual([{ type: "capture-ended", reason }]);
  expect(closed).toEqual(closes);
  expect(capture.stats()).toMatchObject({ capturePath: "none", capturedFrames: taken * 480 });
});

it("lets no end of a block wait for the next block", async () => {
  const { capture, sent } = studio(SENDING);
  await capture.fromTrack(first(track([{}, {}], (controller) => controller.close()).readable));
  expect(sent.map(({ from, to }) => [from, to])).toEqual(
    Array.from({ length: 8 }, (_, n) => [120 * n, 120 * (n + 1)]),
  );
});

it("says that a track's stream failed, but not if another source has taken its place", async () => {
  const { capture, said } = studio(SENDING);
  const fail = (controller: ReadableStreamDefaultController) => controller.error(new Error("gone"));
  await capture.fromTrack(first(track([], fail).readable));
  expect(said).toEqual([{ type: "capture-ended", reason: "Error: gone" }]);
  const replaced = capture.fromTrack(first(track([{}], fail).readable));
  capture.fromWorklet();
  await replaced;
  expect(said.length).toBe(1);
  expect(capture.stats().capturePath).toBe("worklet");
});

/** A timestamp that says nothing of when captures should be opened. */
const TOO_OLD = -10e6;

/** Two captures of noise, in blocks of 1,024 frames; the second begins 500 frames later. `put` gives the next block of one. */
function takingTurns() {
  const { capture, said, sent } = studio(SENDING);
  const controllers: ReadableStreamDefaultController[] = [];
  const ends = [0, 500];
  const begin = (id: number, channels = 2) =>
    capture.fromTrack({
      ...first(
        new ReadableStream({
          start(controller) {
            controllers[id] = controller;
          },
        }),
      ),
      capture: id,
      channels,
    });
  const put = async (
    id: number,
    sample = (frame: number) => Math.sin(frame * frame),
    timestamp = TOO_OLD,
  ) => {
    const at = ends[id];
    ends[id] += 1024;
    const data = {
      sampleRate: 48_000,
      numberOfFrames: 1024,
      numberOfChannels: 2,
      timestamp,
      copyTo(plane: Float32Array) {
        for (let n = 0; n < plane.length; n++) plane[n] = sample(at + n);
      },
      close() {},
    };
    controllers[id].enqueue(data);
    await new Promise((resolve) => setTimeout(resolve));
  };
  return { capture, said, sent, begin, put, end: (id: number) => controllers[id].close() };
}

it("sends what two captures of a microphone bring as one, and goes on with the first when the second ends", async () => {
  const { capture, said, sent, begin, put, end } = takingTurns();
  void begin(FIRST_CAPTURE);
  await put(0);
  void begin(1);
  for (let n = 0; n < 10; n++) {
    await put(1);
    await put(0);
  }
  expect(capture.stats()).toMatchObject({ captures: 2, capturedFrames: 11 * 1024 });
  await put(1);
  expect(sent.at(-1)).toMatchObject({ to: 11 * 1024 + 500 });
  end(1);
  await put(0);
  expect(said).toEqual([{ type: "capture-unneeded", capture: 1 }]);
  await put(0);
  expect(capture.stats()).toMatchObject({ captures: 1, capturedFrames: 13 * 1024 });
  expectWhole(sent);
});

it("ends a second capture that is not of the same samples, and lets no more begin", async () => {
  const { capture, said, begin, put } = takingTurns();
  void begin(FIRST_CAPTURE);
  await put(0);
  void begin(1);
  for (let n = 0; n < 51; n++) {
    await put(1, (frame) => Math.cos(frame * frame));
    await put(0);
  }
  expect(said).toEqual([{ type: "capture-unneeded", capture: 1 }]);
  expect(capture.stats()).toMatchObject({ captures: 1, capturedFrames: 52 * 1024 });
  // Asked for before that was known.
  await begin(2);
  expect(said.slice(1)).toEqual([{ type: "capture-unneeded", capture: 2 }]);
  await put(0);
  expect(capture.stats()).toMatchObject({ captures: 1, capturedFrames: 53 * 1024 });
});

it("ends a second capture that has other channels", async () => {
  const { capture, said, begin, put } = takingTurns();
  void begin(FIRST_CAPTURE);
  await put(0);
  void begin(1, 1);
  await put(1);
  expect(said).toEqual([{ type: "capture-unneeded", capture: 1 }]);
  await put(0);
  expect(capture.stats()).toMatchObject({ captures: 1, capturedFrames: 2 * 1024 });
});

it("hands over no recording with a gap, behind which all would seem to have come sooner", () => {
  vi.useFakeTimers({ toFake: ["performance"] });
  const { capture, play, lose, said } = studio(SENDING);
  const capturing = (quanta: number) => {
    for (let n = 0; n < quanta; n++) {
      vi.advanceTimersByTime(128 / 48);
      play(1);
    }
  };
  capturing(1_000);
  const record = (gap: number) => {
    capture.startRecording(0.1);
    capturing(10);
    if (gap > 0) lose(gap);
    capturing(50);
    return said.filter(({ type }) => type === "recording").length;
  };
  expect(record(0)).toBe(1);
  expect(record(64)).toBe(1);
});

it("takes a microphone that is opened again with more channels", async () => {
  const { capture, begin, put, end } = takingTurns();
  void begin(FIRST_CAPTURE, 1);
  await put(0);
  end(0);
  await put(0).catch(() => undefined);
  void begin(FIRST_CAPTURE, 2);
  await put(0);
  expect(capture.stats()).toMatchObject({ capturePath: "track", capturedFrames: 2 * 1024 });
});

it("asks for another capture where blocks are long", async () => {
  const { said, begin, put } = takingTurns();
  void begin(FIRST_CAPTURE);
  const until = performance.now() + 400;
  while (performance.now() < until) {
    await put(0, undefined, performance.now() * 1000);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  expect(said).toEqual([{ type: "capture-wanted", atMs: null, everyMs: (1024 * 1000) / 48_000 }]);
});
