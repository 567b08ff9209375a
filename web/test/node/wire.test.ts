import { describe, expect, it } from "vitest";
import { AUTOMATIC, COMMAND, STATS_FIELDS } from "../../src/shared/engine";
import {
  isOpus,
  KIND_AUDIO,
  KIND_PROBE,
  KIND_PROBE_REPLY,
  KIND_REPORT,
  kindOf,
  MALFORMED,
  MAX_DATAGRAM_BYTES,
  MAX_DECODED_BYTES,
  type OpusFrames,
  probeId,
  probeRepliedNs,
  probeReply,
  probeTimeNs,
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
import { Hash, load, vectors } from "./golden";

interface Meaning {
  kind?: "audio" | "opus" | "probe" | "probe_reply" | "report";
  malformed?: keyof typeof MALFORMED;
  bits?: number;
  rate_hz: number;
  channels: number;
  stream: number;
  frames: number;
  sequence: number;
  timestamp: string;
  packet_bytes?: number;
  sample_bytes?: number;
  id: number;
  time_ns: string;
  replied_ns: string | null;
  capture: Record<string, unknown> | null;
  heard: Record<string, unknown> | null;
}

/** As the page names things: camelCase, and 64-bit numbers as bigint. */
function inCamelCase(value: unknown): unknown {
  if (typeof value !== "object" || value === null) return value;
  const entries = Object.entries(value).map(([key, field]) => [
    key.replace(/_(.)/g, (_, letter: string) => letter.toUpperCase()),
    typeof field === "string" ? BigInt(field) : inCamelCase(field),
  ]);
  return Object.fromEntries(entries);
}

describe("the datagrams of vectors/wire.json", () => {
  const golden = vectors("wire.json");
  const cases: { name: string; bytes: string; meaning: Meaning }[] = golden.datagrams;

  it("are of the version this test reads, and enough", () => {
    expect(golden.version).toBe(1);
    const reasons = new Set(cases.map(({ meaning }) => meaning.malformed ?? meaning.kind));
    expect([...reasons].sort()).toEqual(
      [...Object.keys(MALFORMED), "audio", "opus", "probe", "probe_reply", "report"].sort(),
    );
  });

  it.each(cases)("$name", ({ bytes: text, meaning }) => {
    // At an odd place in a larger buffer, as in a ring.
    const copy = Buffer.from(`ffffff${text}ff`, "hex");
    const bytes = new Uint8Array(copy.buffer, copy.byteOffset + 3, copy.length - 4);
    const kind = kindOf(bytes);
    if (meaning.malformed) {
      expect(kind).toBe(MALFORMED[meaning.malformed]);
    } else if (meaning.kind === "audio" || meaning.kind === "opus") {
      expect(kind).toBe(KIND_AUDIO);
      expect(streamOf(bytes)).toBe(meaning.stream);
      expect(isOpus(bytes)).toBe(meaning.kind === "opus");
      expect(readAudioHeader(bytes)).toEqual({
        bits: meaning.bits ?? null,
        rateHz: meaning.rate_hz,
        channels: meaning.channels,
        stream: meaning.stream,
        frames: meaning.frames,
        sequence: meaning.sequence,
        timestamp: BigInt(meaning.timestamp),
      });
      const bare = withoutCopy(bytes);
      expect([...bare]).toEqual([...bytes.subarray(0, 20 + (meaning.sample_bytes ?? bytes.length))]);
      if (meaning.kind === "opus") {
        const { channels, frames, timestamp, packet_bytes } = meaning;
        const { datagram, packet } = writeOpus(
          channels,
          frames as OpusFrames,
          BigInt(timestamp),
          packet_bytes ?? 0,
        );
        writeSequence(datagram, meaning.sequence);
        writeStream(datagram, meaning.stream);
        packet.set(bytes.subarray(20));
        expect([...datagram]).toEqual([...bytes]);
      }
    } else if (meaning.kind === "report") {
      expect(kind).toBe(KIND_REPORT);
      const { id, capture, heard } = meaning;
      const report = readReport(bytes);
      expect(report).toEqual(inCamelCase({ id, capture, heard }));
      expect(streamOf(bytes)).toBe(meaning.stream);
      const written = writeReport(report);
      writeStream(written, meaning.stream);
      expect([...written]).toEqual([...bytes]);
    } else {
      const isReply = meaning.kind === "probe_reply";
      expect(kind).toBe(isReply ? KIND_PROBE_REPLY : KIND_PROBE);
      expect([probeId(bytes), probeTimeNs(bytes)]).toEqual([meaning.id, BigInt(meaning.time_ns)]);
      expect(streamOf(bytes)).toBe(meaning.stream);
      let written = writeProbe(meaning.id, BigInt(meaning.time_ns));
      writeStream(written, meaning.stream);
      if (meaning.replied_ns !== null) {
        expect(probeRepliedNs(bytes)).toBe(BigInt(meaning.replied_ns));
        written = probeReply(written, BigInt(meaning.replied_ns));
      }
      expect([...written]).toEqual([...bytes]);
    }
  });

  it("brings what does not fit a report's field to what fits", () => {
    const capture = {
      timestamp: 0n,
      timeNs: 0n,
      errorUs: -1,
      blockUs: Number.POSITIVE_INFINITY,
      sendUs: 2.4,
      input: { isCalibrated: true, delayUs: -1e12, errorUs: 1e12 },
      overrunFrames: -5,
      droppedPackets: 1e12,
    };
    const bytes = writeReport({ id: 1, capture, heard: null });
    expect(kindOf(bytes)).toBe(KIND_REPORT);
    expect(readReport(bytes).capture).toMatchObject({
      errorUs: 0,
      blockUs: 60_000_000,
      sendUs: 2,
      input: { delayUs: -60_000_000, errorUs: 60_000_000 },
      overrunFrames: 0,
      droppedPackets: 0xffffffff,
    });
  });
});

interface Run {
  bits: number;
  channels: number;
  packet_frames: number;
  quantum_frames: number;
  datagrams: number;
  sent_fnv1a: string;
  heard_fnv1a: string;
  received_frames: number;
  played_frames: number;
  concealed_frames: number;
  skipped_frames: number;
  lost_packets: number;
  recovered_packets: number;
}

describe("the engine as WebAssembly", () => {
  const golden = vectors("stream.json");

  it("imports nothing", () => {
    expect(WebAssembly.Module.imports(load().module)).toEqual([]);
  });

  // The steps are those of `stream_vectors` in crates/core/examples/vectors.rs.
  it.each(golden.runs as Run[])(
    "sends and plays $bits bits, $channels channels, packets of $packet_frames, quanta of $quantum_frames, bit for bit as native",
    (run) => {
      const { exports, call } = load();
      const { channels, quantum_frames: quantum } = run;
      expect(call("sender_configure", 48_000, run.bits, channels, run.packet_frames)).toBe(0);
      expect(call("player_new", 48_000, 2, 4, 8_192)).toBe(0);
      const pages = exports.memory.buffer.byteLength;
      const command = (code: number, value: number) => expect(call("player_command", code, 1, value)).toBe(0);
      command(COMMAND.add, 0);
      command(COMMAND.target, AUTOMATIC);
      const memory = exports.memory.buffer;
      const capture = new Float32Array(memory, call("capture_ptr"), channels * quantum);
      const datagramArea = new Uint8Array(memory, call("datagram_ptr"), MAX_DATAGRAM_BYTES);
      const output = new Uint8Array(memory, call("output_ptr"), 2 * quantum * 4);
      const stats = new Float64Array(memory, call("stats_ptr"), STATS_FIELDS);

      const [sent, heard] = [new Hash(), new Hash()];
      let noise = 1;
      let datagrams = 0;
      let held: Uint8Array | null = null;
      const handle = (datagram: Uint8Array) => {
        datagramArea.set(datagram);
        call("player_handle_datagram", 1, datagram.length);
      };
      for (let n = 0; n < golden.quanta; n++) {
        for (let i = 0; i < capture.length; i++) {
          noise = (Math.imul(noise, 1_664_525) + 1_013_904_223) >>> 0;
          capture[i] = (noise >>> 8) / 8_388_608 - 1;
        }
        call("sender_set_copies", 0, Number(n >= 500));
        call("sender_push", channels, quantum);
        for (;;) {
          const length = call("sender_poll_rendition", 0);
          if (length === 0) break;
          const datagram = datagramArea.slice(0, length);
          sent.add(datagram);
          const turn = datagrams % 97;
          if (turn === 41) held = datagram;
          else if (turn !== 11) handle(datagram);
          if (turn === 23) handle(datagram);
          if (turn === 43 && held) {
            handle(held);
            held = null;
          }
          datagrams++;
        }
        if (n % 300 === 100) command(COMMAND.gain, 0.3);
        if (n % 300 === 150) command(COMMAND.pan, -0.7);
        if (n % 300 === 200) command(COMMAND.gain, 1);
        if (n % 300 === 250) command(COMMAND.pan, 0);
        call("player_process_quantum", quantum);
        heard.add(output);
      }
      expect(call("player_stream_stats", 1)).toBe(0);
      expect({
        datagrams,
        sent_fnv1a: `${sent}`,
        heard_fnv1a: `${heard}`,
        lost_packets: stats[1],
        recovered_packets: stats[29],
        received_frames: stats[30],
        played_frames: stats[7],
        concealed_frames: stats[8],
        skipped_frames: stats[9],
      }).toEqual({
        datagrams: run.datagrams,
        sent_fnv1a: run.sent_fnv1a,
        heard_fnv1a: run.heard_fnv1a,
        lost_packets: run.lost_packets,
        recovered_packets: run.recovered_packets,
        received_frames: run.received_frames,
        played_frames: run.played_frames,
        concealed_frames: run.concealed_frames,
        skipped_frames: run.skipped_frames,
      });
      expect(exports.memory.buffer.byteLength).toBe(pages);
    },
  );

  it("plays what was decoded of Opus, and takes it from nowhere but its own entry", () => {
    const { exports, call } = load();
    expect(call("player_new", 48_000, 2, 4, 8_192)).toBe(0);
    expect(call("player_command", COMMAND.add, 1, 0)).toBe(0);
    expect(call("player_command", COMMAND.target, 1, 0)).toBe(0);
    const area = new Uint8Array(exports.memory.buffer, call("datagram_ptr"), MAX_DECODED_BYTES);
    const stats = new Float64Array(exports.memory.buffer, call("stats_ptr"), STATS_FIELDS);
    const { datagram, packet } = writeOpus(2, 480, 1000n, 480 * 2 * 4);
    new Float32Array(packet.buffer, packet.byteOffset).fill(0.25);
    area.set(datagram);
    expect(call("player_handle_decoded", 1, MAX_DECODED_BYTES + 1)).toBe(-1);
    expect(call("player_handle_decoded", 1, datagram.length)).toBe(0);
    expect(call("player_process_quantum", 480)).toBe(0);
    const output = new Float32Array(exports.memory.buffer, call("output_ptr"), 2 * 480);
    // What plays at once is faded in.
    const isWhole = (frame: number) => output[frame] === 0.25 && output[480 + frame] === 0.25;
    expect(Array.from({ length: 480 }, (_, frame) => frame).filter((frame) => !isWhole(frame))).toEqual(
      Array.from({ length: 128 }, (_, frame) => frame),
    );
    expect(call("player_stream_stats", 1)).toBe(0);
    expect([stats[0], stats[6], stats[7]]).toEqual([1, 0, 480]);
    expect([stats[15], stats[16]]).toEqual([2, Number.NaN]);
    // The same bytes from the network: too long to be a datagram, and cut to one, a packet that nobody decoded.
    expect(call("player_handle_datagram", 1, datagram.length)).toBe(-1);
    expect(call("player_handle_datagram", 1, 500)).toBe(0);
    expect(call("player_stream_stats", 1)).toBe(0);
    expect([stats[0], stats[6]]).toEqual([1, 1]);
  });

  it("refuses arguments out of range and survives any datagram", () => {
    const { exports, call } = load();
    expect(call("player_process_quantum", 128)).toBe(-2);
    expect(call("sender_poll_rendition", 0)).toBe(-2);
    expect(call("sender_set_copies", 0, 1)).toBe(-2);
    expect(call("sender_set_rendition", 1, 48_000, 16, 2, 128)).toBe(-2);
    expect(call("ladder_review", 0, 1_000, 1, 0, 0, 0)).toBe(-2);
    expect(call("ladder_fails", 64, 1)).toBe(-2);
    expect(call("ladder_configure", 64, 1, 0)).toBe(-1);
    expect(call("sending_review", 0, 500, 0, 3, 0, 0, 1)).toBe(-2);
    expect(call("sending_reset", 64)).toBe(-1);
    expect(call("sending_review", 0, 500, 4, 3, 0, 0, 1)).toBe(-1);
    expect(call("listening_review", 500, 4, 1, 2, 1, 0)).toBe(-1);
    expect(call("sender_configure", 48_000, 16, 2, 128)).toBe(0);
    expect(call("sender_set_rendition", 0, 48_000, 16, 2, 128)).toBe(-1);
    expect(call("sender_set_rendition", 3, 48_000, 16, 2, 128)).toBe(-1);
    expect(call("sender_set_rendition", 1, 48_000, 17, 2, 128)).toBe(-1);
    expect(call("sender_poll_rendition", 7)).toBe(0);
    expect(call("sender_set_copies", 3, 1)).toBe(-1);
    expect(call("sender_set_copies", 2, 1)).toBe(0);
    for (const wrong of [
      [48_001, 2, 4, 8_192],
      [48_000, 0, 4, 8_192],
      [48_000, 9, 4, 8_192],
      [48_000, 2, 0, 8_192],
      [48_000, 2, 257, 8_192],
      [48_000, 2, 4, 8_191],
    ]) {
      expect(call("player_new", ...wrong)).toBe(-1);
    }
    expect(call("player_new", 48_000, 2, 4, 8_192)).toBe(0);
    expect(call("player_command", COMMAND.add, 1, 0)).toBe(0);
    expect(call("player_command", COMMAND.add, 1, 0)).toBe(-3);
    expect(call("player_command", 99, 1, 0)).toBe(-1);
    expect(call("player_handle_datagram", 1, MAX_DATAGRAM_BYTES + 1)).toBe(-1);
    expect(call("player_process_quantum", 0)).toBe(-1);
    expect(call("player_process_quantum", 1_025)).toBe(-1);
    const pages = exports.memory.buffer.byteLength;
    const area = new Uint8Array(exports.memory.buffer, call("datagram_ptr"), MAX_DATAGRAM_BYTES);
    const output = new Float32Array(exports.memory.buffer, call("output_ptr"), 2 * 128);
    const cases: { bytes: string }[] = vectors("wire.json").datagrams;
    for (let round = 0; round < 50; round++) {
      for (const { bytes } of cases) {
        const datagram = Buffer.from(bytes, "hex").subarray(0, MAX_DATAGRAM_BYTES);
        area.set(datagram);
        expect(call("player_handle_datagram", 1, datagram.length)).toBe(0);
      }
      expect(call("player_process_quantum", 128)).toBe(0);
      expect(output.every(Number.isFinite)).toBe(true);
    }
    expect(exports.memory.buffer.byteLength).toBe(pages);
  });
});
