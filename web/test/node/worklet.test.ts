import { RecordRing } from "@antiphon/ring";
import { afterEach, expect, it, vi } from "vitest";
import { COMMAND, SenderEngine, STATS_FIELDS } from "../../src/shared/engine";
import {
  CAPTURE_RING_BYTES,
  COMMAND_RING_BYTES,
  DATAGRAM_RING_BYTES,
  MAX_STREAMS,
  type WorkletChannels,
  type WorkletOptions,
} from "../../src/shared/messages";
import {
  Arrival,
  CommandRecord,
  captureShape,
  DECODED_TAG,
  sinkOf,
  sourceOf,
} from "../../src/shared/records";
import { Snapshot, WORKLET_STATS } from "../../src/shared/snapshot";
import { AUDIO_HEADER_BYTES, writeOpus, writeSequence } from "../../src/shared/wire";
import { load } from "./golden";
import { portPair } from "./ports";

const RATE_HZ = 48_000;
const PACKET_FRAMES = 128;
const MS_PER_PACKET = (PACKET_FRAMES * 1000) / RATE_HZ;
/** Frames of an Opus packet. */
const OPUS_FRAMES = 480;

interface Processor {
  port: { onmessage(event: { data: WorkletChannels }): void };
  process(inputs: Float32Array[][], outputs: Float32Array[][]): boolean;
}

const { module } = load();
let Registered: new (options: { processorOptions: WorkletOptions }) => Processor;
vi.stubGlobal("sampleRate", RATE_HZ);
vi.stubGlobal("currentFrame", 0);
vi.stubGlobal(
  "AudioWorkletProcessor",
  class {
    port = {};
  },
);
vi.stubGlobal("registerProcessor", (_: string, processor: typeof Registered) => {
  Registered = processor;
});
await import("../../src/worklet/index");

afterEach(() => void vi.restoreAllMocks());

/** The audio thread's processor with all its rings; `others` in place of some. */
function studio(others: Partial<WorkletChannels> = {}) {
  const ring = (bytes: number) => ({ storage: RecordRing.createStorage(bytes) });
  const count = WORKLET_STATS.streams + MAX_STREAMS * (STATS_FIELDS + 1);
  const stats = new SharedArrayBuffer(Snapshot.byteLengthFor(count));
  const channels: WorkletChannels = {
    datagrams: ring(DATAGRAM_RING_BYTES),
    commands: ring(COMMAND_RING_BYTES),
    capture: ring(CAPTURE_RING_BYTES),
    stats: { storage: stats },
    ...others,
  };
  const processor = new Registered({ processorOptions: { module, outputChannels: 2 } });
  processor.port.onmessage({ data: channels });
  return { processor, channels, numbers: new Snapshot(stats).numbers };
}

/** Packets of one stream whose sound is the second at which it is made, a hundredth of it: samples, or Opus as it is decoded. */
function stream(
  name: number,
  isOpus: boolean,
  push: (tag: number, head: Uint8Array, body: Uint8Array) => void,
) {
  const sender = new SenderEngine(module, {
    rateHz: RATE_HZ,
    bits: 16,
    channels: 2,
    packetFrames: PACKET_FRAMES,
  });
  const arrival = new Arrival();
  const length = isOpus ? OPUS_FRAMES : PACKET_FRAMES;
  let pushed = 0;
  const level = (frame: number) => frame / RATE_HZ / 100;
  return (nowMs: number) => {
    for (; (pushed + length) / RATE_HZ <= nowMs / 1000; pushed += length) {
      if (isOpus) {
        const record = new Uint8Array(AUDIO_HEADER_BYTES + OPUS_FRAMES * 2 * 4);
        record.set(writeOpus(2, OPUS_FRAMES, BigInt(pushed), 0).datagram);
        writeSequence(record, pushed / OPUS_FRAMES);
        const samples = new Float32Array(record.buffer, AUDIO_HEADER_BYTES);
        for (let n = 0; n < samples.length; n++) samples[n] = level(pushed + n / 2);
        push(name + DECODED_TAG, record, new Uint8Array(0));
        continue;
      }
      for (const channel of [0, 1]) {
        const plane = sender.plane(channel, PACKET_FRAMES);
        for (let n = 0; n < PACKET_FRAMES; n++) plane[n] = level(pushed + n);
      }
      sender.push(2, PACKET_FRAMES);
      const datagram = sender.poll();
      if (datagram !== null) push(name, datagram, arrival.set(Date.now()));
    }
  };
}

