import { expect, it } from "vitest";
import { COMMAND, PlayerEngine, SenderEngine, STREAM_STATS } from "../../src/shared/engine";
import { Arrival } from "../../src/shared/records";
import { load } from "./golden";

const { module } = load();

it("counts frames by which the output slipped as rendered", () => {
  const sizes = { rateHz: 48_000, outputChannels: 2, maxStreams: 1, bufferFrames: 8_192 };
  const engine = new PlayerEngine(module, sizes);
  const play = (seconds: number, fromMs: number) => {
    const quanta = (seconds * 48_000) / 128;
    for (let n = 0; n < quanta; n++) engine.process(128, Math.trunc(fromMs + (n * 128) / 48));
  };
  play(2, 1_000_000);
  expect(engine.renderedFrames()).toBe(2 * 48_000);
  play(2, 1_002_200);
  expect(Math.abs(engine.renderedFrames() - 4 * 48_000 - 200 * 48)).toBeLessThanOrEqual(48);
});

it("has a playhead below 0 while it waits for a stream's first frame", () => {
  const sender = new SenderEngine(module, { rateHz: 48_000, bits: 16, channels: 1, packetFrames: 128 });
  const sizes = { rateHz: 48_000, outputChannels: 2, maxStreams: 1, bufferFrames: 8_192 };
  const player = new PlayerEngine(module, sizes);
  player.command(COMMAND.add, 1, 0);
  player.command(COMMAND.target, 1, 1_024);
  sender.plane(0, 128).fill(0.5);
  sender.push(1, 128);
  const datagram = sender.poll()!;
  player.datagram.set(datagram);
  player.datagram.set(new Arrival().set(1_000_000), datagram.length);
  player.handleDatagram(1, datagram.length + Arrival.BYTES);
  player.process(128, 1_000_000);
  expect(player.readStats(1)).toBe(true);
  const { received, playhead } = STREAM_STATS;
  expect([player.stats[received], player.stats[playhead]]).toEqual([1, 128 - 1_024]);
});

it("hands out one view for all datagrams of a length: the browser would keep each", () => {
  const sender = new SenderEngine(module, { rateHz: 48_000, bits: 16, channels: 1, packetFrames: 128 });
  sender.plane(0, 256).fill(0.5);
  sender.push(1, 256);
  const first = sender.poll();
  expect(sender.poll()).toBe(first);
  expect(sender.poll()).toBeNull();
});
