/** The lab's hand on the network emulator. Asserts counts; never times. */

import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { EmulatedNetwork, missingForNetworks } from "../src/network.js";
import { offspring, run, sleep } from "../src/processes.js";

describe.skipIf(missingForNetworks() !== null)("an emulated network", () => {
  it("says what became of the packets, those included that it came too late to read", async () => {
    const network = await EmulatedNetwork.start({ profile: "lan" });
    try {
      const send = `for n in 1 2 3; do echo hello; sleep 0.05; done | socat -u - UDP-SENDTO:${network.address("right")}:9`;
      await network.launch("left", ["sh", "-c", send]).until(async () => {
        const [{ deliveredPackets }] = await network.stats();
        return deliveredPackets >= 3;
      }, "packets");
      const [there, back] = await network.stats();
      expect(there).toMatchObject({ lostPackets: 0, refusedPackets: 0, unreadPackets: 0 });
      expect(there.latenessP99Us).not.toBeNull();
      expect(back.unreadPackets).toBe(0);
      // As if it stood still, while more comes than the device holds.
      process.kill(emulator(), "SIGSTOP");
      const flood = `head -c 1500000 /dev/zero | socat -u -b 100 - UDP-SENDTO:${network.address("right")}:9`;
      await run(["nsenter", `--net=${network.netns("left")}`, "sh", "-c", flood], process.env);
      process.kill(emulator(), "SIGCONT");
      expect((await network.stats())[0].unreadPackets).toBeGreaterThan(0);
    } finally {
      await network.stop();
    }
  });

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
