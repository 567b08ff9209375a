import { afterEach, describe, expect, it, vi } from "vitest";
import { type Asked, Ladders, Paths, type Pin } from "../../src/shared/engine";
import { type FromWorker, RELAY_STREAM } from "../../src/shared/messages";
import { sinkOf, sourceOf } from "../../src/shared/records";
import { type Rung, rungsFor, type SendConfig } from "../../src/shared/rungs";
import {
  type HeardReport,
  KIND_PROBE,
  KIND_PROBE_REPLY,
  KIND_REPORT,
  kindOf,
  MIX_STREAM,
  probeId,
  probeRepliedNs,
  probeReply,
  readAudioHeader,
  readReport,
  streamOf,
  writeProbe,
  writeReport,
  writeSequence,
  writeStream,
} from "../../src/shared/wire";
import type { LaneChannel } from "../../src/worker/lane";
import type { Sending } from "../../src/worker/listener";
import { Peers } from "../../src/worker/peers";
import { toNs } from "../../src/worker/report";
import type { Trace } from "../../src/worker/trace";
import { load } from "./golden";
import { portPair } from "./ports";
import { SENDING } from "./sending";
import { type FakeChunk, FakeDecoder, installFakes, opusDatagram, removeFakes } from "./webcodecs";

afterEach(() => {
  vi.restoreAllMocks();
  vi.useRealTimers();
});

const CHOSEN: SendConfig = { ...SENDING, copies: "auto", adapts: true };

/** Ways that a peer wants. */
const BOTH = { direct: true, relayed: true };
const RELAYED = { direct: false, relayed: true };

const sendingOf = (config: Partial<SendConfig> = {}): Sending => {
  const whole = { ...CHOSEN, ...config };
  return { rungs: rungsFor(whole, true), copies: whole.copies, addsLanes: whole.addsLanes };
};

/** Packet number `n` of 128 frames of 16-bit stereo, as the sender makes it. */
function packet(n: number): Uint8Array<ArrayBuffer> {
  const datagram = new Uint8Array(20 + 128 * 4);
  datagram.set([1, 1, 0x11, 2, 0, 0, 128, 0]);
  const fields = new DataView(datagram.buffer);
  fields.setUint32(8, 1_000_000 + n, true);
  fields.setBigUint64(12, BigInt(128 * n), true);
  return datagram;
}

/** The same with a copy of the one before. */
function packetWithCopy(n: number): Uint8Array<ArrayBuffer> {
  const datagram = new Uint8Array(20 + 128 * 4 + 2 * (3 + 64));
  datagram.set(packet(n));
  return datagram;
}

/** Takes all that passes. */
const anySink = { push: () => true, push2: () => true };

/** Packet number `n` of 240 frames of Opus. */
const opusPacket = (n: number) => opusDatagram(240, 240 * n);

/** A listener's report that of so many of our packets so many were lost. */
const heardWith = (lostPackets: number, packets: number): HeardReport => ({
  isMixed: false,
  periodMs: 4_000,
  receivedPackets: packets - lostPackets,
  lostPackets,
  latePackets: 0,
  playedFrames: 190_080,
  concealedFrames: 1_920,
  bufferFrames: null,
  targetFrames: 208,
  spreadFrames: null,
  outputUnderruns: null,
});

interface Sent {
  sequence: number;
  timestamp: number;
  isOpus: boolean;
  atMs: number;
}

/** As much of a data channel as a lane looks at. */
function channel(clock = { nowMs: 0 }) {
  const sent: Sent[] = [];
  const datagrams: Uint8Array[] = [];
  const open = {
    readyState: "open" as LaneChannel["readyState"],
    bufferedAmount: 0,
    sent,
    datagrams,
    onmessage: null as LaneChannel["onmessage"],
    onclose: null as LaneChannel["onclose"],
    send(bytes: Uint8Array) {
      datagrams.push(bytes.slice());
      if (bytes[1] !== 1) return;
      const { sequence, timestamp, bits } = readAudioHeader(bytes);
      sent.push({ sequence, timestamp: Number(timestamp), isOpus: bits === null, atMs: clock.nowMs });
    },
    close() {},
  };
  return open;
}
type Channel = ReturnType<typeof channel>;

const ladders = () => new Ladders(load().module);

function peersWith(lanes: Channel[], sending = sendingOf(), say: (message: FromWorker) => void = () => {}) {
  const all = ladders();
  const peers = new Peers(anySink, say, (rungs) => all.add(rungs));
  peers.setSending(sending);
  for (const [number, lane] of lanes.entries()) peers.addLane(1, number, 1, true, lane);
  return peers;
}

const counts = (lanes: Channel[]) => lanes.map(({ sent }) => sent.length);

describe("lanes", () => {
  it("take turns while they have no backlog, so that none fills with what is under way", () => {
    const lanes = [channel(), channel(), channel(), channel()];
    const peers = peersWith(lanes);
    for (let n = 0; n < 40; n++) peers.send("main", packet(n));
    expect(counts(lanes)).toEqual([10, 10, 10, 10]);
  });

  it("are used by the least backlog", () => {
    const lanes = [channel(), channel(), channel()];
    const peers = peersWith(lanes);
    lanes[0].bufferedAmount = 1000;
    lanes[1].bufferedAmount = 500;
    lanes[2].bufferedAmount = 2000;
    for (let n = 0; n < 9; n++) peers.send("main", packet(n));
    expect(counts(lanes)).toEqual([0, 9, 0]);
  });

  it("drop and count what would wait behind a backlog on every one", () => {
    const lanes = [channel(), channel()];
    const peers = peersWith(lanes);
    peers.send("main", packet(0));
    peers.send("main", packet(1));
    for (const lane of lanes) lane.bufferedAmount = 532;
    peers.takeStock(0);
    peers.takeStock(500);
    peers.send("main", packet(2));
    expect(counts(lanes)).toEqual([1, 1]);
    expect(peers.stats()[0].droppedBacklog).toBe(1);
    // The listener sees that one is missing.
    for (const lane of lanes) lane.bufferedAmount = 0;
    peers.takeStock(510);
    peers.send("main", packet(3));
    const sequences = lanes.flatMap(({ sent }) => sent.map(({ sequence }) => sequence));
    expect(sequences.sort()).toEqual([0, 1, 3]);
  });

  it("are passed over when closed", () => {
    const lanes = [channel(), channel()];
    const peers = peersWith(lanes);
    lanes[0].readyState = "closed";
    for (let n = 0; n < 6; n++) peers.send("main", packet(n));
    expect(counts(lanes)).toEqual([0, 6]);
  });
});

it("lanes take nothing any more once they are closed or replaced", () => {
  const lanes = [channel(), channel(), channel()];
  let passed = 0;
  const peers = new Peers({ ...anySink, push2: () => ++passed > 0 }, () => {});
  for (const [number, lane] of lanes.entries()) peers.addLane(1, number, 1, true, lane);
  const hear = () => {
    for (const lane of lanes) lane.onmessage?.({ data: packet(0).buffer });
  };
  hear();
  expect(passed).toBe(3);
  peers.addLane(1, 0, 2, true, channel());
  peers.closeLane(1, 1);
  hear();
  expect(passed).toBe(4);
  peers.close(1);
  hear();
  expect(passed).toBe(4);
});

it("a lane that is retired takes what is under way for a second, and nothing is sent on it", () => {
  vi.useFakeTimers();
  const lanes = [channel(), channel()];
  let passed = 0;
  const peers = new Peers({ ...anySink, push2: () => ++passed > 0 }, () => {});
  for (const [number, lane] of lanes.entries()) peers.addLane(1, number, 1, true, lane);
  peers.retireLane(1, 1);
  // Another in its place is none of its business.
  const next = channel();
  peers.addLane(1, 1, 2, true, next);
  for (let n = 0; n < 6; n++) peers.send("main", packet(n));
  expect(counts([...lanes, next])).toEqual([3, 0, 3]);
  lanes[1].onmessage?.({ data: packet(0).buffer });
  vi.advanceTimersByTime(1_000);
  lanes[1].onmessage?.({ data: packet(1).buffer });
  next.onmessage?.({ data: packet(2).buffer });
  expect(passed).toBe(2);
  vi.useRealTimers();
});

