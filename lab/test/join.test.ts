/** `antiphon join` on (virtual) sound cards of ALSA, heard with the rig's ears. Asserts sides and counts; never times. */

import { readFileSync } from "node:fs";
import path from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { binary } from "../src/antiphon.js";
import { makeFolder, removeFolder, run, Service } from "../src/processes.js";
import { alsaCard, Rig, sampleRateHz } from "../src/rig.js";
import { expectSound, playBothWays, product, rig, setUp, tearDown } from "./stage.js";

describe("without a browser, by ALSA", () => {
  beforeAll(() => setUp(["A", "B"]));
  afterAll(tearDown);

  it("lists the cards", async () => {
    const lines = await run([binary, "join", "--backend", "cpal", "--list-devices"], rig.env);
    for (const card of rig.cards)
      for (const direction of ["in ", "out"])
        expect(lines).toContain(`${direction}  ${alsaCard(card)}  Card ${card}`);
  });

  it("says which card there is not", async () => {
    const join = [
      binary,
      "join",
      "--backend",
      "cpal",
      "--device",
      "nowhere",
      product.lobbyUrl(product.newRoom()),
    ];
    await expect(run(join, rig.env)).rejects.toThrow(/"nowhere".*--list-devices/);
  });

  it("stays in the room when its card is gone, and plays on when that is back", async () => {
    const other = await Rig.start({ cards: ["X"] });
    const folder = makeFolder("join");
    const join = [binary, "join", "--backend", "cpal", "--device", alsaCard("X"), "--plain"];
    const link = product.lobbyUrl(product.newRoom());
    const musician = Service.start([...join, link], other.env, path.join(folder, "log"));
    const gone = "the sound card is gone: plug it in again; it is looked for every second";
    try {
      await musician.until(() => musician.logTail().includes("quantum"), "sound", 30);
      await other.loseSound();
      await musician.until(() => musician.logTail(4).includes(gone), "word of it", 30);
      await other.startSound();
      const plays = () => musician.logTail(4).includes("quantum") && !musician.logTail(4).includes(gone);
      await musician.until(plays, "sound again", 30);
    } finally {
      await musician.stop();
      await other.stop();
      removeFolder(folder);
    }
  });

  it("plays both ways, each side on its own", async (context) => {
    const folder = makeFolder("join");
    const link = product.lobbyUrl(product.newRoom());
    const file = (card: string) => path.join(folder, `${card}.json`);
    const join = (card: string) => {
      const sound = ["--backend", "cpal", "--device", alsaCard(card), "--quantum", "1024"];
      // Both quantum and buffer are large enough for a busy machine.
      const options = ["--plain", "--name", card, "--buffer", "8000", "--json", file(card)];
      const command = [binary, "join", ...sound, ...options, link];
      return Service.start(command, rig.env, path.join(folder, `${card}.log`));
    };
    const musicians = [join("A"), join("B")];
    try {
      for (const [musician, other] of [
        [musicians[0]!, "B"],
        [musicians[1]!, "A"],
      ] as const)
        await musician.until(
          () => new RegExp(`^ *${other}: .*direct\\+relay,.* buffer \\d`, "m").test(musician.logTail(40)),
          "sound",
          30,
        );
      const seconds = { leadSeconds: 2, pulseSeconds: 3, steadySeconds: 0 };
      await expectSound(context, () => playBothWays(seconds));
      for (const musician of musicians) expect(musician.ended, musician.logTail()).toBe(false);
      await musicians[0]!.stop();
      const { quantum_frames, peers } = JSON.parse(readFileSync(file("A"), "utf8"));
      expect(quantum_frames).toBe(1024);
      expect(peers[0].played_frames).toBeGreaterThan(4 * sampleRateHz);
    } finally {
      for (const musician of musicians) await musician.stop();
      removeFolder(folder);
    }
  });
});
