/** Musicians at home behind a line that is too narrow for what they chose, over an emulated network. Asserts formats and paths; never times. */

import { afterAll, afterEach, beforeAll, beforeEach, describe, it } from "vitest";
import { binary, type PagePeer, type PageStats, readStats, untilPlaying } from "../src/antiphon.js";
import type { Browser, BrowserName } from "../src/browsers.js";
import { EmulatedNetwork, missingForNetworks, type Side } from "../src/network.js";
import { sleep } from "../src/processes.js";
import { closeBrowsers, product, rig, setUp, start, tearDown } from "./stage.js";

/** What a musician at home has for a line, Mbit/s: enough for anything. */
const wide = { up: 100, down: 100 };

/** A step up that a hold-up of this machine thwarts is tried again after 20 s, then 40. */
const patienceSeconds = 180;

/** What a lossy line loses of all packets, both ways. */
const lossy = 0.02;

let network: EmulatedNetwork;

/** The musician at home is on the left. */
async function begin(): Promise<void> {
  network = await EmulatedNetwork.start({ profile: "rtt-20" });
  await line(wide);
}

function line({ up, down }: { up: number; down: number }): Promise<void> {
  const of = (mbits: number) => [{ atMs: 0, link: { delayMs: 10, rateBitsPerSecond: mbits * 1e6 } }];
  return network.change({ plan: { leftToRight: of(up), rightToLeft: of(down) } });
}

describe.skipIf(missingForNetworks())("without a browser, behind a narrow line", () => {
  let link: string;

  beforeEach(async () => {
    await begin();
    const server = launch("right", ["serve", "--listen", `${network.address("right")}:8080`]);
    const room = () => /http:\S+\/r\/[\w-]+/.exec(server.logTail(40))?.[0];
    await server.until(() => room() !== undefined, "a room", 30);
    link = room()!;
  });
  afterEach(async () => {
    await network?.stop();
  });

  const launch = (side: Side, command: string[]) => network.launch(side, [binary, ...command]);
  const join = (...options: string[]) => ["join", "--plain", "--buffer", "8000", ...options, link];

  it.for(["direct", "relay"])("sends less, %s, and what it chose again when there is room", async (way) => {
    const tone = ["--path", way, "--tone=440"];
    const home = launch("left", join(...tone, "--name", "home", "--bits", "24"));
    const away = launch("right", join(...tone, "--name", "away"));
    const until = async (sent: string, comes: string) => {
      // Directly it is said beside the peer, through the server beside the sessions.
      const place = way === "direct" ? "^ *away: " : "^online ";
      const says = new RegExp(`${place}.* sent ${sent}(,| ·)`, "m");
      await home.until(() => says.test(home.logTail(2)), `sent ${sent}`, patienceSeconds);
      const hears = new RegExp(`^ *home: .*, comes in ${comes},`, "m");
      await away.until(() => hears.test(away.logTail(2)), `heard in ${comes}`, 10);
    };
    await until("24 bits", "24 bits");
    // 24 bits take 2.6 Mbit/s, 16 bits 1.9, Opus 0.3.
    await line({ ...wide, up: 0.8 });
    await until("Opus 128 because the way there is too slow", "Opus");
    await line(wide);
    await until("16 bits because the way there is too slow", "16 bits");
    await until("24 bits", "24 bits");
    // What the other sends keeps its format in the end. Some of it is lost while the line is full: acknowledgements wait there, and SCTP sends
    // no more until they come.
    const keeps = /^ *away: .*, comes in 16 bits, /m;
    await home.until(() => keeps.test(home.logTail(2)), "what the other chose", 60);
  });

  it("is sent a mix where it cannot receive every stream, and every stream again when there is room", async () => {
    launch("right", ["join", "--bots", "6", link]);
    const home = launch("left", join("--name", "home", "--tone=440"));
    const until = (way: string) => {
      const bot = new RegExp(`^ {2}[^:]+: .*, ${way}, comes in`, "m");
      return home.until(() => bot.test(home.logTail(8)), `bots that come by ${way}`, 60);
    };
    await until("relay");
    // Six streams take 11 Mbit/s, a mix 1.9.
    await line({ ...wide, down: 4 });
    await until("mixed");
    const mixIn = (format: string) => {
      const mix = new RegExp(`^ *the server's mix: -\\d+ dBFS.*, mixed, comes in ${format}, `, "m");
      return home.until(() => mix.test(home.logTail(8)), `a mix that is heard in ${format}`, 60);
    };
    await mixIn("16 bits");
    await line({ ...wide, down: 0.8 });
    await mixIn("Opus");
    await line({ ...wide, down: 4 });
    await mixIn("16 bits");
    await line(wide);
    await until("relay");
  });

  it("makes up for what the line loses, to the server and from it", async () => {
    const tone = ["--path", "relay", "--packet", "128", "--tone=440"];
    const [home, away] = [
      launch("left", join(...tone, "--name", "home")),
      launch("right", join(...tone, "--name", "away")),
    ];
    const lost = (program: typeof home, other: string) =>
      Number(
        new RegExp(`^ *${other}: .*comes in 16 bits, .* (\\d+) lost`, "m").exec(program.logTail(2))?.[1] ??
          Number.NaN,
      );
    const bothLost = () => [lost(home, "away"), lost(away, "home")];
    await home.until(() => bothLost().every(Number.isFinite), "both heard", 30);
    await network.change({ profile: "rtt-20", loss: lossy });
    await home.until(
      () => /^online .* sent 16 bits, with copies/m.test(home.logTail(2)),
      "copies to the server",
      60,
    );
    const isHeard = () =>
      /^ *away: -\d+ dBFS/m.test(home.logTail(2)) && /^ *home: -\d+ dBFS/m.test(away.logTail(2));
    await untilMadeUp(async () => ({ lost: bothLost(), isHeard: isHeard() }));
  });
});

