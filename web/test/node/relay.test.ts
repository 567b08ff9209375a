import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { type Listen, parseControl, type RelayOffer } from "../../src/shared/relay";
import { RETIRED_MS } from "../../src/shared/spare";
import type { LaneChannel } from "../../src/worker/lane";
import { Relay } from "../../src/worker/relay";

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

/** How a browser lets datagrams be written. */
type WritableBy = "writable" | "createWritable" | "nothing";

/** As much of a WebTransport as a session uses: what is sent is kept until the test takes it. */
class Transport {
  readonly url: string;
  readonly options: WebTransportOptions;
  closeInfo: WebTransportCloseInfo | null = null;
  /** Datagrams that were sent, and how to let go of each. */
  readonly sent: { bytes: Uint8Array; take: () => void }[] = [];
  /** What the page said on its control stream, and how to answer; null before it is open. */
  control: { lines: string[]; answer(text: string): void; end(): void } | null = null;
  open!: () => void;
  fail!: (closeCode: number | null) => void;
  #receive!: ReadableStreamDefaultController<Uint8Array>;
  readonly ready = new Promise<void>((resolve) => {
    this.open = resolve;
  });
  readonly closed = new Promise<WebTransportCloseInfo>((resolve, reject) => {
    this.fail = (closeCode) => (closeCode === null ? reject(new Error("lost")) : resolve({ closeCode }));
  });
  readonly datagrams = {
    outgoingMaxAge: null as number | null,
    outgoingHighWaterMark: 100,
    incomingMaxAge: null as number | null,
    incomingHighWaterMark: 1,
    readable: new ReadableStream<Uint8Array>({
      start: (controller) => {
        this.#receive = controller;
      },
    }),
    writable: undefined as WritableStream<Uint8Array> | undefined,
    createWritable: undefined as (() => WritableStream<Uint8Array>) | undefined,
  };

  constructor(url: string, options: WebTransportOptions, writableBy: WritableBy) {
    this.url = url;
    this.options = options;
    const writable = new WritableStream<Uint8Array>({
      write: (bytes) =>
        new Promise((take) => {
          this.sent.push({ bytes, take });
        }),
    });
    if (writableBy === "writable") this.datagrams.writable = writable;
    if (writableBy === "createWritable") this.datagrams.createWritable = () => writable;
  }

  receive(...bytes: number[]): void {
    this.#receive.enqueue(Uint8Array.from(bytes));
  }

  async createBidirectionalStream() {
    const lines: string[] = [];
    let controller!: ReadableStreamDefaultController<Uint8Array>;
    const readable = new ReadableStream<Uint8Array>({
      start: (of) => {
        controller = of;
      },
    });
    this.control = {
      lines,
      answer: (text) => controller.enqueue(new TextEncoder().encode(text)),
      end: () => controller.close(),
    };
    const writable = new WritableStream<Uint8Array>({
      write: (bytes) => {
        lines.push(...new TextDecoder().decode(bytes).split("\n").slice(0, -1));
      },
    });
    return { readable, writable };
  }

  close(info: WebTransportCloseInfo): void {
    this.closeInfo = info;
    this.fail(0);
  }
}

const OFFER: RelayOffer = {
  port: 4433,
  token: "0123456789abcdef0123456789abcdef",
  certificate_hashes: ["00ff".repeat(16)],
};
const RETIRE = JSON.stringify({ type: "retire" });
const NOTHING: Listen = { forward: [], mix: null, opus: true };

const COUNTS = {
  rtt_us: 900,
  forwarded: 5,
  aged: 1,
  over_rate: 0,
  lost: 0,
  received: 1500,
  missing: 0,
  mix_us: null,
  mixed: [],
};

function world(writableBy: WritableBy = "writable") {
  const transports: Transport[] = [];
  const lanes = new Map<number, LaneChannel>();
  const answered = new Map<number, number>();
  let changes = 0;
  const relay = new Relay(
    "play.example",
    {
      addLane: (number, channel) => lanes.set(number, channel),
      closeLane: (number) => lanes.delete(number),
      retireLane: (number) => lanes.delete(number),
      answeredAtMs: (number) => answered.get(number) ?? null,
      changed: () => changes++,
    },
    (url, options) => {
      const transport = new Transport(url, options, writableBy);
      transports.push(transport);
      return transport as unknown as WebTransport;
    },
  );
  const settle = () => vi.advanceTimersByTimeAsync(0);
  const open = async (offer = OFFER) => {
    relay.setOffer(offer);
    for (const transport of transports) transport.open();
    await settle();
  };
  return { relay, transports, lanes, answered, changes: () => changes, settle, open };
}

