import { existsSync, readFileSync, statSync } from "node:fs";
import { resolve } from "node:path";
import { describe, expect, it } from "vitest";
import { Ladders } from "../../src/shared/engine";
import type { FromWorker } from "../../src/shared/messages";
import { type Rung, rungsFor, type SendConfig } from "../../src/shared/rungs";
import {
  type HeardReport,
  KIND_PROBE,
  KIND_PROBE_REPLY,
  KIND_REPORT,
  kindOf,
  probeId,
  probeRepliedNs,
  readAudioHeader,
  readReport,
  writeOpus,
  writeProbe,
  writeReport,
} from "../../src/shared/wire";
import { Peers, type Sending } from "../../src/worker/peers";

const root = resolve(import.meta.dirname, "../../..");
/** The engine as it was built last: by make for the web app, or by cargo alone. */
const [engine] = ["web/src/main/engine.wasm", "target/wasm32-unknown-unknown/wasm/antiphon_core_wasm.wasm"]
  .map((path) => resolve(root, path))
  .filter((path) => existsSync(path))
  .sort((a, b) => statSync(b).mtimeMs - statSync(a).mtimeMs);

const CHOSEN: SendConfig = {
  rateHz: 48_000,
  channels: 2,
  packetFrames: 128,
  bits: 16,
  opusKbps: 128,
  copies: "auto",
  adapts: true,
  addsLanes: false,
};

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

/** Packet number `n` of 240 frames of Opus. */
const opusPacket = (n: number) => writeOpus(2, 240, BigInt(240 * n), 80).datagram;

