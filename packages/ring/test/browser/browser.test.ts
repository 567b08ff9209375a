/** The stress page in the two browsers: every count must be met, and not one element be wrong. */
import { afterAll, beforeAll, expect, test } from "vitest";
import { launchChromium, launchFirefox, serve } from "./browsers.mjs";

const SEED = 20260104;
let server: Awaited<ReturnType<typeof serve>>;

beforeAll(async () => {
  server = await serve();
});
afterAll(() => server.close());

test.each([
  ["Chromium", launchChromium],
  ["Firefox", launchFirefox],
])("%s: worker to worker, worker to AudioWorklet and back", async (_name, launch) => {
  const browser = await launch();
  try {
    const page = await browser.open(`${server.origin}/test/browser/index.html`);
    const result = await page.evaluate(`run(${SEED})`);
    expect(result).toMatchObject({ firstError: "", errors: 0, missing: 0 });
    expect(result.elements).toBe(500_000 + 2_000_000 + 200_000 + 500_000 + 2 * 500_000 + 1_000_000);
    expect(result.records).toBe(20_000 + 30_000 + 20_000);
    expect(result.wraps).toBeGreaterThan(70_000);
    expect(result.ends).toHaveLength(18);
  } finally {
    await browser.close();
  }
});