it("opens a session by the token, trusting the certificates of these hashes alone", async () => {
  const { transports, lanes, open } = world();
  await open();
  const [{ url, options, datagrams }] = transports;
  expect(url).toBe(`https://play.example:4433/relay/${OFFER.token}`);
  expect(options.serverCertificateHashes).toEqual([
    { algorithm: "sha-256", value: Uint8Array.from({ length: 32 }, (_, n) => (n % 2) * 255) },
  ]);
  expect(datagrams).toMatchObject({ outgoingMaxAge: 100, outgoingHighWaterMark: 4 });
  expect(Array.from(lanes.keys())).toEqual([0]);
});

it("names no hashes where the certificate is one that browsers trust", async () => {
  const { transports, open } = world();
  await open({ ...OFFER, certificate_hashes: [] });
  expect(transports[0].options.serverCertificateHashes).toBeUndefined();
});

it("counts what the browser has not taken as backlog, and keeps what it was given though that changes", async () => {
  const { transports, lanes, open, settle } = world();
  await open();
  const lane = lanes.get(0)!;
  const area = new Uint8Array(100).fill(1);
  lane.send(area);
  lane.send(area.fill(2));
  await settle();
  expect(lane.bufferedAmount).toBe(200);
  const { sent } = transports[0];
  expect(sent.length).toBe(1);
  sent[0].take();
  await settle();
  sent[1].take();
  await settle();
  expect(sent.map(({ bytes }) => bytes[0])).toEqual([1, 2]);
  expect(lane.bufferedAmount).toBe(0);
  // The browser would keep each view that it was handed until it collects all garbage.
  lane.send(area.subarray(0, 20).fill(3));
  lane.send(area.fill(4));
  lane.send(area.fill(5));
  for (const n of [2, 3, 4]) {
    await settle();
    sent[n].take();
  }
  expect(sent[2].bytes).toEqual(new Uint8Array(20).fill(3));
  expect(new Set([sent[3].bytes, sent[4].bytes])).toEqual(new Set([sent[0].bytes, sent[1].bytes]));
  expect([sent[3].bytes[0], sent[4].bytes[0]]).toEqual([4, 5]);
  await settle();
  expect(lane.bufferedAmount).toBe(0);
});

it("hands on what comes, each in memory of its own", async () => {
  const { transports, lanes, open, settle } = world();
  await open();
  const got: number[][] = [];
  lanes.get(0)!.onmessage = ({ data }) => got.push(Array.from(new Uint8Array(data as ArrayBuffer)));
  transports[0].receive(1, 2, 3);
  transports[0].receive(4);
  await settle();
  expect(got).toEqual([[1, 2, 3], [4]]);
});

it("says what to take when the control stream opens, and the newest of what changes faster than ten times a second", async () => {
  const { relay, transports, open } = world();
  relay.setListen({ forward: [7], mix: null, opus: true });
  await open();
  const said = () => transports[0].control!.lines.map((line) => JSON.parse(line));
  expect(said()).toEqual([{ type: "listen", forward: [7], mix: null, opus: true }]);
  for (let n = 1; n <= 50; n++) relay.setListen({ forward: [n], mix: null, opus: true });
  await vi.advanceTimersByTimeAsync(1_000);
  expect(said().map(({ forward }) => forward)).toEqual([[7], [50]]);
});

