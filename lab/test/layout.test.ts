/** The page on a phone, with text of twice the size: nothing runs over. */

import path from "node:path";
import { afterAll, afterEach, beforeAll, expect, it } from "vitest";
import { binary, untilPlaying } from "../src/antiphon.js";
import type { Browser, Look } from "../src/browsers.js";
import { makeFolder, removeFolder, Service } from "../src/processes.js";
import { closeBrowsers, parameters, product, setUp, start, tearDown, untilShown } from "./stage.js";

beforeAll(() => setUp(["A", "B"]));
afterEach(closeBrowsers);
afterAll(tearDown);

const phone = { width: 390, height: 844, dark: false };

it("keeps within a phone's width at 200 % text size", async () => {
  const page = await start("chromium", "A");
  const room = product.newRoom();
  for (const url of [product.url, product.lobbyUrl(room)]) {
    await page.open(url);
    expect(await tooWide(page), url).toEqual([]);
  }
  await page.open(product.roomUrl(room, "A", { ...parameters, loop: 1 }));
  // As long as a name may be, with nowhere to break it.
  const other = await start("chromium", "B");
  await other.open(product.roomUrl(room, "W".repeat(64), parameters));
  await untilPlaying([page], 2);
  await page.evaluate(() => {
    for (const details of document.querySelectorAll("details")) details.open = true;
  });
  expect(await tooWide(page), "the room").toEqual([]);
});

it("keeps the bar to one row on a small phone, and what has the focus below it", async () => {
  const page = await start("chromium", "A");
  await page.open(product.roomUrl(product.newRoom(), "A", { ...parameters, loop: 1 }));
  await untilPlaying([page]);
  await show(page, { width: 360, height: 740, dark: false });
  const { barPixels, hidden } = await page.evaluate(() => {
    for (const details of document.querySelectorAll("details")) details.open = true;
    const bar = document.querySelector(".bar")!.getBoundingClientRect();
    const controls = Array.from(
      document.querySelectorAll<HTMLElement>("main :is(a, button, input, summary)"),
    );
    const isUnderBar = (control: HTMLElement) => {
      control.focus();
      return control === document.activeElement && control.getBoundingClientRect().top < bar.bottom;
    };
    const hidden = controls.reverse().filter(isUnderBar);
    return { barPixels: bar.height, hidden: hidden.map(({ outerHTML }) => outerHTML.slice(0, 60)) };
  });
  expect(barPixels).toBeLessThan(2 * 44);
  expect(hidden).toEqual([]);
});

it("shows three strips side by side on a laptop, and of many musicians only what one plays by", async () => {
  const page = await start("chromium", "A");
  const room = product.newRoom();
  await page.open(product.roomUrl(room, "A", parameters));
  const folder = makeFolder("bots");
  const company = async (count: number) => {
    const command = [binary, "join", "--bots", String(count), product.lobbyUrl(room)];
    const bots = Service.start(command, process.env, path.join(folder, "log"));
    await untilShown(page, `With you: ${count}`);
    await show(page, { width: 1400, height: 900, dark: false });
    const seen = await page.evaluate(() => {
      const visible = (element: Element) => element.checkVisibility();
      const count = (selector: string) =>
        Array.from(document.querySelectorAll(`.strip ${selector}`)).filter(visible).length;
      const { gridTemplateColumns } = getComputedStyle(document.querySelector(".strips")!);
      return {
        columns: gridTemplateColumns.split(" ").length,
        faders: count("input"),
        verdicts: count(".verdict"),
        moderations: count("[aria-label^='Mute for everyone']"),
        grids: count(".figure-grid"),
      };
    });
    await bots.stop();
    await untilShown(page, "Nobody else is here yet");
    return seen;
  };
  try {
    expect(await company(4)).toEqual({ columns: 3, faders: 8, verdicts: 4, moderations: 4, grids: 4 });
    expect(await company(5)).toEqual({ columns: 3, faders: 10, verdicts: 5, moderations: 0, grids: 0 });
  } finally {
    removeFolder(folder);
  }
});

/** So large from now on. */
async function show(page: Browser, look: Look): Promise<void> {
  const folder = makeFolder("layout");
  await page.screenshot(path.join(folder, "page.png"), look);
  removeFolder(folder);
}

/** What sticks out of the page, or has more in it than fits. */
async function tooWide(page: Browser): Promise<string[]> {
  await show(page, phone);
  return page.evaluate(() => {
    document.documentElement.style.fontSize = "200%";
    // From eyes only, with all that is in it.
    const isHidden = (element: Element | null): boolean =>
      element !== null && (getComputedStyle(element).clipPath !== "none" || isHidden(element.parentElement));
    const isOver = (element: Element) => {
      if (isHidden(element)) return false;
      const { left, right, width } = element.getBoundingClientRect();
      const sticksOut = width > 0 && (left < 0 || right > innerWidth);
      const isBlock = element.clientWidth > 0 && !element.matches("input, select");
      return sticksOut || (isBlock && element.scrollWidth > element.clientWidth + 1);
    };
    return Array.from(document.querySelectorAll("body, body *"))
      .filter(isOver)
      .map((element) => `${element.tagName} ${element.className} ${element.textContent.slice(0, 30)}`);
  });
}
