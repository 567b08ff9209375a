/** Pictures of the product: node lab/dist/screenshots.js OUTDIR */

import { mkdirSync } from "node:fs";
import path from "node:path";
import { Product, untilPlaying } from "./antiphon.js";
import { type Browser, launch } from "./browsers.js";
import { sleep } from "./processes.js";
import { Rig } from "./rig.js";

const sizes = { wide: { width: 1280, height: 800 }, narrow: { width: 390, height: 844 } };

async function main(folder: string | undefined): Promise<number> {
  if (!folder || folder.startsWith("-")) {
    process.stdout.write(
      "usage: node lab/dist/screenshots.js OUTDIR\nLobby and room, wide and narrow, light and dark.\n",
    );
    return folder ? 0 : 2;
  }
  mkdirSync(folder, { recursive: true });
  const rig = await Rig.start({ cards: ["A", "B"] });
  const product = await Product.start();
  const room = product.newRoom();
  const a = await launch({ browser: "chromium", env: rig.cardEnv("A") });
  const b = await launch({ browser: "chromium", env: rig.cardEnv("B") });
  try {
    await a.open(product.lobbyUrl(room));
    await sleep(1500);
    await shoot(a, folder, "lobby");
    await a.open(product.roomUrl(room, "Ada", {}));
    await b.open(product.roomUrl(room, "Béla", {}));
    await untilPlaying([a, b]);
    await shoot(a, folder, "room");
  } finally {
    await a.close();
    await b.close();
    await product.stop();
    await rig.stop();
  }
  for (const error of a.errors) process.stdout.write(`page error: ${error}\n`);
  return 0;
}

async function shoot(page: Browser, folder: string, name: string): Promise<void> {
  for (const [size, { width, height }] of Object.entries(sizes)) {
    for (const dark of [false, true]) {
      const file = path.join(folder, `${name}-${size}-${dark ? "dark" : "light"}.png`);
      await page.screenshot(file, { width, height, dark });
      process.stdout.write(`${file}\n`);
    }
  }
}

main(process.argv[2]).then(
  (code) => process.exit(code),
  (error: unknown) => {
    process.stderr.write(`screenshots: ${error instanceof Error ? error.message : String(error)}\n`);
    process.exit(1);
  },
);
