/** The lab's hand on the network emulator. Asserts counts; never times. */

import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { EmulatedNetwork, missingForNetworks } from "../src/network.js";
import { offspring, sleep } from "../src/processes.js";

describe.skipIf(missingForNetworks() !== null)("an emulated network", () => {
  it("does not wait for the answer of an emulator that was killed", async () => {
    const network = await EmulatedNetwork.start({ profile: "lan" });
    try {
      process.kill(emulator(), "SIGKILL");
      await expect(network.change({ profile: "wifi" })).rejects.toThrow("the emulator");
      await sleep(100);
      await expect(network.stats()).rejects.toThrow("the emulator has ended");
    } finally {
      await network.stop();
    }
  });
});

function emulator(): number {
  return offspring().find((id) => readFileSync(`/proc/${id}/cmdline`, "utf8").includes("antiphon-netem"))!;
}