it("asks for a mix of another shape once a second, and for all else at once", async () => {
  const { relay, transports, open } = world();
  await open();
  const mix = (packet_frames: number, ...streams: number[]): Listen => {
    const sources = streams.map((stream) => ({ stream, gain: 1, pan: 0, muted: false }));
    return { forward: [], mix: { format: 16, packet_frames, sources }, opus: true };
  };
  const { lines } = transports[0].control!;
  const shapes = () =>
    lines.splice(0).map((line) => {
      const { mix } = JSON.parse(line) as Listen;
      return mix && [mix.packet_frames, mix.sources.length];
    });
  await vi.advanceTimersByTimeAsync(1_000);
  expect(shapes()).toEqual([null]);
  for (let n = 1; n <= 10; n++) {
    relay.setListen(mix(n, 7));
    await vi.advanceTimersByTimeAsync(150);
  }
  await vi.advanceTimersByTimeAsync(700);
  const said = shapes();
  expect(said.length).toBeLessThanOrEqual(4);
  expect(said[0]).toEqual([1, 1]);
  expect(said.at(-1)).toEqual([10, 1]);
  relay.setListen(mix(10, 7, 8));
  await vi.advanceTimersByTimeAsync(100);
  expect(shapes()).toEqual([[10, 2]]);
  // Where it ends and begins anew, that is another one.
  for (let n = 1; n <= 10; n++) {
    relay.setListen(n % 2 === 1 ? NOTHING : mix(10, 7));
    await vi.advanceTimersByTimeAsync(150);
  }
  expect(shapes().filter((shape) => shape !== null).length).toBeLessThanOrEqual(2);
  await vi.advanceTimersByTimeAsync(1_000);
  expect(lines.length).toBeLessThanOrEqual(1);
});

it("asks again for a mix that was refused ten seconds long", async () => {
  const { relay, transports, open } = world();
  relay.setListen({ forward: [], mix: { format: 16, packet_frames: 128, sources: [] }, opus: true });
  await open();
  const { lines, answer } = transports[0].control!;
  const hear = async (refused: boolean, times: number) => {
    for (let n = 0; n < times; n++) {
      answer(`${JSON.stringify({ type: "statistics", ...COUNTS, mix_refused: refused })}\n`);
      await vi.advanceTimersByTimeAsync(1_000);
    }
    return lines.length;
  };
  expect(await hear(false, 20)).toBe(1);
  expect(await hear(true, 9)).toBe(1);
  expect(await hear(true, 1)).toBe(2);
  expect(await hear(true, 10)).toBe(3);
  expect(new Set(lines).size).toBe(1);
});

it("hears how many listen there, however the lines are cut", async () => {
  const { relay, transports, changes, open, settle } = world();
  await open();
  const control = transports[0].control!;
  control.answer('{"type":"wan');
  await settle();
  expect(relay.wanted).toEqual({ listeners: 0, opus: true });
  control.answer(`ted","listeners":2,"opus":false}\n${JSON.stringify({ type: "statistics", ...COUNTS })}\n`);
  await settle();
  expect(relay.wanted).toMatchObject({ listeners: 2, opus: false });
  expect(relay.statistics).toMatchObject(COUNTS);
  expect(changes()).toBe(2);
});

it.each(['{"type":"wanted"}\n', '{"type":"other"}\n', "not JSON\n", "x".repeat(20_000)])(
  "ends a session whose control stream says %j, and opens another",
  async (text) => {
    const { relay, transports, lanes, open, settle } = world();
    await open();
    transports[0].control!.answer('{"type":"wanted","listeners":1,"opus":true}\n');
    transports[0].control!.answer(text);
    await settle();
    expect(transports[0].closeInfo).toEqual({ closeCode: 0 });
    expect(lanes.size).toBe(0);
    expect(relay.wanted).toEqual({ listeners: 0, opus: true });
    await vi.advanceTimersByTimeAsync(250);
    expect(transports.length).toBe(2);
  },
);

it("opens as many sessions as are asked for, up to four, and its control stream on one of them", async () => {
  const { relay, transports, lanes, open, settle } = world();
  relay.setSessions(8);
  await open();
  expect(transports.length).toBe(4);
  expect(transports.map(({ control }) => control !== null)).toEqual([true, false, false, false]);
  transports[0].fail(null);
  await settle();
  expect(transports[1].control?.lines).toEqual([JSON.stringify({ type: "listen", ...NOTHING })]);
  relay.setSessions(2);
  expect(Array.from(lanes.keys())).toEqual([1, 2]);
  await vi.advanceTimersByTimeAsync(250);
  transports[4].open();
  await settle();
  expect(Array.from(lanes.keys()).sort()).toEqual([0, 1]);
  // What the relay had sent by the others still comes.
  const closed = () => transports.slice(1, 4).map(({ closeInfo }) => closeInfo);
  expect(transports.slice(2, 4).map(({ control }) => control?.lines)).toEqual([[RETIRE], [RETIRE]]);
  expect(closed()).toEqual([null, null, null]);
  await vi.advanceTimersByTimeAsync(RETIRED_MS);
  expect(closed()).toEqual([null, { closeCode: 0 }, { closeCode: 0 }]);
});

