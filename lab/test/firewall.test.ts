/**
 * Over emulated networks: a musician behind a firewall that lets no datagram out, and a TURN server outside, page and native program; and a direct way
 * that dies while the server's lives. Never asserts times.
 */

import { readFileSync } from "node:fs";
import path from "node:path";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { binary, Product, readStats } from "../src/antiphon.js";
import type { BrowserName } from "../src/browsers.js";
import { EmulatedNetwork, missingForNetworks, type Side } from "../src/network.js";
import { makeFolder, removeFolder, run, type Service } from "../src/processes.js";
import { closeBrowsers, rig, setUp, start, tearDown } from "./stage.js";

const turnPort = 3478;

/** From now on a side's datagrams, but for `except` (as `ip rule` has it), go where nobody takes them: they are dropped as a firewall drops them, without a word. */
async function dropDatagrams(network: EmulatedNetwork, side: Side, except?: string[]): Promise<void> {
  const ip = (...command: string[]) =>
    run(["nsenter", `--net=${network.netns(side)}`, "ip", ...command], process.env);
  await ip("route", "add", "default", "dev", "lo", "table", "100");
  if (except) await ip("rule", "add", "priority", "50", "ipproto", "udp", ...except, "lookup", "main");
  await ip("rule", "add", "priority", "51", "ipproto", "udp", "lookup", "100");
}

describe.skipIf(missingForNetworks())("behind a firewall", () => {
  let network: EmulatedNetwork;
  let server: Product;

  beforeAll(() => setUp(["A"]));
  afterAll(tearDown);

  /** Behind the firewall is the left. */
  beforeEach(async () => {
    network = await EmulatedNetwork.start({ profile: "lan" });
    await dropDatagrams(network, "left");
    const outside = network.address("right");
    const turn = network.launch(
      "right",
      ["turnserver", "-n", "--no-cli", "--no-tls", "--no-dtls", "--no-tcp-relay"].concat(
        ["--lt-cred-mech", "--realm", "test", "--user", "ann:secret", "--db", "/dev/null"],
        ["--listening-ip", outside, "--listening-port", String(turnPort), "--relay-ip", outside],
        ["--pidfile", "/dev/null", "--log-file", "stdout", "--simple-log"],
      ),
    );
    await turn.until(() => /Total General servers/.test(turn.logTail(200)), "server");
    const url = `turn:${outside}:${turnPort}?transport=tcp`;
    server = await Product.start({ options: ["--ice-server", `${url},ann,secret`] });
    for (const side of ["left", "right"] as const) await network.admit(server.port, side);
  });
  afterEach(async () => {
    await closeBrowsers();
    await network?.stop();
    await server?.stop();
  });

  it.for<[BrowserName, Side]>([
    ["chromium", "left"],
    ["firefox", "left"],
    ["chromium", "right"],
    ["firefox", "right"],
  ])("a page in %s and the native program play by TURN, the page on the %s", async ([browser, side]) => {
    const room = server.newRoom();
    const page = await start(browser, "A", { place: { network, side } });
    await page.open(server.roomUrl(room, "page", { channels: 2, buffer: 8192 }));
    const sound = ["--tone=440", "--buffer", "8000", "--path", "direct"];
    const join = [binary, "join", "--plain", "--name", "native", ...sound, server.lobbyUrl(room)];
    const native = network.launch(side === "left" ? "right" : "left", join);
    rig.favourSound();
    const hears = () => / page: .*, direct, comes in 16 bits, /.test(native.logTail(2));
    await native.until(hears, "sound of the page", 60);
    const peer = async () => (await readStats(page)).peers[0];
    await native.until(
      async () => ((await peer())?.playedFrames ?? 0) > 48_000,
      "second of sound in the page",
      60,
    );
    const stats = (await peer())!;
    expect(stats.path).toBe("direct");
    expect(stats.lanes.map((lane) => lane.candidateType)).toContain("relay");
  });
});

describe.skipIf(missingForNetworks())("where the direct way dies", () => {
  const port = 8080;
  const relayPort = 8081;
  const seconds = 25;
  let network: EmulatedNetwork;
  let folder: string;

  beforeAll(async () => {
    folder = makeFolder("dead-way");
    network = await EmulatedNetwork.start({ profile: "lan" });
  });
  afterAll(async () => {
    await network?.stop();
    removeFolder(folder);
  });

  it("sound goes on through the server without a gap", async () => {
    const address = network.address("right");
    const listen = ["--listen", `${address}:${port}`, "--relay-listen", `${address}:${relayPort}`];
    const server = network.launch("right", [binary, "serve", ...listen]);
    await server.until(() => /\/r\//.test(server.logTail()), "server");
    const link = `http://${address}:${port}/r/${"dead-way-".repeat(3)}`;
    const file = (side: Side) => path.join(folder, `${side}.json`);
    const join = (side: Side) => {
      const rest = ["--seconds", String(seconds), "--json", file(side), link];
      return network.launch(side, [binary, "join", "--plain", "--tone=440", "--name", side, ...rest]);
    };
    const both: [Service, Service] = [join("left"), join("right")];
    for (const native of both) {
      const hears = () => /, direct\+relay, /.test(native.logTail(2));
      await native.until(hears, "sound both ways", 15);
    }
    // But for those of the relay.
    await dropDatagrams(network, "left", ["dport", String(relayPort)]);
    await dropDatagrams(network, "right", ["sport", String(relayPort)]);
    for (const [at, side] of (["left", "right"] as const).entries()) {
      await both[at]!.until(() => both[at]!.ended, "the end", seconds + 10);
      const [peer] = JSON.parse(readFileSync(file(side), "utf8")).peers;
      expect(peer.played_frames).toBeGreaterThan(48_000 * 15);
      // The slowest machine has fewer, and without the relay it would be 10 s and more.
      expect(peer.concealed_frames, side).toBeLessThan(48_000);
    }
  });
});
