/** The keyboard's focus, as people meet it. */

import { afterAll, afterEach, beforeAll, expect, it } from "vitest";
import type { Browser } from "../src/browsers.js";
import { closeBrowsers, product, setUp, start, tearDown, untilShown } from "./stage.js";

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