it("goes on by the sessions there are, though they are too many, until those in their place are open", async () => {
  const { relay, transports, lanes, open, settle } = world();
  relay.setSessions(4);
  await open();
  transports[0].fail(null);
  transports[1].fail(null);
  await settle();
  relay.setSessions(2);
  expect(Array.from(lanes.keys())).toEqual([2, 3]);
  await vi.advanceTimersByTimeAsync(250);
  for (const transport of transports.slice(4)) transport.open();
  await settle();
  expect(Array.from(lanes.keys()).sort()).toEqual([0, 1]);
  // The control stream goes over to one that stays.
  await vi.advanceTimersByTimeAsync(RETIRED_MS);
  const listen = JSON.stringify({ type: "listen", ...NOTHING });
  expect(transports.slice(2).map(({ control }) => control?.lines ?? [])).toEqual([
    [listen, RETIRE],
    [RETIRE],
    [listen],
    [],
  ]);
  expect(transports.slice(2, 4).map(({ closeInfo }) => closeInfo)).toEqual([
    { closeCode: 0 },
    { closeCode: 0 },
  ]);
});

it("takes several sessions that fail together for one failure", async () => {
  const { relay, transports, open } = world();
  relay.setSessions(4);
  await open();
  for (let round = 1; round < 4; round++) {
    for (const transport of transports.slice(-4)) transport.fail(null);
    await vi.advanceTimersByTimeAsync(250 * 2 ** (round - 1) - 1);
    expect(transports.length).toBe(4 * round);
    await vi.advanceTimersByTimeAsync(1);
    expect(transports.length).toBe(4 * (round + 1));
  }
});

it("keeps its sessions when only the certificate changes, and makes them anew with another token", async () => {
  const { relay, transports, settle, open } = world();
  await open();
  relay.setOffer({ ...OFFER, certificate_hashes: ["11".repeat(32)] });
  await settle();
  expect(transports.length).toBe(1);
  relay.setOffer({ ...OFFER, token: "f".repeat(32) });
  await settle();
  expect(transports[0].closeInfo).toEqual({ closeCode: 0 });
  expect(transports.length).toBe(2);
  relay.setOffer(null);
  expect(transports[1].closeInfo).toEqual({ closeCode: 0 });
  await vi.advanceTimersByTimeAsync(60_000);
  expect(transports.length).toBe(2);
});

it("comes back after a failure, ever less often, but not with a token that was refused", async () => {
  const { transports, open } = world();
  await open();
  const attempts: number[] = [];
  for (let n = 0; n < 8; n++) {
    transports.at(-1)!.fail(null);
    const before = transports.length;
    let waitedMs = 0;
    for (; transports.length === before; waitedMs += 50) await vi.advanceTimersByTimeAsync(50);
    attempts.push(waitedMs);
  }
  expect(attempts).toEqual([250, 500, 1_000, 2_000, 4_000, 4_000, 4_000, 4_000]);
  for (const code of [1, 4]) {
    transports.at(-1)!.fail(code);
    const before = transports.length;
    await vi.advanceTimersByTimeAsync(60_000);
    expect(transports.length).toBe(before);
    await open();
    expect(transports.length).toBe(before + 1);
  }
});

it("comes back ever less often where the relay ends each session soon, and at once where one has lasted", async () => {
  const { transports, open, settle } = world();
  await open();
  const retryMs = async () => {
    transports.at(-1)!.open();
    await settle();
    transports.at(-1)!.control!.end();
    const { length } = transports;
    let waitedMs = 0;
    for (; transports.length === length; waitedMs += 50) await vi.advanceTimersByTimeAsync(50);
    return waitedMs;
  };
  for (const expected of [250, 500, 1_000, 2_000, 4_000]) expect(await retryMs()).toBe(expected);
  transports.at(-1)!.open();
  await vi.advanceTimersByTimeAsync(6_000);
  expect(await retryMs()).toBe(250);
  // One that took as long to fail has not lasted.
  await vi.advanceTimersByTimeAsync(6_000);
  transports.at(-1)!.fail(null);
  await vi.advanceTimersByTimeAsync(500);
  expect(await retryMs()).toBe(1_000);
});

