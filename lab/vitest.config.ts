import { defineConfig } from "vitest/config";

// Rigs share the machine's sound threads and the processors: one file at a time, in a process that dies with its rig.
export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    fileParallelism: false,
    pool: "forks",
    // What is heard may be observed three times.
    testTimeout: 300_000,
    hookTimeout: 60_000,
  },
});
