import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    // Worker threads and browsers load the built package.
    globalSetup: ["test/build.ts"],
    testTimeout: 300_000,
    hookTimeout: 120_000,
    // The stress tests want two cores each.
    fileParallelism: false,
  },
});
