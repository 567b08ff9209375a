import { expect, it } from "vitest";
import { inMix } from "../../src/main/heard";
import type { HeardReport } from "../../src/shared/wire";
import { KIND_REPORT, kindOf, readReport } from "../../src/shared/wire";
import { type Captured, Reports, toNs } from "../../src/worker/report";

const EPOCH_MS = 1_795_223_941_000;

const heard: HeardReport = {
  isMixed: false,
  periodMs: 4_000,
  receivedPackets: 1_490,
  lostPackets: 10,
  latePackets: 2,
  playedFrames: 190_720,
  concealedFrames: 1_280,
  bufferFrames: 384,
  targetFrames: 208,
  spreadFrames: 192,
  outputUnderruns: null,
};

/** A peer whose clock is ahead by an hour, that captured media frame n at EPOCH_MS + n / rate of our clock. */
const AHEAD_MS = 3_600_000;
const capture: Captured = {
  timestamp: 480_000n,
  timeNs: toNs(EPOCH_MS + 10_000 + AHEAD_MS),
  errorUs: 100,
  blockUs: 2_700,
  sendUs: 2_900,
  input: { isCalibrated: true, delayUs: 4_000, errorUs: 500 },
  overrunFrames: 7,
  lineMs: EPOCH_MS + AHEAD_MS,
};

function audio(timestamp: number): Uint8Array {
  const bytes = new Uint8Array(20 + 128 * 2);
  bytes.set([1, 1, 0x11, 1, 0, 0, 128]);
  new DataView(bytes.buffer).setBigUint64(12, BigInt(timestamp), true);
  return bytes;
}

/** One end that tells, and one that is told after 12 ms. */
function tell(to: Reports, from: Reports, nowMs: number) {
  const datagram = from.poll(capture, 0, nowMs);
  if (datagram !== null) to.handleReport(datagram, nowMs + 12);
  return datagram;
}

it("sends a report twice a second, with what was dropped lately", () => {
  const reports = new Reports(0.04);
  const sent = [];
  for (let n = 0; n < 100; n++) {
    reports.setHears(heard, EPOCH_MS + n * 100);
    const datagram = reports.poll(capture, n < 50 ? 3 : 13, EPOCH_MS + n * 100);
    if (datagram !== null) sent.push(datagram);
  }
  expect(sent.length).toBe(20);
  expect(sent.every((bytes) => kindOf(bytes) === KIND_REPORT)).toBe(true);
  const read = sent.map(readReport);
  expect(read.map(({ id }) => id)).toEqual(Array.from({ length: 20 }, (_, n) => n + 1));
  expect(read.map((report) => report.capture?.droppedPackets)).toEqual([
    ...Array(10).fill(0),
    ...Array(8).fill(10),
    ...Array(2).fill(0),
  ]);
  const { lineMs: _, ...told } = capture;
  expect(read[3]).toEqual({ id: 4, capture: { ...told, droppedPackets: 0 }, heard });
});

it("puts the peer's capture on our clock", () => {
  const [here, there] = [new Reports(0), new Reports(0)];
  const nowMs = EPOCH_MS + 10_100;
  tell(here, there, nowMs);
  expect(here.farEnd(nowMs + 20)).toBeNull();
  for (let n = 0; n < 20; n++) {
    // 12 ms there and back again, and one hour.
    const sentMs = nowMs + n;
    here.offset.add(sentMs, sentMs + 12 + AHEAD_MS, sentMs + 24);
    here.handleAudio(audio(480_000 + n * 128), EPOCH_MS + 10_000 + (n * 128) / 48 + 2.9 + 12);
  }
  const far = here.farEnd(nowMs + 20)!;
  expect(far.lineMs).toBeCloseTo(EPOCH_MS, 2);
  expect(far.lineErrorMs).toBeCloseTo(12 + 0.1, 2);
  expect(far.captureMs).toBeCloseTo(2.7, 6);
  expect(far.packetMs).toBeCloseTo(0.2, 6);
  expect(far.networkMs).toBeCloseTo(12, 2);
  expect(far.input).toEqual({ isCalibrated: true, ms: 4, errorMs: 0.5 });
  expect(far.overrunFrames).toBe(7);
  expect(far.isMixed).toBe(false);
});

