/** Whatever comes from the network, or is pasted: nothing throws, and what is accepted is within the protocol's ranges. */

import fc from "fast-check";
import { expect, it } from "vitest";
import { MAX_LANES, type PeerSignal, parsePeerSignal } from "../../src/main/peer-signal";
import { readRoom } from "../../src/main/ui/room-link";
import { parseControl } from "../../src/shared/relay";
import {
  AUDIO_HEADER_BYTES,
  isOpus,
  KIND_AUDIO,
  KIND_PROBE,
  KIND_PROBE_REPLY,
  KIND_REPORT,
  kindOf,
  MALFORMED,
  MAX_PERIOD_MS,
  MAX_REPORT_US,
  OPUS_FRAMES,
  probeId,
  probeRepliedNs,
  probeReply,
  probeTimeNs,
  RATES_HZ,
  readAudioHeader,
  readReport,
  streamOf,
  withoutCopy,
  writeOpus,
  writeProbe,
  writeReport,
  writeSequence,
  writeStream,
} from "../../src/shared/wire";
import { vectors } from "./golden";

/** One of the values with something in it replaced. */
function damaged(values: fc.Arbitrary<object>): fc.Arbitrary<unknown> {
  const others = fc.oneof(fc.jsonValue(), fc.double());
  return fc.tuple(values, fc.nat(25), others).map(([value, at, other]) => {
    let n = 0;
    return JSON.parse(JSON.stringify(value), (_, field) => (n++ === at ? other : field));
  });
}

const isWithin = (least: number, most: number) => (value: unknown) =>
  Number.isInteger(value) && (value as number) >= least && (value as number) <= most;

const lane = fc.integer({ min: 0, max: MAX_LANES - 1 });
const epoch = fc.maxSafeNat();
const line = fc.string({ maxLength: 512 });
const sdp = fc
  .array(fc.string({ maxLength: 500 }))
  .map((lines) => [...lines, "m=application 9", ""].join("\r\n"));

const signals: fc.Arbitrary<PeerSignal> = fc.oneof(
  fc.record({
    kind: fc.constant("description" as const),
    lane,
    epoch,
    description: fc.record({ type: fc.constantFrom("offer" as const, "answer" as const), sdp }),
  }),
  fc.record({
    kind: fc.constant("candidate" as const),
    lane,
    epoch,
    candidate: fc.option(
      fc.record({
        candidate: line,
        sdpMid: fc.option(line),
        sdpMLineIndex: fc.option(fc.nat()),
        usernameFragment: fc.option(line),
      }),
    ),
  }),
  fc.record({ kind: fc.constant("lanes" as const), count: fc.integer({ min: 1, max: MAX_LANES }) }),
  fc.record({ kind: fc.constantFrom("restart" as const, "close" as const), lane }),
  fc.record({ kind: fc.constantFrom("direct" as const, "relayed" as const), wanted: fc.boolean() }),
);

it("takes a peer's signal as it was said", () => {
  const isFit = (signal: PeerSignal) => signal.kind !== "description" || isShort(signal.description.sdp);
  const isShort = (text: string) => text.length <= 16_384 && text.match(/^m=/gm)?.length === 1;
  fc.assert(
    fc.property(signals.filter(isFit), (signal) => {
      expect(parsePeerSignal(JSON.parse(JSON.stringify(signal)))).toEqual(signal);
    }),
  );
});

