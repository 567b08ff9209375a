/** Who comes in, as people see it: what a room's owner may do for everyone, and a server that lets nobody in. */

import { afterAll, afterEach, beforeAll, expect, it } from "vitest";
import { Product, readStats, untilPlaying } from "../src/antiphon.js";
import type { Browser, BrowserName } from "../src/browsers.js";
import { closeBrowsers, parameters, product, setUp, start, tearDown, untilShown } from "./stage.js";

beforeAll(() => setUp(["A", "B"]));
afterEach(closeBrowsers);
afterAll(tearDown);

it("locks the door, mutes and removes", async () => {
  const room = product.newRoom();
  const [owner, other] = [await start("chromium", "A"), await start("chromium", "B")];
  await owner.open(product.roomUrl(room, "A", parameters));
  await untilShown(owner, "you, owner");
  await fill(owner, "Passphrase to come in", "tallis");
  await press(owner, "Lock the room");
  await untilShown(owner, "The room is locked");
  await untilShown(owner, "Tell the passphrase to those whom you invite: tallis");

  // No round number: the fixed buffer's field is in the form that joins.
  await other.open(product.roomUrl(room, "B", { ...parameters, buffer: 8190 }));
  await untilShown(other, "Its owner can tell you the passphrase.");
  await fill(other, "The room's passphrase", "byrd");
  await press(other, "Join");
  await untilShown(other, "That is not the passphrase.");
  await fill(other, "The room's passphrase", "tallis");
  await press(other, "Join");
  await untilPlaying([owner, other]);

  expect((await readStats(owner)).peers[0]).toMatchObject({ name: "B", mutedByOwner: false });
  expect(await isThere(other, "Mute for everyone: A")).toBe(false);
  await press(owner, "Mute for everyone: B");
  await untilShown(other, "The owner has muted you: nobody hears you.");
  await untilShown(owner, "Muted for everyone");
  expect((await readStats(owner)).peers[0]).toMatchObject({ mutedByOwner: true });
  await press(owner, "Mute for everyone: B");
  await untilShown(other, "You are connected to everyone in the room.");

  await press(owner, "Remove B from the room");
  expect(await owner.evaluate(() => document.activeElement?.ariaLabel)).toBe("Keep them in the room: B");
  await press(owner, "Really remove B from the room");
  await untilShown(other, "The room's owner removed you");
  await untilShown(owner, "Nobody else is here yet");
  await untilShown(owner, "You removed B, who may know the passphrase.");
  expect((await readStats(owner)).peers).toEqual([]);
});

it.for<BrowserName>(["chromium", "firefox"])(
  "says in %s that a server lets nobody in, and stops trying when told",
  async (name) => {
    const full = await Product.start({ options: ["--max-connections-per-address", "1"] });
    try {
      const room = full.newRoom();
      const [first, second] = [await start("chromium", "A"), await start(name, "B")];
      await first.open(full.roomUrl(room, "A", parameters));
      await untilShown(first, "you, owner");
      await second.open(full.roomUrl(room, "B", parameters));
      await untilShown(second, "The server answers, but does not let you in.");
      await press(second, "Cancel");
      await untilShown(second, "Join");
      expect(await second.evaluate(() => document.body.textContent)).not.toContain("does not let you in");
      // There is room again.
      await first.open("about:blank");
      await press(second, "Join");
      await untilShown(second, "you, owner");
    } finally {
      await full.stop();
    }
  },
);

/** Presses the button of this name, as a screen reader says it. */
async function press(page: Browser, name: string): Promise<void> {
  await page.evaluate((wanted) => {
    const nameOf = (button: HTMLElement) => button.ariaLabel ?? button.textContent.trim();
    const button = Array.from(document.querySelectorAll("button")).find((each) => nameOf(each) === wanted);
    if (button === undefined) throw new Error(`no button "${wanted}"`);
    button.click();
  }, name);
}

async function isThere(page: Browser, name: string): Promise<boolean> {
  return page.evaluate(
    (wanted) => Array.from(document.querySelectorAll("button")).some(({ ariaLabel }) => ariaLabel === wanted),
    name,
  );
}

/** Types into the field of this label. */
async function fill(page: Browser, label: string, text: string): Promise<void> {
  await page.evaluate(
    (wanted, value) => {
      const found = Array.from(document.querySelectorAll("label")).find(
        ({ textContent }) => textContent === wanted,
      );
      const field = found?.control;
      if (!(field instanceof HTMLInputElement)) throw new Error(`no field "${wanted}"`);
      field.value = value;
      field.dispatchEvent(new Event("input", { bubbles: true }));
    },
    label,
    text,
  );
}