describe.skipIf(missingForNetworks())("a page behind a narrow line", () => {
  beforeAll(() => setUp(["A", "B"]));
  afterAll(tearDown);
  beforeEach(begin);
  afterEach(async () => {
    await closeBrowsers();
    await network?.stop();
  });

  it.for<[BrowserName, BrowserName]>([
    ["chromium", "firefox"],
    ["firefox", "chromium"],
  ])("sends less from %s to %s, and what it chose again when there is room", async ([one, other]) => {
    for (const side of ["left", "right"] as const) await network.admit(product.port, side);
    const home = await start(one, "A", { place: { network, side: "left" } });
    const away = await start(other, "B", { place: { network, side: "right" } });
    const room = product.newRoom();
    const chosen = { path: "direct", bits: 24, lanes: "auto", adapt: "auto", copies: "auto", buffer: 8192 };
    for (const [page, name] of [
      [home, "A"],
      [away, "B"],
    ] as const)
      await page.open(product.roomUrl(room, name, { packet: 128, channels: 2, ...chosen }));
    await untilPlaying([home, away]);
    rig.favourSound();
    const until = async (format: string) => {
      await untilPeer(home, ({ sent }) => sent?.format === format, `be sent ${format}`);
      await untilPeer(away, (peer) => peer.format === format, `come in ${format}`);
    };
    await until("s24");
    await line({ ...wide, up: 0.8 });
    await until("opus");
    await line(wide);
    await until("s24");
  });

  /** A server that is away, and a page at home in a room there with what `join` puts into it. */
  async function openAway(name: BrowserName, path: string, join: string[]): Promise<Browser> {
    const away = `${network.address("right")}:8080`;
    const server = network.launch("right", [binary, "serve", "--listen", away]);
    const link = () => /http:\S+\/r\/[\w-]+/.exec(server.logTail(40))?.[0];
    await server.until(() => link() !== undefined, "a room", 30);
    network.launch("right", [binary, "join", ...join, link()!]);
    // Pages have sound only of their own machine's servers: so its port is carried there.
    for (const protocol of ["TCP", "UDP"])
      network.launch("left", [
        "socat",
        `${protocol}-LISTEN:8080,bind=127.0.0.1,fork,reuseaddr`,
        `${protocol}:${away}`,
      ]);
    const home = await start(name, "A", { place: { network, side: "left" } });
    await home.open(
      `${link()!.replace(away, "127.0.0.1:8080")}?autojoin=1&name=home&path=${path}&buffer=8192&packet=128&copies=auto`,
    );
    return home;
  }

  it.for<BrowserName>(["chromium", "firefox"])(
    "makes up in %s for what the line loses, to the server and from it",
    async (name) => {
      const home = await openAway(name, "relay", [
        "--plain",
        "--path",
        "relay",
        "--tone=440",
        "--packet",
        "128",
      ]);
      await untilPeer(home, ({ receivedPackets }) => receivedPackets > 1_000, "hear the other");
      await network.change({ profile: "rtt-20", loss: lossy });
      await untilStats(home, ({ relay }) => relay?.sent?.copies === true, "send the server copies");
      await untilMadeUp(async () => {
        const [peer] = (await readStats(home)).peers;
        return { lost: [peer!.lostPackets], isHeard: peer!.peak.some((level) => level > 0) };
      });
      await untilStats(
        home,
        ({ relay }) => (relay?.missingShare ?? 1) < lossy / 4,
        "reach the server nearly whole",
      );
    },
  );

  it.for<BrowserName>(["chromium", "firefox"])("hears in %s the mix that there is room for", async (name) => {
    const home = await openAway(name, "mix", ["--bots", "6"]);
    let played = 0;
    const hears = async (format: string) => {
      await untilStats(
        home,
        ({ mix }) => {
          const before = played;
          played = mix?.playedFrames ?? 0;
          return mix?.format === format && before > 0 && played > before;
        },
        `hear a mix in ${format}`,
      );
    };
    await hears("s16");
    await line({ ...wide, down: 0.8 });
    await hears("opus");
    await line(wide);
    await hears("s16");
  });
});

/** Waits for 20 s in which at most a quarter is missed of what the line loses of a packet every 128 frames. */
async function untilMadeUp(look: () => Promise<{ lost: number[]; isHeard: boolean }>): Promise<void> {
  const seconds = 20;
  const most = (lossy / 4) * (48_000 / 128) * seconds;
  const deadline = Date.now() + patienceSeconds * 1000;
  for (let before = (await look()).lost; ; ) {
    await sleep(seconds * 1000);
    const { lost, isHeard } = await look();
    const missed = lost.map((count, n) => count - before[n]!);
    if (isHeard && missed.every((count) => count >= 0 && count <= most)) return;
    if (Date.now() > deadline)
      throw new Error(
        `${missed} packets were missed in ${seconds} s, at most ${most} were to be; heard: ${isHeard}`,
      );
    before = lost;
  }
}

/** Waits until it is so of the only other in a page's room. */
async function untilPeer(page: Browser, isSo: (peer: PagePeer) => boolean, what: string): Promise<void> {
  await untilStats(page, ({ peers: [peer] }) => peer !== undefined && isSo(peer), what);
}

async function untilStats(page: Browser, isSo: (stats: PageStats) => boolean, what: string): Promise<void> {
  const deadline = Date.now() + patienceSeconds * 1000;
  for (;;) {
    const stats = await readStats(page);
    if (isSo(stats)) return;
    if (Date.now() > deadline) throw new Error(`it does not ${what}: ${JSON.stringify(stats)}`);
    await sleep(500);
  }
}