it("takes nothing of a peer's signal that is out of range", () => {
  fc.assert(
    fc.property(fc.oneof(fc.anything(), damaged(signals)), (data) => {
      const signal = parsePeerSignal(data);
      if (signal === null) return;
      // What is taken once is taken again, as it is.
      expect(parsePeerSignal(signal)).toEqual(signal);
      if ("lane" in signal) expect(signal.lane).toSatisfy(isWithin(0, MAX_LANES - 1));
      if ("epoch" in signal) expect(signal.epoch).toSatisfy(isWithin(0, Number.MAX_SAFE_INTEGER));
      if ("count" in signal) expect(signal.count).toSatisfy(isWithin(1, MAX_LANES));
      if ("wanted" in signal) expect(signal.wanted).toBeTypeOf("boolean");
      if (signal.kind === "description") expect(signal.description.sdp.length).toBeLessThanOrEqual(16_384);
      if (signal.kind === "candidate" && signal.candidate !== null) {
        const { candidate, sdpMid, usernameFragment } = signal.candidate;
        for (const text of [candidate, sdpMid ?? "", usernameFragment ?? ""])
          expect(text).toSatisfy((said) => typeof said === "string" && said.length <= 512);
      }
    }),
    { numRuns: 1_000 },
  );
});

const count = fc.nat();
const controls = fc.oneof(
  fc.record({ type: fc.constant("wanted"), listeners: count, opus: fc.boolean() }),
  fc.record({
    type: fc.constant("statistics"),
    rtt_us: count,
    forwarded: count,
    aged: count,
    over_rate: count,
    lost: count,
    received: count,
    missing: count,
    mix_us: fc.option(count),
    mixed: fc.array(
      fc.record({
        stream: fc.integer({ min: 1, max: 65_534 }),
        lead_frames: fc.maxSafeInteger(),
        concealed_share: fc.double({ min: 0, max: 1, noNaN: true }),
      }),
      { maxLength: 3 },
    ),
    mix_refused: fc.boolean(),
  }),
);

it("takes a line of the relay as it was said", () => {
  fc.assert(
    fc.property(controls, (message) => {
      const line = JSON.stringify(message);
      expect(parseControl(line)).toEqual(JSON.parse(line));
    }),
  );
});

it("takes nothing of the relay's lines that is out of range", () => {
  const lines = fc.oneof(
    fc.string(),
    fc.json(),
    damaged(controls).map((message) => JSON.stringify(message)),
  );
  const isCount = (value: unknown) =>
    typeof value === "number" && value >= 0 && value < Number.POSITIVE_INFINITY;
  fc.assert(
    fc.property(lines, (line) => {
      const message = parseControl(line);
      if (message === null) return;
      if (message.type === "wanted") {
        expect(message.listeners).toSatisfy(isCount);
        expect(message.opus).toBeTypeOf("boolean");
        return;
      }
      const { rtt_us, forwarded, aged, over_rate, lost, received, missing, mix_us } = message;
      for (const n of [rtt_us, forwarded, aged, over_rate, lost, received, missing, mix_us ?? 0])
        expect(n).toSatisfy(isCount);
      expect(message.mix_refused ?? false).toBeTypeOf("boolean");
      for (const { stream, lead_frames, concealed_share } of message.mixed) {
        expect([stream, lead_frames].every(Number.isFinite)).toBe(true);
        expect(concealed_share).toSatisfy((share: number) => isCount(share) && share <= 1);
      }
    }),
    { numRuns: 1_000 },
  );
});

/** Bytes, any, or those of a datagram of `vectors/wire.json` with some changed, cut or added. */
const datagrams = fc.oneof(
  fc.uint8Array({ maxLength: 1_010 }),
  fc
    .tuple(
      fc.constantFrom(...(vectors("wire.json").datagrams as { bytes: string }[])),
      fc.array(fc.tuple(fc.nat(), fc.nat(255)), { maxLength: 3 }),
      fc.option(fc.nat(1_010)),
    )
    .map(([{ bytes }, changes, length]) => {
      const whole = Uint8Array.from(Buffer.from(bytes, "hex"));
      const cut = new Uint8Array(length ?? whole.length);
      cut.set(whole.subarray(0, cut.length));
      for (const [at, value] of changes) if (cut.length > 0) cut[at % cut.length] = value;
      return cut;
    }),
);

