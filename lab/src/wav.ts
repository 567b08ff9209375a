/** WAV files of the device: 16-bit out, 32-bit float back. Shape of a take: `[channel][frame]`, full scale 1. */

import { readFileSync, writeFileSync } from "node:fs";

export type Take = Float32Array[];

/** Writes 16-bit integer samples, `round(x * 32768)`: material of that depth is written exactly. */
export function writeWav(file: string, take: Take, rateHz: number): void {
  const channels = take.length;
  const frames = take[0]?.length ?? 0;
  const data = Buffer.alloc(44 + frames * channels * 2);
  data.write("RIFF", 0);
  data.writeUInt32LE(data.length - 8, 4);
  data.write("WAVEfmt ", 8);
  data.writeUInt32LE(16, 16);
  data.writeUInt16LE(1, 20); // integer PCM
  data.writeUInt16LE(channels, 22);
  data.writeUInt32LE(rateHz, 24);
  data.writeUInt32LE(rateHz * channels * 2, 28);
  data.writeUInt16LE(channels * 2, 32);
  data.writeUInt16LE(16, 34);
  data.write("data", 36);
  data.writeUInt32LE(data.length - 44, 40);
  for (let frame = 0, at = 44; frame < frames; frame++) {
    for (let channel = 0; channel < channels; channel++, at += 2) {
      const sample = Math.round(take[channel]![frame]! * 32_768);
      data.writeInt16LE(Math.max(-32_768, Math.min(32_767, sample)), at);
    }
  }
  writeFileSync(file, data);
}

/** Reads 32-bit float samples. */
export function readWav(file: string): Take {
  const data = readFileSync(file);
  if (data.toString("latin1", 0, 4) !== "RIFF" || data.toString("latin1", 8, 12) !== "WAVE") {
    throw new Error(`${file} is not a WAV file`);
  }
  let channels = 0;
  for (let at = 12; at + 8 <= data.length; ) {
    const name = data.toString("latin1", at, at + 4);
    const length = data.readUInt32LE(at + 4);
    const body = at + 8;
    if (name === "fmt ") {
      channels = data.readUInt16LE(body + 2);
      const bits = data.readUInt16LE(body + 14);
      if (bits !== 32) throw new Error(`${file} has ${bits} bits; expected 32-bit float`);
    } else if (name === "data") {
      const frames = Math.floor(length / (4 * channels));
      const take = Array.from({ length: channels }, () => new Float32Array(frames));
      for (let frame = 0, from = body; frame < frames; frame++) {
        for (let channel = 0; channel < channels; channel++, from += 4)
          take[channel]![frame] = data.readFloatLE(from);
      }
      return take;
    }
    at = body + length + (length & 1);
  }
  throw new Error(`${file} has no data`);
}