/** A listener's report that of so many of our packets so many were lost. */
const heardWith = (lostPackets: number, packets: number): HeardReport => ({
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
    readyState: "open",
    bufferedAmount: 0,
    binaryType: "",
    sent,
    datagrams,
    onmessage: null as ((event: { data: unknown }) => void) | null,
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

function ladders(): Ladders {
  if (engine === undefined) throw new Error("The engine is not built: make build");
  return new Ladders(new WebAssembly.Module(readFileSync(engine)));
}

function peersWith(lanes: Channel[], sending = sendingOf(), say: (message: FromWorker) => void = () => {}) {
  const all = ladders();
  const peers = new Peers({ push: () => true }, say, (rungs) => all.add(rungs));
  peers.setSending(sending);
  for (const [number, lane] of lanes.entries())
    peers.addLane(1, number, 1, true, lane as unknown as RTCDataChannel);
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
  const peers = new Peers({ push: () => ++passed > 0 }, () => {});
  for (const [number, lane] of lanes.entries())
    peers.addLane(1, number, 1, true, lane as unknown as RTCDataChannel);
  const hear = () => {
    for (const lane of lanes) lane.onmessage?.({ data: packet(0).buffer });
  };
  hear();
  expect(passed).toBe(3);
  peers.addLane(1, 0, 2, true, channel() as unknown as RTCDataChannel);
  peers.closeLane(1, 1);
  hear();
  expect(passed).toBe(4);
  peers.close(1);
  hear();
  expect(passed).toBe(4);
});

it("lanes are what a format needs: without an open one nobody listens, and nothing is encoded", () => {
  const lane = channel();
  const peers = peersWith([lane], sendingOf({ bits: "opus" }));
  expect(peers.rungsInUse().length).toBe(1);
  lane.readyState = "closed";
  expect(peers.rungsInUse()).toEqual([]);
});

describe("copies", () => {
  it("follow the originals of their burst, the same to the byte, each on another lane", () => {
    const lanes = [channel(), channel(), channel()];
    const peers = peersWith(lanes, sendingOf({ copies: "on" }));
    const order: string[] = [];
    for (const [number, lane] of lanes.entries()) {
      lane.send = (bytes) => {
        if (bytes[1] === 1) order.push(`${readAudioHeader(bytes).sequence} on ${number}`);
      };
    }
    for (let n = 0; n < 3; n++) peers.send("main", packet(n));
    peers.sendCopies();
    expect(order.slice(0, 3)).toEqual(["0 on 0", "1 on 1", "2 on 2"]);
    expect(order.slice(3).map((copy) => copy.split(" ")[0])).toEqual(["0", "1", "2"]);
    expect(new Set(order).size).toBe(6);
    peers.sendCopies();
    expect(order.length).toBe(6);
    expect(peers.stats()[0].sent).toMatchObject({ copies: true, copiesSent: 3 });
  });

  it("are not sent where they would queue, nor on an only lane", () => {
    const lanes = [channel(), channel()];
    const peers = peersWith(lanes, sendingOf({ copies: "on" }));
    peers.send("main", packet(0));
    peers.sendCopies();
    expect(counts(lanes)).toEqual([1, 1]);
    lanes[1].bufferedAmount = 532;
    peers.takeStock(0);
    peers.takeStock(10);
    peers.send("main", packet(1));
    peers.sendCopies();
    expect(counts(lanes)).toEqual([2, 1]);
    lanes[1].readyState = "closed";
    peers.send("main", packet(2));
    peers.sendCopies();
    expect(counts(lanes)).toEqual([3, 1]);
  });
});

/** One listener whose lanes drain at a given rate, in virtual time: 375 packets a second, reviewed as the worker does. */
class Path {
  readonly clock = { nowMs: performance.now() };
  readonly lanes: Channel[];
  readonly said: FromWorker[] = [];
  readonly peers: Peers;
  #packets = 0;
  #reports = 0;
  #opusPackets = 0;
  #dueOpus = 0;
  /** Shares lost in the last 4 s, by tenths of a second: what a report tells is their mean. */
  #lately: number[] = [];

  constructor(laneCount: number, sending: Sending) {
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
      for (const lane of this.lanes) lane.bufferedAmount = Math.max(0, lane.bufferedAmount - drained);
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
        lane.bufferedAmount += (lane.sent.length - before[n]) * (inUse.at(-1)?.format === "opus" ? 100 : 532);
    };
    const n = this.#packets++;
    queue(() => {
      this.peers.send("main", packet(n));
      this.peers.send("s16", packet(n));
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
    const originals = new Set(path.lanes.flatMap(({ sent }) => sent.map(({ sequence }) => sequence)));
    const all = counts(path.lanes).reduce((sum, count) => sum + count, 0);
    expect(all - originals.size).toBe(path.sent.copiesSent);
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

  it("adds lanes before it steps down, and does not wait for lanes that do not come", () => {
    const path = new Path(2, sendingOf({ addsLanes: true }));
    path.run(2, 10e6);
    path.run(12, 100_000);
    expect(path.said).toEqual([4, 8].map((count) => ({ type: "lanes-wanted", stream: 1, count })));
    expect(path.sent.rung).toBeGreaterThan(0);
  });

  it("takes lanes away again after a minute of calm, but leaves a second one for copies", () => {
    const path = new Path(3, sendingOf({ addsLanes: true }));
    path.run(65, 10e6);
    expect(path.said).toEqual([{ type: "lanes-wanted", stream: 1, count: 2 }]);
    path.lanes[2].readyState = "closed";
    path.run(65, 10e6);
    expect(path.said.length).toBe(1);
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
    // Until half a second after that.
    const last = timesOf(lane, false).at(-1)!;
    expect(last + 128).toBeGreaterThanOrEqual(1440 + 24_000);
    expect(last).toBeLessThan(1440 + 24_000);
    expect(keys()).toEqual([key]);
    expect(lane.sent.map(({ sequence }) => sequence)).toEqual(lane.sent.map((_, n) => n));
    expect(peers.stats()[0].sent).toMatchObject({ format: "opus", opusBps: 128_000, switches: 1 });

    peers.setSending(sendingOf());
    for (let n = 400; n < 800; n++) {
      peers.send("main", packet(n));
      if (n < 600) peers.send(key, opusPacket(n - 200));
    }
    expect(timesOf(lane, false).filter((time) => time >= 128 * 400).length).toBe(400);
    expect(timesOf(lane, true).at(-1)! + 240).toBeGreaterThanOrEqual(128 * 400 + 24_000);
    expect(keys()).toEqual(["main"]);
  });

  it("ends though the old format stopped by itself, as with an encoder that failed", () => {
    const peers = peersWith([channel()], sendingOf({ bits: "opus" }));
    peers.setSending(sendingOf());
    expect(peers.rungsInUse().length).toBe(2);
    for (let n = 0; n < 375; n++) peers.send("main", packet(n));
    expect(peers.rungsInUse().length).toBe(2);
    peers.send("main", packet(375));
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

it("reports to each peer how it is heard, and knows how the peer hears us", () => {
  const lane = channel();
  const passed: number[] = [];
  const peers = new Peers({ push: (_, bytes) => passed.push(bytes.length) > 0 }, () => {});
  peers.addLane(1, 0, 1, true, lane as unknown as RTCDataChannel);
  const heard = heardWith(10, 1_000);
  peers.setHeard(1, heard);
  peers.setHeard(9, heard);
  peers.report(() => null);
  peers.report(() => null);
  expect(lane.datagrams.map((bytes) => [kindOf(bytes), readReport(bytes).heard])).toEqual([
    [KIND_REPORT, heard],
  ]);
  expect(peers.stats()[0].heard).toBeNull();
  lane.onmessage?.({ data: writeReport({ id: 1, capture: null, heard }).buffer });
  expect(peers.stats()[0].heard).toMatchObject({ lostShare: 0.01, concealedShare: 0.01, bufferFrames: null });
  // One that cannot be goes where all malformed datagrams are counted.
  const bad = writeReport({ id: 2, capture: null, heard });
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
  for (let n = 0; n <= 375; n++) peers.send("main", packet(n));
  report();
  expect(asked).toEqual([key, key, "main"]);
});
