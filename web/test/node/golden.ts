/** What tests against `vectors/` share: the files, the engine as WebAssembly, and their hash. */

import { existsSync, readFileSync, statSync } from "node:fs";
import { resolve } from "node:path";

const root = resolve(import.meta.dirname, "../../..");

/** A file of `vectors/`. */
export const vectors = (name: string) => JSON.parse(readFileSync(resolve(root, "vectors", name), "utf8"));

/** The engine as it was built last: by make for the web app, or by cargo alone. */
const engines = ["web/src/main/engine.wasm", "target/wasm32-unknown-unknown/wasm/antiphon_core_wasm.wasm"]
  .map((path) => resolve(root, path))
  .filter((url) => existsSync(url))
  .sort((a, b) => statSync(b).mtimeMs - statSync(a).mtimeMs);

export interface Exports {
  memory: WebAssembly.Memory;
  [name: string]: unknown;
}

/** A new engine. */
export function load() {
  if (!engines[0]) throw new Error("The engine is not built: make build");
  const module = new WebAssembly.Module(readFileSync(engines[0]));
  const exports = new WebAssembly.Instance(module, {}).exports as Exports;
  const call = (name: string, ...args: number[]) => (exports[name] as (...args: number[]) => number)(...args);
  return { module, exports, call };
}

/** FNV-1a, 64 bits, in two halves: BigInt would take minutes. */
export class Hash {
  #high = 0xcbf29ce4;
  #low = 0x84222325;

  add(bytes: Uint8Array): void {
    let [high, low] = [this.#high, this.#low];
    for (const byte of bytes) {
      low = (low ^ byte) >>> 0;
      // Times 0x100_0000_01b3: the low half times 0x1b3 with its carry, the high half, and the low half 8 bits up.
      const product = low * 0x1b3;
      high = (Math.imul(high, 0x1b3) + Math.floor(product / 2 ** 32) + (low << 8)) >>> 0;
      low = product >>> 0;
    }
    [this.#high, this.#low] = [high, low];
  }

  toString(): string {
    return [this.#high, this.#low].map((half) => half.toString(16).padStart(8, "0")).join("");
  }
}