it.each([
  ["samples", packet],
  ["Opus, some of which is in the decoder", (n: number) => opusDatagram(120, 120 * n)],
])("what the audio thread has no room for, as it stands still, is no loss of the way: %s", (_, packet) => {
  installFakes();
  const late: (() => void)[] = [];
  let isFirst = true;
  Object.assign(globalThis, {
    AudioDecoder: class extends FakeDecoder {
      override decode(chunk: FakeChunk): void {
        late.push(() => super.decode(chunk));
        if (isFirst || late.length > 3) late.shift()?.();
        isFirst = false;
      }
    },
  });
  const lane = channel();
  const numbers: number[] = [];
  let given = 0;
  const push = (_: number, bytes: Uint8Array) => {
    const hasRoom = given < 10 || given >= 20;
    given++;
    if (hasRoom) numbers.push(readAudioHeader(bytes).sequence);
    return hasRoom;
  };
  const peers = new Peers({ push, push2: push }, () => {});
  peers.addLane(1, 0, 1, true, lane);
  for (let n = 0; n < 30; n++) {
    const datagram = packet(n);
    writeSequence(datagram, n);
    // One is lost on the way.
    if (n !== 25) lane.onmessage?.({ data: datagram.buffer });
  }
  for (const decode of late) decode();
  expect(numbers).toEqual([...Array(15).keys(), 16, 17, 18, 19]);
  expect(peers.ringOverflows).toBe(10);
  removeFakes();
});

it("what the audio thread has no room for is no loss of the way where no memory is shared either, and counted", () => {
  const [near, far] = portPair();
  const capacityBytes = 8_192;
  const { ring, acknowledge } = sourceOf({ port: far }, capacityBytes);
  const peers = new Peers(sinkOf({ port: near }, capacityBytes), () => {});
  const lane = channel();
  peers.addLane(1, 0, 1, true, lane);
  let next = 0;
  const receive = (packets: number) => {
    for (const end = next + packets; next < end; next++) {
      const datagram = packet(next);
      writeSequence(datagram, next);
      lane.onmessage?.({ data: datagram.buffer });
    }
  };
  const record = new Uint8Array(1_000);
  const numbers: number[] = [];
  const take = (most: number) => {
    for (let n = 0; n < most && ring.pop(record) > 0; n++) numbers.push(readAudioHeader(record).sequence);
    acknowledge();
  };
  // Of 20 + 512 bytes and the time: 552 with the record's header.
  receive(30);
  expect(peers.ringOverflows, "14 fit").toBe(30 - 14);
  take(4);
  receive(10);
  expect(peers.ringOverflows, "4 more").toBe(16 + 10 - 4);
  take(100);
  receive(14);
  take(100);
  expect(peers.ringOverflows).toBe(22);
  expect(numbers).toEqual([...Array(32).keys()]);
});

it("shorter packets of Opus are played once their decoder has a tenth of a second of past, while longer ones come the same way", () => {
  installFakes();
  const lane = channel();
  const frames: number[] = [];
  const push = (_: number, record: Uint8Array) => frames.push((record.length - 20) / 8) > 0;
  const peers = new Peers({ ...anySink, push }, () => {});
  peers.addLane(1, 0, 1, true, lane);
  for (let n = 0; n < 60; n++) {
    if (n % 4 === 0) lane.onmessage?.({ data: opusDatagram(480, 120 * n).buffer });
    lane.onmessage?.({ data: opusDatagram(120, 120 * n).buffer });
  }
  expect(frames.filter((count) => count === 480).length).toBe(14);
  expect(frames.filter((count) => count === 120).length).toBe(60 - 41);
  removeFakes();
});

it("lanes are what a format needs: without an open one nobody listens, and nothing is encoded", () => {
  const lane = channel();
  const peers = peersWith([lane], sendingOf({ bits: "opus" }));
  expect(peers.rungsInUse().length).toBe(1);
  lane.readyState = "closed";
  expect(peers.rungsInUse()).toEqual([]);
});

describe("copies", () => {
  it("are carried by samples to who shall have them, and by nothing else", () => {
    const lanes = [channel(), channel()];
    const peers = peersWith(lanes, sendingOf({ copies: "on" }));
    expect([peers.wantsCopies("main"), peers.wantsCopies("s16")]).toEqual([true, false]);
    peers.send("main", packet(0));
    peers.send("main", packetWithCopy(1));
    peers.sendCopies();
    expect(peers.stats()[0].sent).toMatchObject({ copies: true, copiesSent: 1 });
    peers.setSending(sendingOf({ copies: "off" }));
    expect(peers.wantsCopies("main")).toBe(false);
    peers.send("main", packetWithCopy(2));
    const lengths = lanes.flatMap(({ datagrams }) => datagrams.map(({ length }) => length));
    expect(lengths, "by the first lane, the second, the first again").toEqual([532, 532, 666]);
  });

  it("are wanted by nobody whose lanes are all closed, who would have nobody's blocks sent whole", () => {
    const lane = channel();
    const peers = peersWith([lane], sendingOf({ copies: "on" }));
    lane.readyState = "closed";
    expect(peers.wantsCopies("main")).toBe(false);
  });

  it("of Opus follow the originals of their burst, the same to the byte, each on another lane", () => {
    const lanes = [channel(), channel(), channel()];
    const sending = sendingOf({ copies: "on", bits: "opus" });
    const { key } = sending.rungs[0];
    const peers = peersWith(lanes, sending);
    const order: string[] = [];
    for (const [number, lane] of lanes.entries()) {
      lane.send = (bytes) => {
        if (bytes[1] === 1) order.push(`${readAudioHeader(bytes).sequence} on ${number}`);
      };
    }
    for (let n = 0; n < 3; n++) peers.send(key, opusPacket(n));
    peers.sendCopies();
    expect(order.slice(0, 3)).toEqual(["0 on 0", "1 on 1", "2 on 2"]);
    expect(order.slice(3).map((copy) => copy.split(" ")[0])).toEqual(["0", "1", "2"]);
    expect(new Set(order).size).toBe(6);
    peers.sendCopies();
    expect(order.length).toBe(6);
    expect(peers.stats()[0].sent).toMatchObject({ copies: true, copiesSent: 3 });
  });

  it("of Opus are not sent where they would queue, nor on an only lane", () => {
    const lanes = [channel(), channel()];
    const sending = sendingOf({ copies: "on", bits: "opus" });
    const { key } = sending.rungs[0];
    const peers = peersWith(lanes, sending);
    peers.send(key, opusPacket(0));
    peers.sendCopies();
    expect(counts(lanes)).toEqual([1, 1]);
    lanes[1].bufferedAmount = 532;
    peers.takeStock(0);
    peers.takeStock(10);
    peers.send(key, opusPacket(1));
    peers.sendCopies();
    expect(counts(lanes)).toEqual([2, 1]);
    lanes[1].readyState = "closed";
    peers.send(key, opusPacket(2));
    peers.sendCopies();
    expect(counts(lanes)).toEqual([3, 1]);
  });
});

/** One listener whose lanes drain at a given rate, in virtual time: 375 packets a second, reviewed as the worker does. */
class Path {
  readonly clock = { nowMs: performance.now() };
  readonly lanes: Channel[];
  readonly said: FromWorker[] = [];
  /** A lane sends nothing until then. */
  readonly heldUntilMs: number[] = [];
  readonly peers: Peers;
  #packets = 0;
  #reports = 0;
  #opusPackets = 0;
  #dueOpus = 0;
  /** Shares lost in the last 4 s, by tenths of a second: what a report tells is their mean. */
  #lately: number[] = [];

  constructor(laneCount: number, sending: Sending) {
    vi.spyOn(performance, "now").mockImplementation(() => this.clock.nowMs);
    this.lanes = Array.from({ length: laneCount }, () => channel(this.clock));
    this.peers = peersWith(this.lanes, sending, (message) => this.said.push(message));
  }

  /** Every path's bytes per second to each lane; audio is queued in `bufferedAmount` until then. */
  run(seconds: number, lanesBps: number, lost: () => number = () => 0): void {
    const drained = (lanesBps / 8) * (128 / 48_000);
    for (const end = this.clock.nowMs + seconds * 1000; this.clock.nowMs < end; ) {
      const step = (128 / 48_000) * 1000;
      const before = Math.floor(this.clock.nowMs / 10);
      this.clock.nowMs += step;
      for (const [n, lane] of this.lanes.entries()) {
        if (this.clock.nowMs < (this.heldUntilMs[n] ?? 0)) continue;
        lane.bufferedAmount = Math.max(0, lane.bufferedAmount - drained);
      }
      if (Math.floor(this.clock.nowMs / 10) > before) this.peers.takeStock(this.clock.nowMs);
      if (Math.floor(this.clock.nowMs / 100) > Math.floor((this.clock.nowMs - step) / 100)) {
        this.#lately = [...this.#lately.slice(-39), lost()];
        const lostShare = this.#lately.reduce((sum, share) => sum + share) / this.#lately.length;
        this.#hear(heardWith(Math.round(lostShare * 10_000), 10_000));
        this.peers.review(this.clock.nowMs);
      }
      this.#send();
    }
  }