it("opens nothing while the server is known to be away, and at once when it is back", async () => {
  const { relay, transports, lanes, open, settle } = world();
  await open();
  relay.hold();
  await vi.advanceTimersByTimeAsync(1_000);
  expect(lanes.size).toBe(1);
  transports[0].fail(null);
  await vi.advanceTimersByTimeAsync(60_000);
  expect(transports.length).toBe(1);
  relay.setOffer({ ...OFFER, token: "e".repeat(32) });
  await settle();
  expect(transports.length).toBe(2);
});

it("gives up a session that answers no probe any more", async () => {
  const { relay, transports, answered, open } = world();
  await open();
  for (let n = 0; n < 10; n++) {
    await vi.advanceTimersByTimeAsync(500);
    answered.set(0, performance.now());
    relay.review(performance.now());
  }
  expect(transports.length).toBe(1);
  for (let n = 0; n < 10; n++) {
    await vi.advanceTimersByTimeAsync(500);
    relay.review(performance.now());
  }
  expect(transports.length).toBe(2);
  expect(transports[0].closeInfo).not.toBeNull();
});

it("keeps a session whose answers wait because this thread stood still", async () => {
  const { relay, transports, answered, open } = world();
  await open();
  answered.set(0, performance.now());
  relay.review(performance.now());
  await vi.advanceTimersByTimeAsync(8_000);
  relay.review(performance.now());
  await vi.advanceTimersByTimeAsync(500);
  relay.review(performance.now());
  expect(transports[0].closeInfo).toBeNull();
});

it("writes datagrams in a browser that has only the newer way to do so", async () => {
  const { transports, lanes, open, settle } = world("createWritable");
  await open();
  lanes.get(0)!.send(Uint8Array.of(1, 2, 3));
  await settle();
  expect(transports[0].sent.map(({ bytes }) => Array.from(bytes))).toEqual([[1, 2, 3]]);
});

it("ends a session that opens and is of no use, and tries again, ever less often", async () => {
  const { transports, lanes, open, settle } = world("nothing");
  await open();
  for (const retryMs of [250, 500, 1_000]) {
    const { length } = transports;
    expect(transports.at(-1)!.closeInfo).not.toBeNull();
    await vi.advanceTimersByTimeAsync(retryMs - 1);
    expect(transports.length).toBe(length);
    await vi.advanceTimersByTimeAsync(1);
    expect(transports.length).toBe(length + 1);
    transports.at(-1)!.open();
    await settle();
  }
  expect(lanes.size).toBe(0);
});

it("gives up a session that does not open in two minutes", async () => {
  const { relay, transports, settle } = world();
  relay.setOffer(OFFER);
  for (let seconds = 1; seconds <= 125; seconds++) {
    await vi.advanceTimersByTimeAsync(1_000);
    relay.review(performance.now());
    if (seconds === 120) expect(transports.length).toBe(1);
  }
  expect(transports.length).toBe(2);
  expect(transports[0].closeInfo).not.toBeNull();
  // It opens once it is too late.
  transports[0].open();
  transports[1].open();
  await settle();
  expect(transports[0].control).toBeNull();
  expect(transports[1].control).not.toBeNull();
});

it("knows every message of the protocol, and no other", () => {
  const wanted = { type: "wanted", listeners: 3, opus: false };
  expect(parseControl(JSON.stringify(wanted))).toEqual(wanted);
  const counts = {
    rtt_us: 1,
    forwarded: 2,
    aged: 3,
    over_rate: 4,
    lost: 5,
    received: 7,
    missing: 8,
    mix_us: 6,
    mixed: [{ stream: 9, lead_frames: -10, concealed_share: 0.25 }],
  };
  const statistics = (change = {}) => JSON.stringify({ type: "statistics", ...counts, ...change });
  expect(parseControl(statistics())).toMatchObject(counts);
  for (const mixed of [
    undefined,
    {},
    [null],
    [{ stream: 9, lead_frames: 10 }],
    [{ ...counts.mixed[0], lead_frames: "10" }],
  ])
    expect(parseControl(statistics({ mixed }))).toBeNull();
  for (const line of ["", "null", "3", "[]", '{"type":"wanted","listeners":-1}', '{"type":"statistics"}'])
    expect(parseControl(line)).toBeNull();
});