it("reads datagrams within every range, and writes them as they were", () => {
  const kinds = [KIND_AUDIO, KIND_PROBE, KIND_PROBE_REPLY, KIND_REPORT, ...Object.values(MALFORMED)];
  fc.assert(
    fc.property(datagrams, (bytes) => {
      const kind = kindOf(bytes);
      expect(kinds).toContain(kind);
      if (kind < 0) return;
      const stream = streamOf(bytes);
      expect(stream).toSatisfy(isWithin(0, 65_535));
      if (kind === KIND_AUDIO) {
        const { bits, rateHz, channels, frames, sequence, timestamp } = readAudioHeader(bytes);
        expect(RATES_HZ).toContain(rateHz);
        expect(sequence).toSatisfy(isWithin(0, 0xffffffff));
        if (bits === null) {
          expect(isOpus(bytes) && withoutCopy(bytes)).toBe(bytes);
          const packetBytes = bytes.length - AUDIO_HEADER_BYTES;
          const { datagram, packet } = writeOpus(channels, asOpusFrames(frames), timestamp, packetBytes);
          writeSequence(datagram, sequence);
          writeStream(datagram, stream);
          packet.set(bytes.subarray(AUDIO_HEADER_BYTES));
          expect(datagram).toEqual(bytes);
        } else {
          expect([16, 24, 32]).toContain(bits);
          expect(channels).toSatisfy(isWithin(1, 8));
          expect(frames).toSatisfy(isWithin(1, 512));
          const own = AUDIO_HEADER_BYTES + (frames * channels * bits) / 8;
          expect(withoutCopy(bytes)).toEqual(bytes.subarray(0, own));
          if (own === bytes.length) expect(withoutCopy(bytes)).toBe(bytes);
        }
      } else if (kind === KIND_REPORT) {
        const report = readReport(bytes);
        const { capture, heard } = report;
        for (const us of capture ? [capture.errorUs, capture.blockUs, capture.sendUs] : [])
          expect(us).toBeLessThanOrEqual(MAX_REPORT_US);
        if (capture?.input) expect(Math.abs(capture.input.delayUs)).toBeLessThanOrEqual(MAX_REPORT_US);
        if (heard) expect(heard.periodMs).toSatisfy(isWithin(1, MAX_PERIOD_MS));
        const written = writeReport(report);
        writeStream(written, stream);
        expect(written).toEqual(bytes);
      } else {
        const probe = writeProbe(probeId(bytes), probeTimeNs(bytes));
        writeStream(probe, stream);
        expect(kind === KIND_PROBE ? probe : probeReply(probe, probeRepliedNs(bytes))).toEqual(bytes);
      }
    }),
    { numRuns: 2_000 },
  );
});

function asOpusFrames(frames: number): (typeof OPUS_FRAMES)[number] {
  const known = OPUS_FRAMES.find((each) => each === frames);
  if (known === undefined) throw new Error(`${frames} frames of Opus`);
  return known;
}

it("makes rooms only of what may be their names, whatever is pasted", () => {
  const origin = "https://antiphon.example";
  const name = fc.string({
    unit: fc.constantFrom(..."abcXYZ019-_"),
    minLength: 16,
    maxLength: 64,
  });
  const around = fc.oneof(fc.constantFrom("", " ", "<", ">", "/", "?q", "#f", ":80", origin), fc.string());
  const pasted = fc.oneof(
    fc.string(),
    fc.webUrl(),
    fc.tuple(around, fc.constantFrom("/r/", ""), name, around).map((parts) => parts.join("")),
  );
  fc.assert(
    fc.property(pasted, (text) => {
      const read = readRoom(text, origin);
      if (read.kind === "room") {
        expect(read.room).toMatch(/^[A-Za-z0-9_-]{16,64}$/);
        expect(readRoom(`${origin}/r/${read.room}`, origin)).toEqual(read);
      } else if (read.kind === "elsewhere") {
        const there = new URL(read.link);
        expect(there.host).toBe(read.host);
        expect(readRoom(read.link, there.origin)).toMatchObject({ kind: "room" });
        expect(readRoom(read.link, origin)).toEqual(read);
      } else {
        expect(["empty", "unreadable"]).toContain(read.kind);
      }
    }),
    { numRuns: 1_000 },
  );
});