  #hear(heard: HeardReport): void {
    this.lanes[0]?.onmessage?.({ data: writeReport({ id: ++this.#reports, capture: null, heard }).buffer });
  }

  #send(): void {
    const inUse = this.peers.rungsInUse();
    const queue = (send: () => void) => {
      const before = counts(this.lanes);
      send();
      for (const [n, lane] of this.lanes.entries())
        for (const { isOpus } of lane.sent.slice(before[n])) lane.bufferedAmount += isOpus ? 100 : 532;
    };
    const n = this.#packets++;
    queue(() => {
      for (const key of ["main", "s16"] as const)
        this.peers.send(key, this.peers.wantsCopies(key) ? packetWithCopy(n) : packet(n));
      this.peers.sendCopies();
    });
    this.#dueOpus += 128;
    if (!inUse.some(({ format }) => format === "opus")) this.#opusPackets = Math.ceil((n * 128) / 240);
    // What an encoder holds comes 400 frames late.
    while (this.#dueOpus >= 400 && this.#opusPackets * 240 + 400 <= n * 128) {
      const opus = opusPacket(this.#opusPackets++);
      queue(() => {
        for (const { key, format } of inUse) if (format === "opus") this.peers.send(key, opus.slice());
        this.peers.sendCopies();
      });
    }
  }

  get sent() {
    const { sent } = this.peers.stats()[0];
    if (sent === null) throw new Error("no lane is open");
    return sent;
  }
}

// Minutes of virtual time take seconds on a busy machine.
describe("the ladder", { timeout: 60_000 }, () => {
  it("leaves a path that carries everything as chosen", () => {
    const path = new Path(2, sendingOf({ bits: 24 }));
    path.run(30, 10e6);
    expect(path.sent).toMatchObject({ format: "s24", rung: 0, copies: false, copiesSent: 0, switches: 0 });
    expect(path.said).toEqual([]);
  });

  it("sends copies while the listener reports loss, and looks now and then whether it still does", () => {
    const path = new Path(2, sendingOf());
    path.run(8, 10e6);
    expect(path.sent.copies).toBe(false);
    // With copies nothing is missing, without them 2 %.
    const lost = () => (path.sent.copies ? 0.0004 : 0.02);
    path.run(3, 10e6, lost);
    expect(path.sent.copies).toBe(true);
    path.run(60, 10e6, lost);
    const lengths = path.lanes.flatMap(({ datagrams }) => datagrams.map(({ length }) => length));
    expect(lengths.filter((length) => length === 666).length).toBe(path.sent.copiesSent);
    // Off for a second or two at 10 and at 30 s of 60.
    expect(path.sent.copiesSent / (62 * 375)).toBeGreaterThan(0.9);
    expect(path.sent.copiesSent / (62 * 375)).toBeLessThan(0.99);
    path.run(60, 10e6, () => 0);
    expect(path.sent.copies).toBe(false);
  });

  it("steps down to what the path carries without a hole, and up again once it carries all", () => {
    const path = new Path(1, sendingOf({ bits: 24 }));
    path.run(5, 10e6);
    path.run(12, 700_000);
    expect(path.sent).toMatchObject({ format: "opus", copies: false });
    expect(path.sent.switches).toBeGreaterThanOrEqual(2);
    path.run(45, 10e6);
    expect(path.sent).toMatchObject({ format: "s24", rung: 0 });
    const { sent } = path.lanes[0];
    // Numbers go on by one but for what was dropped, whatever the format.
    const missing = sent.slice(1).filter(({ sequence }, n) => sequence !== sent[n].sequence + 1).length;
    expect(missing).toBeLessThanOrEqual(path.peers.stats()[0].droppedBacklog);
    expect(sent.at(-1)!.sequence + 1 - sent.length).toBe(path.peers.stats()[0].droppedBacklog);
    // Up again nothing is crowded, and every frame is there.
    const first = sent.findLastIndex(({ isOpus }) => isOpus) - 1000;
    const covered = sent
      .slice(first)
      .map(({ timestamp, isOpus }) => [timestamp, timestamp + (isOpus ? 240 : 128)]);
    covered.sort(([a], [b]) => a - b);
    let end = covered[0][0];
    let holes = 0;
    for (const [from, to] of covered) {
      if (from > end) holes++;
      end = Math.max(end, to);
    }
    expect(holes).toBe(0);
    expect(covered.length).toBeGreaterThan(1000);
  });

  it("traces what is sent, whatever the format, and nothing that is not", () => {
    const path = new Path(1, sendingOf());
    const traced: number[] = [];
    const sent = (datagram: Uint8Array<ArrayBuffer>) => traced.push(readAudioHeader(datagram).sequence);
    path.peers.trace = { sent, received() {} } as unknown as Trace;
    path.run(5, 10e6);
    path.run(12, 700_000);
    expect(path.sent).toMatchObject({ format: "opus" });
    expect(traced).toEqual(traced.map((_, n) => n));
  });

  it("takes a step up that was too much back at once, and what was sent before it goes on", () => {
    const path = new Path(1, sendingOf());
    path.run(2, 10e6);
    // Enough for Opus, not for both.
    path.run(9, 1e6);
    expect(path.sent.format).toBe("opus");
    const already = path.lanes[0].sent.length;
    const [{ droppedBacklog }] = path.peers.stats();
    path.run(50, 1e6);
    expect(path.sent.format).toBe("opus");
    const sent = path.lanes[0].sent.slice(already);
    const samples = sent.filter(({ isOpus }) => !isOpus).map(({ timestamp }) => timestamp);
    const attempts = samples.filter((time, n) => n === 0 || time > samples[n - 1] + 48_000).length;
    expect(attempts).toBeGreaterThanOrEqual(2);
    // A quarter of a second at most; it would be two if each waited for its reviews.
    expect(samples.length).toBeLessThan(attempts * 94);
    const opus = [...new Set(sent.filter(({ isOpus }) => isOpus).map(({ timestamp }) => timestamp))];
    expect(opus.every((time, n) => n === 0 || time === opus[n - 1] + 240)).toBe(true);
    expect(path.peers.stats()[0].droppedBacklog).toBe(droppedBacklog);
  });

  it("adds lanes before it steps down, does not wait for lanes that do not come, and takes back those that did not help", () => {
    const path = new Path(2, sendingOf({ addsLanes: true }));
    path.run(2, 10e6);
    path.run(12, 100_000);
    expect(path.said).toEqual([4, 8, 2].map((count) => ({ type: "lanes-wanted", stream: 1, count })));
    expect(path.sent.rung).toBeGreaterThan(0);
  });

  it("adds more lanes to one who is sent copies: those that lose some carry less", () => {
    const path = new Path(2, sendingOf({ addsLanes: true, copies: "on" }));
    path.run(2, 10e6);
    path.run(3.5, 100_000);
    expect(path.said).toEqual([4, 8, 16].map((count) => ({ type: "lanes-wanted", stream: 1, count })));
  });

  it("adds lanes again when their number is left to it again", () => {
    const path = new Path(2, sendingOf({ addsLanes: true, copies: "on" }));
    path.run(3.5, 100_000);
    expect(path.said.length).toBe(3);
    for (const addsLanes of [false, true]) path.peers.setSending(sendingOf({ addsLanes, copies: "on" }));
    path.run(3.5, 100_000);
    expect(path.said[3]).toEqual({ type: "lanes-wanted", stream: 1, count: 4 });
  });

  it("shares the lanes that there may be among many peers", () => {
    const path = new Path(2, sendingOf({ addsLanes: true, copies: "on" }));
    for (let n = 2; n < 12; n++) path.peers.setPeer(n, n, "auto", { direct: true, relayed: false });
    path.run(3.5, 100_000);
    expect(path.said).toEqual([4, 6].map((count) => ({ type: "lanes-wanted", stream: 1, count })));
  });

  it.each([
    ["one lane at a time, with copies", 1, 30, "on", [8]],
    ["one lane at a time, without copies", 1, 30, "off", []],
    ["all lanes at once, with copies", 4, 20, "on", []],
  ] as const)("adds lanes where some hold datagrams back: %s", (_, lanesHeld, heldMs, copies, wanted) => {
    // Wherever between two looks it begins.
    for (let phaseMs = 0; phaseMs < 10; phaseMs++) {
      const path = new Path(4, sendingOf({ addsLanes: true, copies }));
      path.clock.nowMs += phaseMs;
      let turn = 0;
      // Ten times a second, of 375 datagrams: more than one in a hundred. One alone is held for two looks; all together for less than makes them crowded.
      path.run(1.5, 10e6, () => {
        for (let n = 0; n < lanesHeld; n++) path.heldUntilMs[turn++ % 4] = path.clock.nowMs + heldMs;
        return 0.02;
      });
      expect(path.said).toEqual(wanted.map((count) => ({ type: "lanes-wanted", stream: 1, count })));
    }
  });

  it("takes lanes away again after a minute of calm, but leaves a second one for copies", () => {
    const path = new Path(3, sendingOf({ addsLanes: true }));
    path.run(65, 10e6);
    expect(path.said).toEqual([{ type: "lanes-wanted", stream: 1, count: 2 }]);
    path.lanes[2].readyState = "closed";
    path.run(65, 10e6);
    expect(path.said.length).toBe(1);
  });

  it("keeps lanes as long as copies are needed", () => {
    const path = new Path(3, sendingOf({ addsLanes: true }));
    path.run(130, 10e6, () => (path.sent.copies ? 0.0004 : 0.02));
    expect(path.said).toEqual([]);
  });

  it("goes on with what the path carries when another format is chosen", () => {
    const path = new Path(1, sendingOf());
    const choose = (config: Partial<SendConfig>) => {
      path.peers.setSending(sendingOf(config));
      return path.sent;
    };
    path.run(2, 10e6);
    expect(choose({ bits: 24 })).toMatchObject({ format: "s24", rung: 0 });
    choose({});
    while (path.sent.rung === 0) path.run(0.1, 1e6);
    expect(path.sent).toMatchObject({ format: "opus", opusBps: 128_000, rung: 1 });
    expect(choose({ bits: 24 })).toMatchObject({ format: "opus", opusBps: 128_000, rung: 2 });
    path.run(2, 10e6);
    expect(path.sent.rung, "so has the ladder").toBe(2);
    path.run(14, 10e6);
    expect(path.sent).toMatchObject({ format: "s16", rung: 1 });
    expect(choose({}), "the same samples").toMatchObject({ format: "s16", rung: 0 });
  });

  it("keeps the format where that was asked for", () => {
    const path = new Path(1, sendingOf({ adapts: false }));
    path.run(20, 100_000);
    expect(path.sent).toMatchObject({ format: "s16", rung: 0, switches: 0 });
  });
});

describe("a change of format", () => {
  const timesOf = (lane: Channel, isOpus: boolean) =>
    lane.sent.filter((sent) => sent.isOpus === isOpus).map(({ timestamp }) => timestamp);

  it("overlaps where a codec is involved: what ends is sent until the other has taken over", () => {
    const lane = channel();
    const peers = peersWith([lane]);
    const opus = sendingOf({ bits: "opus" });
    const [{ key }] = opus.rungs;
    const keys = () => peers.rungsInUse().map((rung) => rung.key);
    for (let n = 0; n < 10; n++) peers.send("main", packet(n));
    peers.setSending(opus);
    expect(keys()).toEqual([key, "main"]);
    // The encoder takes its time: nothing is missing meanwhile.
    for (let n = 10; n < 14; n++) peers.send("main", packet(n));
    for (let n = 6; n < 12; n++) peers.send(key, opusPacket(n));
    for (let n = 14; n < 400; n++) peers.send("main", packet(n));
    expect(timesOf(lane, true)[0]).toBe(1440);
    // Until a second after that.
    const last = timesOf(lane, false).at(-1)!;
    expect(last + 128).toBeGreaterThanOrEqual(1440 + 48_000);
    expect(last).toBeLessThan(1440 + 48_000);
    expect(keys()).toEqual([key]);
    expect(lane.sent.map(({ sequence }) => sequence)).toEqual(lane.sent.map((_, n) => n));
    expect(peers.stats()[0].sent).toMatchObject({ format: "opus", opusBps: 128_000, switches: 1 });

    peers.setSending(sendingOf());
    for (let n = 400; n < 1200; n++) {
      peers.send("main", packet(n));
      if (n < 1000) peers.send(key, opusPacket(n - 200));
    }
    expect(timesOf(lane, false).filter((time) => time >= 128 * 400).length).toBe(800);
    expect(timesOf(lane, true).at(-1)! + 240).toBeGreaterThanOrEqual(128 * 400 + 48_000);
    expect(keys()).toEqual(["main"]);
  });

  it.each([-2, 0, 2])(
    "is sharp between Opus packets of one duration, which go through one decoder, once both encoders have the same past; the new one ahead by %i",
    (ahead) => {
      const lane = channel();
      const opus = (opusKbps: 128 | 256) => sendingOf({ bits: "opus", packetFrames: 240, opusKbps });
      const [before, after] = [opus(128), opus(256)];
      const [[{ key: old }], [{ key }]] = [before.rungs, after.rungs];
      const peers = peersWith([lane], before);
      const keys = () => peers.rungsInUse().map((rung) => rung.key);
      const sent: string[][] = Array.from({ length: 400 }, () => []);
      const send = (by: string, n: number) => {
        const count = lane.sent.length;
        if (keys().includes(by)) peers.send(by, opusPacket(n));
        if (lane.sent.length > count) sent[n]!.push(by);
      };
      for (let n = 0; n < 20; n++) send(old, n);
      peers.setSending(after);
      // The encoder takes its time.
      for (let n = 20; n < 40; n++) send(old, n);
      expect(keys()).toEqual([key, old]);
      for (let n = 40; n < 398; n++) {
        if (n + ahead >= 40) send(key, n + ahead);
        send(old, n);
      }
      const first = Math.max(40, 40 + ahead) + 20;
      expect(sent.slice(0, first)).toEqual(Array(first).fill([old]));
      expect(sent.slice(first, 396)).toEqual(Array(396 - first).fill([key]));
      expect(keys()).toEqual([key]);
    },
  );

  it("goes on with what was sent where the next has not begun, whatever is chosen meanwhile", () => {
    const peers = peersWith([channel()]);
    const opus = (opusKbps: 128 | 256) => sendingOf({ bits: "opus", packetFrames: 240, opusKbps });
    const keys = () => peers.rungsInUse().map((rung) => rung.key);
    peers.send("main", packet(0));
    peers.setSending(opus(256));
    peers.setSending(opus(128));
    expect(keys()).toEqual(["opus-128-240", "main"]);
    peers.setSending(sendingOf());
    expect(keys()).toEqual(["main"]);
  });

  it("goes on with what there is while an encoder begins anew, and with samples if that is nothing", () => {
    const opus = (opusKbps: 128 | 256) => sendingOf({ bits: "opus", packetFrames: 240, opusKbps });
    const [[{ key: old }], [{ key }]] = [opus(128).rungs, opus(256).rungs];
    const peers = peersWith([channel()], opus(128));
    const keys = () => peers.rungsInUse().map((rung) => rung.key);
    peers.setSending(opus(256));
    peers.send(key, opusPacket(0));
    peers.bridge(key);
    for (let n = 0; n < 600; n++) peers.send(old, opusPacket(n));
    expect(keys()).toEqual([key, old]);
    peers.bridge(old);
    expect(keys()).toEqual([key, "main"]);
  });

  it("ends though the old format stopped by itself, as with an encoder that failed", () => {
    const peers = peersWith([channel()], sendingOf({ bits: "opus" }));
    peers.setSending(sendingOf());
    expect(peers.rungsInUse().length).toBe(2);
    for (let n = 0; n < 750; n++) peers.send("main", packet(n));
    expect(peers.rungsInUse().length).toBe(2);
    peers.send("main", packet(750));
    expect(peers.rungsInUse().map(({ key }) => key)).toEqual(["main"]);
  });

  it("is sharp between samples: the renditions' packets are of the same frames", () => {
    const lane = channel();
    const peers = peersWith([lane], sendingOf({ bits: 24 }));
    peers.send("main", packet(0));
    peers.setSending(sendingOf({ bits: 16 }));
    expect(peers.stats()[0].sent).toMatchObject({ format: "s16", switches: 0 });
    peers.send("main", packet(1));
    expect(lane.sent.map(({ timestamp }) => timestamp)).toEqual([0, 128]);
  });
});

describe("lanes are made anew", () => {
  /** Two lanes, and how long their probes take and what is lost. */
  function listening(bits: "opus" | 16) {
    const lanes = [channel(), channel()];
    const closed: number[] = [];
    const peers = peersWith(lanes, sendingOf({ bits }), (message) => {
      if (message.type === "lane-closed") closed.push(message.lane);
    });
    let reports = 0;
    return {
      peers,
      /** Those given up at the review. */
      at(nowMs: number, rttMs: number, lostPercent: number, isMixed = false) {
        for (const lane of lanes) {
          const probe = writeProbe(1, toNs(Date.now() - rttMs));
          lane.onmessage?.({ data: probeReply(probe, toNs(Date.now())).buffer });
        }
        const heard = { ...heardWith(lostPercent, 100), isMixed };
        lanes[0].onmessage?.({ data: writeReport({ id: ++reports, capture: null, heard }).buffer });
        peers.review(nowMs);
        return closed.splice(0);
      },
    };
  }

  it("where much is lost of the little that is sent, and a queue on the way is full all the same", () => {
    const path = listening("opus");
    expect(path.at(0, 20, 30), "nothing waits on the way").toEqual([]);
    expect(path.at(100, 150, 5), "not much is lost").toEqual([]);
    expect(path.at(200, 150, 30)).toEqual([0, 1]);
    // Not again and again.
    expect(path.at(10_100, 150, 30)).toEqual([]);
    expect(path.at(10_200, 150, 30)).toEqual([0, 1]);
  });

  it("but not for what the listener misses of the server's mix: our lanes have no part in that", () => {
    const path = listening("opus");
    expect([path.at(0, 20, 30, true), path.at(100, 150, 30, true)]).toEqual([[], []]);
    expect(path.at(200, 150, 30)).toEqual([0, 1]);
  });

  it("but not while the relay has a part in what is lost", () => {
    const path = listening("opus");
    const session = channel();
    path.peers.setPeer(1, 7, "auto", BOTH);
    path.peers.addLane(RELAY_STREAM, 0, 0, true, session);
    path.peers.setRelay({ listeners: 1, opus: true }, null);
    const probe = writeProbe(0, 1n);
    writeStream(probe, 7);
    session.onmessage?.({ data: probe.buffer });
    const nowMs = performance.now() + 1_000;
    expect(path.at(nowMs, 20, 30)).toEqual([]);
    expect(path.at(nowMs + 100, 150, 30), "it may be the relay that loses").toEqual([]);
    path.peers.setPeer(1, 7, "auto", RELAYED);
    expect(path.at(nowMs + 10_000, 150, 30), "nothing is sent on these").toEqual([]);
  });

  it("but not where samples are sent, which are too much themselves", () => {
    const path = listening(16);
    expect([path.at(0, 20, 30), path.at(100, 150, 30)]).toEqual([[], []]);
  });
});

describe("formats to step down to", () => {
  const names = (config: Partial<SendConfig>, hasOpus = true) =>
    rungsFor({ ...CHOSEN, ...config }, hasOpus).map((rung: Rung) =>
      rung.format === "opus" ? `${rung.opusBps / 1000}/${rung.frames}` : rung.format,
    );

  it("are each cheaper than the one before", () => {
    expect(names({ bits: 32 })).toEqual(["f32", "s16", "128/240", "64/480"]);
    expect(names({ bits: 16 })).toEqual(["s16", "128/240", "64/480"]);
    expect(names({ bits: "opus", opusKbps: 256 })).toEqual(["256/120", "128/240", "64/480"]);
    expect(names({ bits: "opus", opusKbps: 96, packetFrames: 512 })).toEqual(["96/480", "64/480"]);
    expect(names({ bits: "opus", opusKbps: 64, packetFrames: 256 })).toEqual(["64/240"]);
  });

  it("leave Opus out where it cannot be, and end at the first where none is wanted", () => {
    expect(names({ bits: 24, channels: 3 })).toEqual(["s24", "s16"]);
    expect(names({ bits: 24, rateHz: 96_000 })).toEqual(["s24", "s16"]);
    expect(names({ bits: "opus" }, false)).toEqual(["s16"]);
    expect(names({ bits: "opus", channels: 8 })).toEqual(["s16"]);
    expect(names({ bits: 24, adapts: false })).toEqual(["s24"]);
    expect(names({ bits: "opus", adapts: false })).toEqual(["128/120"]);
  });
});

describe("of a peer that sends", () => {
  const MALFORMED = new Uint8Array([9, 9]);

  /** Peers 1 and 2 on a lane each, and how much was given to the audio thread of each. */
  function two() {
    vi.useFakeTimers({ toFake: ["performance"] });
    const lanes = [channel(), channel()];
    const given = [0, 0];
    const push2 = (stream: number) => ++given[stream - 1]! > 0;
    const peers = new Peers({ ...anySink, push2 }, () => {});
    for (const [n, lane] of lanes.entries()) peers.addLane(n + 1, 0, 1, true, lane);
    const send = (n: number, { buffer }: Uint8Array<ArrayBuffer>) => lanes[n]!.onmessage?.({ data: buffer });
    const refused = () => peers.stats().map((peer) => peer.refused);
    return { given, lanes, refused, send };
  }

  it.each([
    ["audio", () => packet(0), 24, 16_000, 0],
    ["probes", () => writeProbe(1, 5n), 15, 0, 200],
    ["what is malformed", () => MALFORMED, 15, 200, 0],
  ])(
    "too much, only its share is looked at, and another's is not touched: %s",
    (_, make, perMs, most, replies) => {
      const { given, lanes, refused, send } = two();
      for (let n = 0; n < 1_000; n++) {
        for (let m = 0; m < perMs; m++) send(0, make());
        send(1, packet(n));
        vi.advanceTimersByTime(1);
      }
      expect(given[1]).toBe(1_000);
      // What may come at once, and in a second.
      const answered = lanes[0]!.datagrams.length;
      expect(Math.abs(given[0]! - most)).toBeLessThan(20);
      expect(Math.abs(answered - replies)).toBeLessThan(2);
      expect(refused()).toEqual([1_000 * perMs - given[0]! - answered, 0]);
      expect(lanes[0]!.onmessage).not.toBeNull();
    },
  );

  it.each([
    ["audio", packet(0)],
    ["what is malformed", MALFORMED],
    ["what is too long", new Uint8Array(1_001)],
  ])("far too much, its lane ends: %s", (_, datagram) => {
    const { lanes, refused, send } = two();
    for (let n = 0; n < 100_000; n++) send(0, datagram);
    expect(lanes.map(({ onmessage }) => onmessage === null)).toEqual([true, false]);
    expect(refused()).toEqual([8_001, 0]);
  });

  it("as much as one may, all is looked at: packets of 16 frames at 96 kHz, by 16 lanes, a second of it at once", () => {
    const { given, lanes, refused, send } = two();
    for (let burst = 0; burst < 10; burst++) {
      vi.advanceTimersByTime(1_000);
      for (let n = 0; n < 6_000; n++) send(0, packet(n));
      for (let n = 0; n < 32; n++) send(0, writeProbe(n, 5n));
      for (let n = 0; n < 32; n++) send(0, probeReply(writeProbe(n, 5n), 5n));
      for (let n = 0; n < 2; n++) send(0, writeReport({ id: n, capture: null, heard: null }));
    }
    expect([given[0], lanes[0]!.datagrams.length, refused()]).toEqual([60_000, 320, [0, 0]]);
  });
});

it("answers a probe with its own clock, on the lane the probe came by", () => {
  const lanes = [channel(), channel()];
  peersWith(lanes);
  lanes[1].onmessage?.({ data: writeProbe(77, 5n).buffer });
  expect(lanes[0].datagrams).toEqual([]);
  const [reply] = lanes[1].datagrams;
  expect([kindOf(reply), probeId(reply)]).toEqual([KIND_PROBE_REPLY, 77]);
  expect(probeRepliedNs(reply)).toBeGreaterThan(0n);
});

it("knows the offset of a peer whose page is itself, to the round trip", () => {
  const lane = channel();
  const peers = peersWith([lane]);
  peers.review(1_000_000);
  const [probe] = lane.datagrams;
  expect(kindOf(probe)).toBe(KIND_PROBE);
  lane.onmessage?.({ data: probe.buffer });
  lane.onmessage?.({ data: lane.datagrams[1].buffer });
  expect(peers.stats()[0].lanes[0].rttMs).not.toBeNull();
});

it("gives up lanes that answer no more once they are doubted, and no others", () => {
  vi.useFakeTimers({ toFake: ["performance"] });
  try {
    const said: FromWorker[] = [];
    const peers = new Peers(anySink, (message) => said.push(message));
    const [living, dead, opening, session] = [channel(), channel(), channel(), channel()];
    peers.addLane(1, 0, 5, true, living);
    peers.addLane(1, 1, 6, true, dead);
    peers.addLane(RELAY_STREAM, 0, 0, true, session);
    /** Half a second, in which some answer their probes. */
    const goOn = (answering: Channel[]) => {
      vi.advanceTimersByTime(500);
      peers.review(performance.now());
      for (const lane of answering) {
        const probe = lane.datagrams.findLast((bytes) => kindOf(bytes) === KIND_PROBE);
        if (probe !== undefined)
          lane.onmessage?.({ data: probeReply(probe.slice(), toNs(Date.now())).buffer });
      }
    };
    for (let n = 0; n < 10; n++) goOn([living, dead, session]);
    // Silence alone is no reason: the path may come back by itself.
    for (let n = 0; n < 10; n++) goOn([living]);
    expect(said.filter(({ type }) => type === "lane-closed")).toEqual([]);
    // But how long its way was is no figure of now.
    expect(peers.stats()[0].lanes.map(({ rttMs }) => rttMs)).toEqual([expect.any(Number), null]);
    expect(peers.relayStats()).toMatchObject({ sessions: [{ rttMs: null }], rttMs: null });
    peers.addLane(1, 2, 7, true, opening);
    peers.doubtLanes(performance.now());
    for (let n = 0; n < 10; n++) goOn([living]);
    expect(said.filter(({ type }) => type === "lane-closed")).toEqual([
      { type: "lane-closed", stream: 1, lane: 1, epoch: 6 },
    ]);
  } finally {
    vi.useRealTimers();
  }
});

it("reports to each peer how it is heard, and knows how the peer hears us", () => {
  const lane = channel();
  const passed: number[] = [];
  const peers = new Peers({ ...anySink, push2: (_, bytes) => passed.push(bytes.length) > 0 }, () => {});
  peers.addLane(1, 0, 1, true, lane);
  const heard = heardWith(10, 1_000);
  peers.setHeard(1, heard);
  peers.setHeard(9, heard);
  peers.report(() => null);
  peers.report(() => null);
  expect(lane.datagrams.map((bytes) => [kindOf(bytes), readReport(bytes).heard])).toEqual([
    [KIND_REPORT, heard],
  ]);
  expect(peers.stats()[0]).toMatchObject({ heard: null, captures: null });
  for (const id of [1, 2]) lane.onmessage?.({ data: writeReport({ id, capture: null, heard }).buffer });
  expect(peers.stats()[0].heard).toMatchObject({ lostShare: 0.01, concealedShare: 0.01, bufferFrames: null });
  expect(peers.stats()[0].captures).toBe(false);
  // One that cannot be goes where all malformed datagrams are counted.
  const bad = writeReport({ id: 3, capture: null, heard });
  bad[2] = 4;
  lane.onmessage?.({ data: bad.buffer });
  expect(peers.stats()[0].heard).toMatchObject({ lostShare: 0.01, concealedShare: 0.01, bufferFrames: null });
  expect(passed).toEqual([bad.length]);
});

it("reports the capture as of the format that the peer is sent", () => {
  const lane = channel();
  const peers = peersWith([lane], sendingOf({ bits: "opus" }));
  const asked: string[] = [];
  const report = () => {
    peers.report((key) => {
      asked.push(key);
      return null;
    });
  };
  const [{ key }] = sendingOf({ bits: "opus" }).rungs;
  report();
  peers.setSending(sendingOf());
  report();
  for (let n = 0; n <= 750; n++) peers.send("main", packet(n));
  report();
  expect(asked).toEqual([key, key, "main"]);
});

describe("through the relay", () => {
  /** Peer 1, whom the room calls 7, with a direct lane; peer 2, called 9, without; and a session with the relay. */
  function room(pin: Pin = "auto", paths: Paths | null = null, all: Ladders | null = null) {
    const [direct, session] = [channel(), channel()];
    const said: FromWorker[] = [];
    const passed: { tag: number; stream: number; sequence: number }[] = [];
    const sink = {
      ...anySink,
      push2: (tag: number, bytes: Uint8Array) => {
        const { stream, sequence } = readAudioHeader(bytes);
        return passed.push({ tag, stream, sequence }) > 0;
      },
    };
    const peers = new Peers(
      sink,
      (message) => said.push(message),
      (rungs) => all?.add(rungs) ?? null,
      paths,
    );
    peers.addLane(1, 0, 1, true, direct);
    peers.setPeer(1, 7, pin, BOTH);
    peers.setPeer(2, 9, "auto", BOTH);
    peers.addLane(RELAY_STREAM, 0, 0, true, session);
    peers.setRelay({ listeners: 1, opus: true }, null);
    const hear = (lane: Channel, bytes: Uint8Array<ArrayBuffer>, stream: number) => {
      writeStream(bytes, stream);
      lane.onmessage?.({ data: bytes.buffer });
    };
    /** By the relay: the peer is reached, and answers. */
    const answer = (number: number) => hear(session, writeProbe(0, 1n), number);
    const ofKind = (lane: Channel, kind: number) => lane.datagrams.filter((bytes) => kindOf(bytes) === kind);
    let [nowMs, n] = [1_000_000, 0];
    /** A packet every 10 ms; how many there were so far. */
    const run = (milliseconds: number): number => {
      for (const end = nowMs + milliseconds; nowMs < end; nowMs += 10) {
        peers.takeStock(nowMs);
        if (nowMs % 100 === 0) peers.review(nowMs);
        peers.send("main", packet(n++));
      }
      return n;
    };
    return { peers, direct, session, said, passed, hear, answer, ofKind, run };
  }

  const sequences = (lane: Channel) => lane.sent.map(({ sequence }) => sequence);

  it("goes one datagram for all who listen there, with numbers of its own", () => {
    const { peers, direct, session } = room();
    peers.send("main", packet(0));
    peers.setRelay({ listeners: 0, opus: true }, null);
    for (let n = 1; n < 4; n++) peers.send("main", packet(n));
    peers.setRelay({ listeners: 2, opus: true }, null);
    peers.send("main", packet(4));
    expect(sequences(direct)).toEqual([0, 1, 2, 3, 4]);
    expect(sequences(session)).toEqual([0, 1]);
    expect(session.sent.map(({ timestamp }) => timestamp)).toEqual([0, 128 * 4]);
  });

  it("is bridged by no samples that its encoder needed while nothing was sent there", () => {
    const opus = sendingOf({ bits: "opus" });
    const peers = peersWith([channel()], opus);
    const [{ key }] = opus.rungs;
    peers.addLane(RELAY_STREAM, 0, 0, true, channel());
    peers.bridge(key);
    const keys = () => peers.rungsInUse().map((rung) => rung.key);
    expect(keys()).toEqual([key, "main"]);
    for (let n = 0; n < 400; n++) {
      peers.send(key, opusDatagram(120, 120 * n));
      peers.send("main", packet(n));
    }
    expect(keys()).toEqual([key]);
    peers.setPeer(2, 9, "auto", BOTH);
    peers.setRelay({ listeners: 1, opus: true }, null);
    expect(keys()).toEqual([key]);
  });

  it("needs a format for as long as somebody takes it there", () => {
    const { peers, direct } = room();
    direct.readyState = "closed";
    expect(peers.rungsInUse().length).toBe(1);
    peers.setRelay({ listeners: 0, opus: true }, null);
    expect(peers.rungsInUse()).toEqual([]);
  });

  it("is left alone where all are wanted directly and heard so within 5 s, and needed 1 s after that has ended", () => {
    vi.useFakeTimers();
    const { peers, direct, hear } = room("direct");
    const asked = () => peers.stats().find(({ stream }) => stream === 1)!.asked;
    expect(peers.needsRelay, "peer 2 is not pinned").toBe(true);
    peers.close(2);
    for (const [ms, isHeard, isNeeded] of [
      [4_900, false, false],
      [200, false, true],
      [0, true, false],
      [900, true, false],
      // The lane stays open: the peer has chosen the relay alone.
      [900, false, false],
      [200, false, true],
    ] as const) {
      vi.advanceTimersByTime(ms);
      if (isHeard) hear(direct, packet(0), 0);
      peers.review(performance.now());
      expect(peers.needsRelay).toBe(isNeeded);
    }
    vi.advanceTimersByTime(500);
    peers.review(performance.now());
    expect(asked()).toBe("forwarded");
    hear(direct, packet(1), 0);
    vi.advanceTimersByTime(500);
    peers.review(performance.now());
    expect(asked()).toBe("nothing");
    vi.useRealTimers();
  });

  it("takes the place of a direct lane by which nothing comes any more, though it is open", () => {
    vi.useFakeTimers();
    const { peers, direct, session, answer, hear } = room("auto", new Paths(load().module));
    // By which of the two, a second later.
    const sentBy = () => {
      vi.advanceTimersByTime(1_000);
      answer(7);
      peers.review(performance.now());
      const before = [direct, session].map((lane) => lane.sent.length);
      peers.send("main", packet(0));
      return [direct, session].map((lane, n) => lane.sent.length - before[n]!);
    };
    for (let n = 0; n < 3; n++) expect(sentBy()).toEqual([1, 1]);
    expect(sentBy()).toEqual([0, 1]);
    hear(direct, writeProbe(0, 1n), 0);
    expect(sentBy()).toEqual([1, 1]);
    // Without the relay it is tried on.
    peers.setRelay({ listeners: 0, opus: true }, null);
    for (let n = 0; n < 5; n++) expect(sentBy()).toEqual([1, 0]);
    vi.useRealTimers();
  });

  it("is not relied on while nobody takes our stream there, though a peer shall not be sent it directly", () => {
    const { peers, direct, answer } = room();
    peers.setRelay({ listeners: 0, opus: true }, null);
    answer(7);
    peers.setPeer(1, 7, "auto", RELAYED);
    peers.send("main", packet(0));
    expect(sequences(direct)).toEqual([0]);
    peers.setRelay({ listeners: 1, opus: true }, null);
    peers.send("main", packet(1));
    expect(sequences(direct)).toEqual([0]);
  });

  it("goes in samples where somebody there has no use for Opus, whatever is sent directly", () => {
    const { peers } = room();
    const opus: Rung = { key: "opus-128-120", format: "opus", opusBps: 128_000, frames: 120 };
    const keys = () => peers.rungsInUse().map(({ key }) => key);
    const choose = (...rungs: [Rung, ...Rung[]]) =>
      peers.setSending({ rungs, copies: "off", addsLanes: false });
    choose(opus);
    for (const takes of [false, true]) {
      peers.setRelay({ listeners: 1, opus: takes }, null);
      expect(keys()).toContain("opus-128-120");
      expect(peers.relayStats()?.sent?.format).toBe(takes ? "opus" : "s16");
    }
  });

  it("comes to the stream of whom the room calls so, and to nobody else", () => {
    const { peers, session, passed, hear } = room();
    hear(session, packet(0), 9);
    hear(session, packet(1), 7);
    hear(session, packet(2), 8);
    hear(session, packet(3), 0);
    expect(passed).toEqual([
      { tag: 2, stream: 9, sequence: 1_000_000 },
      { tag: 1, stream: 7, sequence: 1_000_001 },
    ]);
    expect(peers.relayStats()).toMatchObject({ strayDatagrams: 2 });
    // Numbers change when the server is started anew.
    peers.setPeer(1, 9, "auto", BOTH);
    peers.setPeer(2, 7, "auto", BOTH);
    hear(session, packet(4), 9);
    expect(passed.at(-1)).toMatchObject({ tag: 1 });
    peers.close(1);
    hear(session, packet(5), 9);
    expect(passed.length).toBe(3);
  });

  it("reaches nobody by a number that is another's now, and who has none only directly", () => {
    vi.useFakeTimers();
    const { peers, direct, session, answer, ofKind } = room();
    answer(7);
    peers.setPeer(1, 7, "auto", RELAYED);
    peers.send("main", packet(0));
    expect(sequences(direct)).toEqual([]);
    peers.setPeer(2, 7, "auto", BOTH);
    const reached = () => {
      session.datagrams.length = 0;
      vi.advanceTimersByTime(1_000);
      peers.review(performance.now());
      peers.report(() => null);
      return [KIND_PROBE, KIND_REPORT].map((kind) => ofKind(session, kind).map(streamOf));
    };
    expect(reached()).toEqual([[0, 7], [7]]);
    peers.send("main", packet(1));
    expect(sequences(direct), "nobody could pass it on").toEqual([0]);
    peers.setPeer(2, null, "auto", BOTH);
    expect(reached()).toEqual([[0], []]);
    peers.setPeer(1, 9, "auto", BOTH);
    expect(reached()).toEqual([[0, 9], [9]]);
    vi.useRealTimers();
  });

  it("brings the mix to its own stream", () => {
    const { peers, session, passed, hear } = room();
    peers.setPeer(3, MIX_STREAM, "auto", RELAYED);
    hear(session, packet(0), MIX_STREAM);
    expect(passed).toEqual([{ tag: 3, stream: MIX_STREAM, sequence: 1_000_000 }]);
  });

  it("answers a peer's probe with the number it came with, and the relay's own with none", () => {
    const { peers, direct, session, hear, ofKind } = room();
    hear(session, writeProbe(77, 5n), 9);
    expect(ofKind(session, KIND_PROBE_REPLY).map((reply) => [streamOf(reply), probeId(reply)])).toEqual([
      [9, 77],
    ]);
    expect(direct.datagrams).toEqual([]);
    peers.review(1_000_000);
    const probes = ofKind(session, KIND_PROBE);
    expect(probes.map(streamOf)).toEqual([0, 7, 9]);
    expect(ofKind(direct, KIND_PROBE).map(streamOf)).toEqual([0]);
    const reply = (probe: Uint8Array) => probeReply(probe, toNs(0));
    hear(session, reply(probes[0]), 0);
    expect(peers.relayStats()?.rttMs).not.toBeNull();
    expect(peers.stats().map(({ ways, relayOpen }) => [ways.relayed.rttMs !== null, relayOpen])).toEqual([
      [false, false],
      // Its probe came this way.
      [false, true],
    ]);
    hear(session, reply(probes[1]), 7);
    expect(peers.stats()[0]).toMatchObject({
      relayOpen: true,
      ways: { relayed: { rttMs: expect.any(Number) } },
    });
  });

  it("has no round trip to tell once no probe was answered for 3 s, whatever else comes", () => {
    vi.useFakeTimers();
    const { peers, direct, session, hear } = room();
    const rtts = () => Object.values(peers.stats()[0]!.ways).map(({ rttMs }) => rttMs);
    const reply = () => probeReply(writeProbe(0, toNs(performance.timeOrigin + performance.now() - 20)), 1n);
    hear(direct, reply(), 0);
    hear(session, reply(), 7);
    for (let n = 0; n < 30; n++) {
      for (const rttMs of rtts()) expect(rttMs).toBeCloseTo(20, 1);
      vi.advanceTimersByTime(100);
      hear(direct, packet(n), 0);
      hear(session, packet(n), 7);
    }
    expect(rtts()).toEqual([null, null]);
    vi.useRealTimers();
  });

  it("carries reports both ways, to peers who can be reached by nothing else, too", () => {
    const { peers, direct, session, hear, ofKind } = room();
    peers.report(() => null);
    expect(ofKind(direct, KIND_REPORT).map(streamOf)).toEqual([0]);
    expect(ofKind(session, KIND_REPORT).map(streamOf)).toEqual([7, 9]);
    hear(session, writeReport({ id: 1, capture: null, heard: heardWith(10, 1_000) }), 9);
    expect(peers.stats().map(({ heard }) => heard?.lostShare ?? null)).toEqual([null, 0.01]);
  });

  it("counts for each way what came first by it", () => {
    const { peers, direct, session, hear } = room();
    hear(direct, packet(0), 0);
    hear(session, packet(0), 7);
    hear(session, packet(1), 7);
    hear(direct, packet(1), 0);
    hear(direct, packet(2), 0);
    hear(direct, packet(3), 0);
    const [{ ways }] = peers.stats();
    expect(ways.direct).toMatchObject({ receivedPackets: 4, firstPackets: 3, isHeard: true });
    expect(ways.relayed).toMatchObject({ receivedPackets: 2, firstPackets: 1, isHeard: true });
  });

  it("is the only way where it is pinned, once it is heard; and the direct one otherwise", () => {
    const { peers, direct, session, passed, hear, answer } = room("relay");
    hear(direct, packet(0), 0);
    peers.send("main", packet(0));
    expect([passed.length, sequences(direct).length]).toEqual([1, 1]);
    answer(7);
    hear(session, packet(0), 7);
    hear(direct, packet(1), 0);
    expect(passed.map(({ stream }) => stream)).toEqual([0, 7]);
    // By the peer's own pin: it has said so.
    peers.setPeer(1, 7, "relay", RELAYED);
    peers.send("main", packet(1));
    expect([sequences(direct).length, sequences(session).length]).toEqual([1, 2]);
    peers.setPeer(1, 7, "direct", BOTH);
    hear(session, packet(2), 7);
    hear(direct, packet(2), 0);
    peers.review(1_001_000);
    expect(passed.map(({ stream }) => stream)).toEqual([0, 7, 0]);
    expect(peers.stats()[0].asked).toBe("nothing");
  });

  it("is no reason to leave a peer without sound: the direct way is sent until the other is open", () => {
    const { peers, direct, answer } = room();
    peers.setPeer(1, 7, "auto", RELAYED);
    peers.send("main", packet(0));
    expect(sequences(direct)).toEqual([0]);
    answer(7);
    peers.review(1_000_000);
    peers.send("main", packet(1));
    expect(sequences(direct)).toEqual([0]);
  });

  it.each(["relay", "direct"] as const)("is followed at once where the chosen way ends: %s", (ended) => {
    const chosen = { direct: ended === "direct", relay: ended === "relay" };
    const path = { review: () => chosen, close: () => {} };
    const paths = { add: () => path, listen: () => "forwarded" } as unknown as Paths;
    const { peers, direct, session, answer } = room("auto", paths);
    answer(7);
    answer(9);
    peers.setPeer(2, 9, "auto", { direct: true, relayed: false });
    peers.review(1_000_000);
    peers.send("main", packet(0));
    const [kept, lost] = ended === "relay" ? [direct, session] : [session, direct];
    expect([sequences(kept).length, sequences(lost).length]).toEqual([0, 1]);
    lost.readyState = "closed";
    if (ended === "relay") peers.setRelay({ listeners: 0, opus: true }, null);
    else lost.onclose?.();
    peers.send("main", packet(1));
    expect([sequences(kept).length, sequences(lost).length]).toEqual([1, 1]);
  });

  it("is the only way while the uplink is short, if it serves two there with one stream", () => {
    const { direct, session, answer, peers, run } = room("auto", new Paths(load().module));
    peers.setRelay({ listeners: 2, opus: true }, null);
    answer(7);
    run(2_000);
    expect(sequences(direct).length).toBe(200);
    direct.bufferedAmount = 100_000;
    run(2_000);
    const before = sequences(direct).length;
    direct.bufferedAmount = 0;
    const all = run(5_000);
    expect(sequences(direct).length).toBe(before);
    expect(sequences(session).length).toBe(all);
    // Both again after a calm time.
    run(15_000);
    expect(sequences(direct).length).toBeGreaterThan(before);
  });

  it("is no way in place of a peer's direct one because another peer's lane is bad", () => {
    const { peers, direct, session, answer, run } = room("auto", new Paths(load().module));
    const bad = channel();
    peers.addLane(2, 0, 1, true, bad);
    peers.setRelay({ listeners: 2, opus: true }, null);
    answer(7);
    answer(9);
    run(1_000);
    bad.bufferedAmount = 100_000;
    run(1_000);
    const before = sequences(bad).length;
    bad.bufferedAmount = 0;
    const all = run(5_000);
    expect([bad, direct, session].map((lane) => sequences(lane).length)).toEqual([before, all, all]);
  });

  it("does not count what it said before its session ended as of now, nor what it counts anew as lost", () => {
    const listen = vi.fn<Paths["listen"]>(() => "forwarded");
    const paths = { add: () => null, listen };
    const peers = new Peers(
      anySink,
      () => {},
      () => null,
      paths,
    );
    peers.addLane(RELAY_STREAM, 0, 0, true, channel());
    const counts = { rtt_us: 900, over_rate: 0, lost: 0, mix_us: null, mixed: [], received: 0, missing: 0 };
    const said = [
      { forwarded: 1_000_000, aged: 20_000 },
      { forwarded: 1_000_400, aged: 20_002 },
      null,
      { forwarded: 1_000_900, aged: 20_003 },
      // The server was restarted.
      { forwarded: 100, aged: 0 },
      { forwarded: 500, aged: 4 },
    ];
    for (const [n, these] of said.entries()) {
      peers.setRelay({ listeners: 1, opus: true }, these && { ...counts, ...these });
      peers.review(1_000_000 + 1_000 * n);
    }
    const grown = listen.mock.calls.map(([{ forwarded, aged }]) => [forwarded, aged]);
    expect(grown).toEqual([
      [0, 0],
      [400, 2],
      [0, 0],
      [500, 1],
      [0, 0],
      [400, 4],
    ]);
  });

  it("is no way to one who does not take it there, whoever else does; and no copy for that one", () => {
    const { peers, direct, session, answer, hear, run } = room("auto", new Paths(load().module), ladders());
    const second = channel();
    peers.addLane(1, 1, 1, true, second);
    peers.setSending(sendingOf());
    peers.setRelay({ listeners: 2, opus: true }, null);
    const seconds = (count: number) => {
      for (let n = 0; n < count; n++) {
        answer(7);
        hear(direct, writeReport({ id: n, capture: null, heard: heardWith(20, 1_000) }), 0);
        run(1_000);
      }
    };
    peers.setPeer(1, 7, "auto", { direct: true, relayed: false });
    seconds(5);
    expect(peers.stats()[0].sent?.copies).toBe(true);
    direct.bufferedAmount = second.bufferedAmount = 100_000;
    run(1_000);
    direct.bufferedAmount = second.bufferedAmount = 0;
    const before = counts([direct, session]);
    seconds(1);
    expect(sequences(direct).length).toBeGreaterThan(before[0]!);
    // Once it does, the relay may be the only way.
    peers.setPeer(1, 7, "auto", BOTH);
    direct.bufferedAmount = second.bufferedAmount = 100_000;
    run(1_000);
    direct.bufferedAmount = second.bufferedAmount = 0;
    const alone = counts([direct, second]);
    run(1_000);
    expect(counts([direct, second])).toEqual(alone);
  });

  it("is sent copies on more sessions while it misses some of ours, unless everyone is sent the same directly", () => {
    const { peers, said, answer, run } = room("auto", null, ladders());
    peers.setSending(sendingOf({ addsLanes: true }));
    const wanted = () => said.flatMap((message) => (message.type === "lanes-wanted" ? [message.count] : []));
    const copiesAfter = (seconds: number, lost: number) => {
      for (let n = 0; n < seconds; n++) {
        answer(7);
        // With copies nothing is missing.
        const missing = peers.relayStats()?.sent?.copies ? 0 : lost;
        const counts = { rtt_us: 900, forwarded: 0, aged: 0, over_rate: 0, lost: 0, mix_us: null, mixed: [] };
        peers.setRelay({ listeners: 1, opus: true }, { ...counts, received: 400 - missing, missing });
        run(1_000);
      }
      return peers.relayStats()?.sent?.copies;
    };
    expect(copiesAfter(10, 8), "directly as well").toBe(false);
    expect(wanted()).toEqual([]);
    peers.setPeer(1, 7, "auto", RELAYED);
    expect(peers.relayStats()?.missingShare).toBe(0.02);
    expect(copiesAfter(5, 8), "samples need no second session for them").toBe(true);
    expect(wanted()).toEqual([4]);
    const others = [1, 2, 3].map((number) => {
      const other = channel();
      peers.addLane(RELAY_STREAM, number, 0, true, other);
      return other;
    });
    expect(copiesAfter(126, 8)).toBe(true);
    expect(wanted(), "they stay, though nothing is missing with copies").toEqual([4]);
    while (others.length > 1) {
      const before = wanted().length;
      for (let seconds = 0; wanted().length === before && seconds < 200; seconds++) copiesAfter(1, 0);
      others.pop()!.readyState = "closed";
    }
    expect(copiesAfter(200, 0)).toBe(false);
    expect(wanted()).toEqual([4, 3, 2]);
  });

  it("leaves the engine's room for paths and formats to those who have them: the mix has neither, and one's own loop no path", () => {
    const paths = { add: vi.fn(() => null), listen: (): Asked => "forwarded" };
    const newLadder = vi.fn(() => null);
    const peers = new Peers(anySink, () => {}, newLadder, paths);
    const added = () => [newLadder, paths.add].map((add) => add.mock.calls.length);
    peers.setPeer(3, MIX_STREAM, "auto", RELAYED);
    expect(added()).toEqual([0, 0]);
    peers.addLane(4, 0, 1, true, channel());
    peers.addLane(RELAY_STREAM, 0, 0, true, channel());
    expect(added()).toEqual([2, 0]);
    peers.addLane(1, 0, 1, true, channel());
    peers.setPeer(1, 7, "auto", BOTH);
    expect(added()).toEqual([3, 1]);
  });

  it("is no way for our sound because a mix comes by it", () => {
    const { peers, direct, session } = room("auto", new Paths(load().module));
    peers.setPeer(3, MIX_STREAM, "auto", RELAYED);
    peers.close(2);
    // Nothing comes from peer 1 by the relay: directly is the only way.
    peers.review(1_000_000);
    for (let n = 0; n < 100; n++) peers.send("main", packet(n));
    expect([direct, session].map((lane) => sequences(lane).length)).toEqual([100, 0]);
  });

  it("is a way of its own for the format: the session that backs up steps down, the direct lane does not", () => {
    const all = ladders();
    const [direct, session] = [channel(), channel()];
    const peers = new Peers(
      anySink,
      () => {},
      (rungs) => all.add(rungs),
    );
    peers.setSending(sendingOf());
    peers.addLane(1, 0, 1, true, direct);
    peers.setPeer(1, 7, "auto", BOTH);
    peers.addLane(RELAY_STREAM, 0, 0, true, session);
    peers.setRelay({ listeners: 1, opus: true }, null);
    session.bufferedAmount = 10_000;
    const startMs = performance.now();
    for (let n = 0; n < 2_000; n++) {
      const nowMs = startMs + n * 2.67;
      if (n % 4 === 0) peers.takeStock(nowMs);
      if (n % 40 === 0) peers.review(nowMs);
      peers.send("main", packet(n));
    }
    expect(peers.stats()[0].sent?.rung).toBe(0);
    expect(peers.relayStats()?.sent?.rung).toBeGreaterThan(0);
  });
});
