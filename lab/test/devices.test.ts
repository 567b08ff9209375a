/** A microphone and a speaker that are unplugged while they are played with, and plugged in again. */

import { afterAll, afterEach, beforeAll, expect, it } from "vitest";
import { readStats } from "../src/antiphon.js";
import { type Browser, type BrowserName, launch } from "../src/browsers.js";
import { sleep } from "../src/processes.js";
import { pactl, parameters, product, rig, setUp, tearDown, untilShown } from "./stage.js";

const WITHOUT_MICROPHONE = "The microphone has gone: nobody hears you.";
const WITHOUT_SPEAKER = "The output you chose is not there";

let browser: Browser | undefined;
const modules = new Set<string>();

beforeAll(() => setUp(["A"]));
afterEach(async () => {
  await browser?.close();
  browser = undefined;
  for (const module of modules) await unplug(module);
});
afterAll(tearDown);

it.for<BrowserName>(["chromium", "firefox"])("are missed in %s, and taken again", async (name) => {
  const microphone = await plug("usbmic", "Audio/Source/Virtual");
  const speaker = await plug("usbspk", "Audio/Sink");
  browser = await launch({ browser: name, env: rig.env });
  const page = browser;
  await page.open(product.roomUrl(product.newRoom(), "A", parameters));
  await untilCaptured(page);
  const [inputDeviceId, outputDeviceId] = await page.evaluate(async () => {
    const devices = await navigator.mediaDevices.enumerateDevices();
    const named = (kind: string, label: string) =>
      devices.find((device) => device.kind === kind && device.label === label)?.deviceId;
    return [named("audioinput", "usbmic"), named("audiooutput", "usbspk")];
  });
  expect(inputDeviceId).toBeDefined();
  expect(outputDeviceId).toBeDefined();
  const chosen = { inputDeviceId: inputDeviceId!, outputDeviceId: outputDeviceId! };
  await page.open(product.roomUrl(product.newRoom(), "A", { ...parameters, ...chosen }));
  await untilCaptured(page);

  await unplug(microphone);
  await tell(page, name);
  await untilShown(page, WITHOUT_MICROPHONE);
  await expect.poll(async () => (await readStats(page)).sender.capturePath).toBe("none");
  await plug("usbmic", "Audio/Source/Virtual");
  await tell(page, name);
  await untilCaptured(page);
  expect(await shows(page, WITHOUT_MICROPHONE)).toBe(false);

  // Firefox lets no page choose where its audio graph plays.
  if (name === "chromium") {
    expect(await played("usbspk")).toBe(true);
    await unplug(speaker);
    await tell(page, name);
    await untilShown(page, WITHOUT_SPEAKER);
    await plug("usbspk", "Audio/Sink");
    await tell(page, name);
    await expect.poll(() => played("usbspk"), { timeout: 20_000 }).toBe(true);
    expect(await shows(page, WITHOUT_SPEAKER)).toBe(false);
  }
});

/** A card more. */
async function plug(name: string, mediaClass: string): Promise<string> {
  const properties = [`sink_name=${name}`, `sink_properties=device.description=${name}`];
  const channels = "channel_map=front-left,front-right";
  const asked = [`media.class=${mediaClass}`, channels, ...properties];
  const module = await pactl("load-module", "module-null-sink", ...asked);
  modules.add(module);
  return module;
}

async function unplug(module: string): Promise<void> {
  await pactl("unload-module", module);
  modules.delete(module);
}

/** Chromium on Linux learns of cards from the kernel, which knows none of these. */
async function tell(page: Browser, name: BrowserName): Promise<void> {
  if (name !== "chromium") return;
  await sleep(500);
  await page.evaluate(() => navigator.mediaDevices.dispatchEvent(new Event("devicechange")));
}

/** Whether anything plays on this speaker. */
async function played(speaker: string): Promise<boolean> {
  const rows = (list: string) => list.split("\n").map((line) => line.split("\t"));
  const sink = rows(await pactl("list", "short", "sinks")).find(([, name]) => name === speaker)?.[0];
  return rows(await pactl("list", "short", "sink-inputs")).some(([, at]) => at === sink);
}

async function untilCaptured(page: Browser): Promise<void> {
  const captured = async () => (await readStats(page)).sender;
  await expect.poll(async () => (await captured()).capturePath, { timeout: 20_000 }).not.toBe("none");
  const before = (await captured()).capturedFrames;
  await expect
    .poll(async () => (await captured()).capturedFrames, { timeout: 10_000 })
    .toBeGreaterThan(before);
}

function shows(page: Browser, text: string): Promise<boolean> {
  return page.evaluate((wanted) => document.body.textContent.includes(wanted), text);
}
