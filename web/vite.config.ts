import solid from "vite-plugin-solid";
import { defineConfig } from "vitest/config";

export default defineConfig({
  plugins: [solid()],
  // The policy allows no inline code or data: everything is a file of its own.
  build: { target: "es2022", assetsInlineLimit: 0, modulePreload: { polyfill: false }, sourcemap: true },
  worker: { format: "es" },
  // Pages are tested in real browsers (lab/test); here run the parts that need none.
  // Where everything else is tested at the same time, those of properties take longer than Vitest's five seconds.
  test: { environment: "node", testTimeout: 30_000 },
});