it.each([
  ["samples, quanta of 128", 128, 60, ["samples"]],
  ["samples, quanta of 32", 32, 60, ["samples"]],
  ["samples, not so long that any were lost", 128, 8, ["samples"]],
  ["Opus, so few packets that one quantum takes all", 128, 60, ["opus"]],
  ["both", 64, 60, ["samples", "opus"]],
])("plays nothing of a standstill, and soon what is live: %s", (_, quantum, seconds, formats) => {
  let nowMs = 0;
  vi.spyOn(Date, "now").mockImplementation(() => 1_700_000_000_000 + Math.floor(nowMs));
  const { processor, channels } = studio();
  const commands = sinkOf(channels.commands);
  const datagrams = sinkOf(channels.datagrams);
  const streams = formats.map((format, n) => {
    commands.push(COMMAND.add, new CommandRecord().set(n + 1, 0));
    return stream(n + 1, format === "opus", (tag, head, body) => void datagrams.push2(tag, head, body));
  });
  const output = [new Float32Array(quantum), new Float32Array(quantum)];
  const heard: { atMs: number; second: number }[] = [];
  let quantumMs = 0;
  const run = (ms: number, renders: boolean) => {
    for (const end = nowMs + ms; nowMs < end; nowMs += MS_PER_PACKET / 4) {
      for (const send of streams) send(nowMs);
      for (; quantumMs <= nowMs; quantumMs += (quantum * 1000) / RATE_HZ) {
        if (!renders) continue;
        processor.process([[]], [output]);
        for (const sample of output[0]) heard.push({ atMs: nowMs, second: (sample * 100) / streams.length });
      }
    }
  };
  run(3_000, true);
  expect(heard.at(-1)?.second, "all are heard").toBeGreaterThan(2.7);
  heard.length = 0;
  run(seconds * 1000, false);
  const resumedMs = nowMs;
  run(1_000, true);
  const audible = heard.filter(({ second }) => second > 0.05);
  expect(audible.filter(({ atMs, second }) => second < atMs / 1000 - 1)).toHaveLength(0);
  expect(audible[0]?.atMs).toBeLessThan(resumedMs + 150);
  expect(heard.at(-1)?.second).toBeGreaterThan(nowMs / 1000 - 0.3);
});

it("tells at the other end of a port what it has taken", () => {
  const [commandsIn, commandsOut] = portPair();
  const [datagramsIn, datagramsOut] = portPair();
  const { processor } = studio({ commands: { port: commandsOut }, datagrams: { port: datagramsOut } });
  const sinks = [
    sinkOf({ port: commandsIn }, COMMAND_RING_BYTES),
    sinkOf({ port: datagramsIn }, DATAGRAM_RING_BYTES),
  ];
  const taken = sinks.map((sink) => {
    const record = new Uint8Array(1_000);
    let records = 0;
    while (sink.push(1, record)) records++;
    return records;
  });
  expect(taken).toEqual([COMMAND_RING_BYTES, DATAGRAM_RING_BYTES].map((bytes) => Math.floor(bytes / 1_008)));
  const output = [new Float32Array(128), new Float32Array(128)];
  for (let n = 0; n < 40; n++) processor.process([[]], [output]);
  for (const sink of sinks) expect(sink.push(1, new Uint8Array(1_000))).toBe(true);
});

it("counts what it throws away: records that are too long, and rings that hold impossible values", () => {
  const datagrams = RecordRing.createStorage(DATAGRAM_RING_BYTES);
  const commands = RecordRing.createStorage(COMMAND_RING_BYTES);
  const { processor, numbers } = studio({
    datagrams: { storage: datagrams },
    commands: { storage: commands },
  });
  sinkOf({ storage: datagrams }).push(1, new Uint8Array(10_000));
  sinkOf({ storage: commands }).push(COMMAND.add, new Uint8Array(9));
  const output = [new Float32Array(128), new Float32Array(128)];
  const published = () => {
    for (let n = 0; n < 40; n++) processor.process([[]], [output]);
    return numbers[WORKLET_STATS.discards];
  };
  expect(published()).toBe(2);
  for (const storage of [datagrams, commands]) {
    sinkOf({ storage }).push(1, new Uint8Array(8));
    new Int32Array(storage, 256).fill(-1);
  }
  expect(published()).toBe(4);
});

it("puts what it captured at its media time, however long nobody took any", () => {
  const { processor, channels, numbers } = studio();
  const { ring } = sourceOf(channels.capture, CAPTURE_RING_BYTES);
  const output = [new Float32Array(128), new Float32Array(128)];
  const input = [new Float32Array(128), new Float32Array(128)];
  let captured = 0;
  const capture = (seconds: number) => {
    for (const end = captured + seconds * RATE_HZ; captured < end; captured += 128) {
      for (const plane of input) for (let n = 0; n < 128; n++) plane[n] = captured + n;
      processor.process([input], [output]);
    }
  };
  const bytes = new Uint8Array(2 * 128 * 4);
  const samples = new Float32Array(bytes.buffer);
  let passed = 0;
  const misplaced: { at: number; is: number }[] = [];
  const take = () => {
    while (ring.pop(bytes) >= 0) {
      const { channels, frames } = captureShape(ring.tag);
      if (channels > 0 && samples[0] !== passed) misplaced.push({ at: passed, is: samples[0] });
      passed += frames;
    }
  };
  capture(6);
  take();
  capture(1);
  take();
  expect(misplaced).toEqual([]);
  expect(passed).toBe(captured);
  // Longer than one quantum may tell of.
  capture(150);
  take();
  capture(1);
  take();
  expect(misplaced).toEqual([]);
  expect(passed).toBe(captured);
  expect(numbers[WORKLET_STATS.captureOverflows]).toBeGreaterThan(0);
});