it("puts the peer's capture on our clock in the media time of the mix that holds it", () => {
  const [here, there, mix] = [new Reports(0), new Reports(0), new Reports(0)];
  const nowMs = EPOCH_MS + 10_100;
  tell(here, there, nowMs);
  for (let n = 0; n < 20; n++) here.offset.add(nowMs + n, nowMs + n + 12 + AHEAD_MS, nowMs + n + 24);
  const far = () => here.farEnd(nowMs + 20, { reports: mix, leadFrames: 96_000 });
  expect(far()).toBeNull();
  // Its frame of 10 s is the mix's of 12 s, which takes 30 ms.
  for (let n = 0; n < 20; n++)
    mix.handleAudio(audio(576_000 + n * 128), EPOCH_MS + 10_000 + (n * 128) / 48 + 2.9 + 30);
  expect(far()).toMatchObject({ isMixed: true, overrunFrames: 7 });
  expect(far()?.lineMs).toBeCloseTo(EPOCH_MS - 2_000, 2);
  expect(far()?.networkMs).toBeCloseTo(30, 2);
});

it("tells at once that frames were lost: until then the peer's figure is off by as much", () => {
  const reports = new Reports(0);
  const toldAt = (first: number, lostMs: (n: number) => number) =>
    Array.from({ length: 20 }, (_, at) => {
      const n = first + at;
      const captured = { ...capture, lineMs: capture.lineMs + lostMs(n) };
      return reports.poll(captured, 0, EPOCH_MS + n * 100) === null ? [] : [n];
    }).flat();
  const lost = (n: number) => (n < 7 ? 0 : n < 9 ? 1.3 : 2.6);
  expect(toldAt(0, lost), "the second waits for its turn").toEqual([0, 5, 7, 12, 17]);
  // What drifts slowly waits for its turn, however far it comes, and so does a capture that ends.
  expect(toldAt(20, (n) => 2.6 + (n - 20) * 0.09)).toEqual([22, 27, 32, 37]);
  expect(reports.poll(null, 0, EPOCH_MS + 4_100)).toBeNull();
});

it("takes the newest report, whatever came later", () => {
  const [here, there] = [new Reports(0), new Reports(0)];
  there.setHears(heard, EPOCH_MS);
  const first = there.poll(null, 0, EPOCH_MS)!;
  there.setHears({ ...heard, lostPackets: 99 }, EPOCH_MS);
  const second = there.poll(null, 0, EPOCH_MS + 500)!;
  here.handleReport(second, EPOCH_MS + 510);
  here.handleReport(first, EPOCH_MS + 511);
  expect(here.heard(EPOCH_MS + 512)?.lostShare).toBe(99 / (1_490 + 99));
});

it("believes that a peer captures nothing when it has said so twice: it may only have begun", () => {
  const [here, there] = [new Reports(0), new Reports(0)];
  const said = [null, capture, null, null, capture].map((captured, n) => {
    const nowMs = EPOCH_MS + 500 * n;
    here.handleReport(there.poll(captured, 0, nowMs)!, nowMs);
    return here.captures(nowMs);
  });
  expect(said).toEqual([null, true, null, false, true]);
});

it("forgets a peer that falls silent, and believes it when it begins anew", () => {
  const [here, there] = [new Reports(0), new Reports(0)];
  for (let n = 0; n < 10; n++) {
    there.setHears(heard, EPOCH_MS + n * 500);
    tell(here, there, EPOCH_MS + n * 500);
  }
  expect(here.heard(EPOCH_MS + 5_000)).toEqual({
    isMixed: false,
    lostShare: 10 / 1_500,
    lateShare: 2 / 1_500,
    concealedShare: 1_280 / 192_000,
    periodMs: 4_000,
    bufferFrames: 384,
    targetFrames: 208,
    spreadFrames: 192,
    outputUnderruns: null,
  });
  expect(here.heard(EPOCH_MS + 8_000)).toBeNull();
  const reborn = new Reports(0);
  reborn.setHears({ ...heard, lostPackets: 0 }, EPOCH_MS + 9_000);
  tell(here, reborn, EPOCH_MS + 9_000);
  expect(here.heard(EPOCH_MS + 9_020)?.lostShare).toBe(0);
});

it("says no more how the peer is heard once main has not said so for 3 s", () => {
  const reports = new Reports(0);
  reports.setHears(heard, EPOCH_MS);
  const told = Array.from(
    { length: 8 },
    (_, n) => readReport(reports.poll(null, 0, EPOCH_MS + n * 500)!).heard,
  );
  expect(told).toEqual([...Array(6).fill(heard), null, null]);
});

it("counts what the server's mixer made up as concealed, and the rest as the mix's", () => {
  const mix = { ...heard, playedFrames: 180_000, concealedFrames: 20_000 };
  const source = { ...mix, isMixed: true, playedFrames: 130_000, concealedFrames: 70_000 };
  expect(inMix(mix, 0.25)).toEqual(source);
  expect(inMix(mix, 1)).toMatchObject({ playedFrames: 0, concealedFrames: 200_000 });
});
