import { defineConfig } from "vitest/config";

// Rigs share the machine's sound threads and the processors: one file at a time, in a process that dies with its rig.
export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    fileParallelism: false,
    pool: "forks",
    testTimeout: 120_000,
    hookTimeout: 60_000,
    // Firefox stops answering its driver now and then where the processors are few, on pages without Antiphon too: not what is tested.
    retry: { count: 1, condition: /script\.evaluate timed out/ },
  },
});
