import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync } from "node:zlib";
import type { Plugin } from "vite";
import solid from "vite-plugin-solid";
import { defineConfig } from "vitest/config";

/** Writes each file compressed too, once and as well as it can be: the server then holds no compressor for a client that does not read. */
const compressed: Plugin = {
  name: "compressed",
  apply: "build",
  writeBundle({ dir = "" }, bundle) {
    for (const name of Object.keys(bundle)) {
      const file = join(dir, name);
      writeFileSync(`${file}.br`, brotliCompressSync(readFileSync(file)));
    }
  },
};

export default defineConfig({
  plugins: [solid(), compressed],
  // The policy allows no inline code or data: everything is a file of its own.
  build: { target: "es2022", assetsInlineLimit: 0, modulePreload: { polyfill: false }, sourcemap: true },
  worker: { format: "es" },
  // Pages are tested in real browsers (lab/test); here run the parts that need none.
  // Where everything else is tested at the same time, those of properties take longer than Vitest's five seconds.
  test: { environment: "node", testTimeout: 30_000 },
});
