// What the engine costs in wasm, as the audio thread runs it: receive and render a quantum, 20 stereo peers and 1, with and without
// loss. The worst quantum counts: it is the one that is heard.
// node crates/core/benches/wasm.mjs [ENGINE.wasm]; the engine is built by `make build`.
import { readFileSync } from "node:fs";

const root = new URL("../../../", import.meta.url);
const file = process.argv[2] ?? new URL("web/src/main/engine.wasm", root);
const module = new WebAssembly.Module(readFileSync(file));
const RATE_HZ = 48_000;
const MAX_DATAGRAM_BYTES = 1_000;
const ROUNDS = 4_000;
const WARM_UP = 1_000;

const instantiate = () => new WebAssembly.Instance(module, {}).exports;

/** One quantum's datagrams of one stereo sender, again and again. */
function makeSender(bits, frames) {
  const engine = instantiate();
  engine.sender_configure(RATE_HZ, bits, 2, frames);
  const capture = new Float32Array(engine.memory.buffer, engine.capture_ptr(), 2 * frames);
  for (let n = 0; n < capture.length; n++) capture[n] = Math.sin(n * 0.01);
  const area = new Uint8Array(engine.memory.buffer, engine.datagram_ptr(), MAX_DATAGRAM_BYTES);
  return () => {
    engine.sender_push(2, frames);
    const datagrams = [];
    for (;;) {
      const length = engine.sender_poll_rendition(0);
      if (length === 0) return datagrams;
      datagrams.push(area.slice(0, length));
    }
  };
}

function measure(peers, frames, bits, loss = 0) {
  let random = 1;
  const isLost = () => {
    random = (Math.imul(random, 1_664_525) + 1_013_904_223) >>> 0;
    return random < loss * 2 ** 32;
  };
  const engine = instantiate();
  engine.player_new(RATE_HZ, 2, peers, 16_384);
  for (let id = 0; id < peers; id++) {
    engine.player_command(0, id, 0);
    engine.player_command(6, id, 256);
    engine.player_command(2, id, 0.5);
  }
  const area = new Uint8Array(engine.memory.buffer, engine.datagram_ptr(), MAX_DATAGRAM_BYTES);
  const send = makeSender(bits, frames);
  const times = [];
  for (let round = 0; round < WARM_UP + ROUNDS; round++) {
    const datagrams = send();
    const begin = process.hrtime.bigint();
    for (const datagram of datagrams) {
      for (let id = 0; id < peers; id++) {
        if (isLost()) continue;
        area.set(datagram);
        engine.player_handle_datagram(id, datagram.length);
      }
    }
    engine.player_process_quantum(frames);
    if (round >= WARM_UP) times.push(Number(process.hrtime.bigint() - begin));
  }
  engine.player_stream_stats(0);
  const stats = new Float64Array(engine.memory.buffer, engine.stats_ptr(), 9);
  if (loss === 0 && stats[8] > 0) throw new Error("the bench starves its player");
  times.sort((a, b) => a - b);
  const at = (share) => times[Math.floor(share * (times.length - 1))];
  const percent = (ns) => `${((100 * ns * RATE_HZ) / (frames * 1e9)).toFixed(2)} %`;
  const us = (at(0.5) / 1e3).toFixed(1);
  process.stdout.write(
    `wasm: receive and render ${frames} frames, ${peers} stereo peers, ${bits} bits, ${100 * loss} % lost: ` +
      `median ${us} µs = ${percent(at(0.5))} of real time, 99 % under ${percent(at(0.99))}, worst of ${ROUNDS} ${percent(at(1))}\n`,
  );
}

for (const frames of [128, 64]) {
  for (const peers of [1, 20]) {
    for (const bits of [16, 24, 32]) measure(peers, frames, bits);
    measure(peers, frames, 16, 0.05);
  }
}
