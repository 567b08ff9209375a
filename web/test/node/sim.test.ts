import { describe, expect, it } from "vitest";
import { COMMAND, STATS_FIELDS, STREAM_STATS } from "../../src/shared/engine";
import { BUFFER_FRAMES } from "../../src/shared/messages";
import { MAX_DATAGRAM_BYTES } from "../../src/shared/wire";
import { Hash, load, vectors } from "./golden";

interface Run {
  name: string;
  target: number;
  packet_frames: number;
  quantum_frames: number;
  operations: string;
  heard_fnv1a: string;
  received_packets: number;
  lost_packets: number;
  late_packets: number;
  received_frames: number;
  played_frames: number;
  concealed_frames: number;
  skipped_frames: number;
  late_frames: number;
  underruns: number;
  resyncs: number;
}

/** Numbers as LEB128 has them: 7 bits a byte, low ones first. */
function* leb128(bytes: Uint8Array): Generator<number> {
  let number = 0;
  let scale = 1;
  for (const byte of bytes) {
    number += (byte & 0x7f) * scale;
    scale *= 128;
    if (byte < 0x80) {
      yield number;
      number = 0;
      scale = 1;
    }
  }
}

/** Gives datagram 0, 1, ... of the sender of `vectors/sim.json`. */
function makeSender(packetFrames: number) {
  const { exports, call } = load();
  expect(call("sender_configure", 48_000, 32, 1, packetFrames)).toBe(0);
  const capture = new Float32Array(exports.memory.buffer, call("capture_ptr"), packetFrames);
  const area = new Uint8Array(exports.memory.buffer, call("datagram_ptr"), MAX_DATAGRAM_BYTES);
  const sent: Uint8Array[] = [];
  let media = 0;
  return (n: number): Uint8Array => {
    while (sent.length <= n) {
      for (let i = 0; i < packetFrames; i++, media++) {
        capture[i] = (((media * 37) % 4_096) + ((media * 101) % 4_096) - 4_096) / 8_192;
      }
      expect(call("sender_push", 1, packetFrames)).toBe(0);
      sent.push(area.slice(0, call("sender_poll_rendition", 0)));
    }
    return sent[n] as Uint8Array;
  };
}

describe("simulated networks, bit for bit as native", () => {
  const golden = vectors("sim.json");

  it("are of the version this test reads", () => {
    expect(golden.version).toBe(2);
  });

  it.each(golden.runs as Run[])("$name", (run) => {
    const send = makeSender(run.packet_frames);
    const { exports, call } = load();
    expect(call("player_new", 48_000, 1, 1, BUFFER_FRAMES)).toBe(0);
    expect(call("player_command", COMMAND.add, 1, 0)).toBe(0);
    expect(call("player_command", COMMAND.target, 1, run.target)).toBe(0);
    const area = new Uint8Array(exports.memory.buffer, call("datagram_ptr"), MAX_DATAGRAM_BYTES);
    const output = new Uint8Array(exports.memory.buffer, call("output_ptr"), run.quantum_frames * 4);
    const heard = new Hash();
    let next = 0;
    let nowMs = 0;
    const operations = leb128(Buffer.from(run.operations, "base64"));
    for (const operation of operations) {
      if (operation === 0) {
        nowMs += operations.next().value;
        call("player_process_quantum", run.quantum_frames, nowMs);
        heard.add(output);
        continue;
      }
      const folded = operation - 1;
      const number = next + (folded % 2 === 0 ? folded / 2 : -(folded + 1) / 2);
      const datagram = send(number);
      area.set(datagram);
      call("player_handle_datagram", 1, datagram.length, nowMs + operations.next().value);
      next = number + 1;
    }
    expect(call("player_stream_stats", 1)).toBe(0);
    const stats = new Float64Array(exports.memory.buffer, call("stats_ptr"), STATS_FIELDS);
    const { operations: _, ...expected } = run;
    expect({
      name: run.name,
      target: run.target,
      packet_frames: run.packet_frames,
      quantum_frames: run.quantum_frames,
      heard_fnv1a: `${heard}`,
      received_packets: stats[STREAM_STATS.received],
      lost_packets: stats[STREAM_STATS.lost],
      late_packets: stats[STREAM_STATS.late],
      received_frames: stats[STREAM_STATS.receivedFrames],
      played_frames: stats[STREAM_STATS.played],
      concealed_frames: stats[STREAM_STATS.concealed],
      skipped_frames: stats[STREAM_STATS.skipped],
      late_frames: stats[STREAM_STATS.lateFrames],
      underruns: stats[STREAM_STATS.underruns],
      resyncs: stats[STREAM_STATS.resyncs],
    }).toEqual(expected);
  });
});
