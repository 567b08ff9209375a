/** The keyboard's focus, as people meet it. */

import { afterAll, afterEach, beforeAll, expect, it } from "vitest";
import { untilPlaying } from "../src/antiphon.js";
import type { Browser } from "../src/browsers.js";
import { closeBrowsers, parameters, press, product, setUp, start, tearDown, untilShown } from "./stage.js";

beforeAll(() => setUp(["A", "B"]));
afterEach(closeBrowsers);
afterAll(tearDown);

it("goes on to the microphone from a name, where Enter would join without one", async () => {
  const page = await start("chromium", "A");
  await page.open(product.lobbyUrl(product.newRoom()));
  await untilShown(page, "Join and only listen");
  await page.evaluate(() => {
    const field = document.querySelector<HTMLInputElement>("input[name=name]")!;
    field.focus();
    field.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true }));
  });
  expect(await focused(page)).toMatch(/^(Allow|Use my) microphone$/);
});

it("goes on from mono and stereo at Enter, where it would join", async () => {
  const page = await start("chromium", "A");
  await page.open(product.lobbyUrl(product.newRoom()));
  await untilShown(page, "Use my microphone");
  await press(page, "Use my microphone");
  await untilShown(page, "You send");
  const areKept = await page.evaluate(() =>
    Array.from(document.querySelectorAll("input[type=radio]"), (radio) => {
      const enter = new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true });
      return !radio.dispatchEvent(enter);
    }),
  );
  expect(areKept).toEqual([true, true]);
});

it("stays on the link's button while the first of the others comes in", async () => {
  const [page, other] = [await start("chromium", "A"), await start("chromium", "B")];
  const room = product.newRoom();
  await page.open(product.roomUrl(room, "A", parameters));
  await untilShown(page, "Nobody else is here yet");
  await page.evaluate(() => {
    const buttons = Array.from(document.querySelectorAll("button"));
    buttons.find(({ textContent }) => textContent.trim() === "Copy link")!.focus();
  });
  await other.open(product.roomUrl(room, "B", parameters));
  await untilPlaying([page]);
  await untilShown(page, "With you: 1");
  expect(await focused(page)).toBe("Copy link");
});

it("begins on the way out of the list of shortcuts", async () => {
  const page = await start("chromium", "A");
  await page.open(product.lobbyUrl(product.newRoom()));
  await untilShown(page, "Shortcuts");
  await page.evaluate(() => document.querySelector<HTMLElement>(".keyboard")!.click());
  expect(await focused(page)).toBe("Close");
});

/** What has it, by its text. */
async function focused(page: Browser): Promise<string> {
  return page.evaluate(() => document.activeElement?.textContent.trim() ?? "");
}
