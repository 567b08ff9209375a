/**
 * What the browser tests and the benchmark share: a server that makes pages cross-origin isolated, and the
 * two browsers behind one small interface.
 *
 * CHROMIUM and FIREFOX name other executables. A browser that cannot be started is an error, never a skip.
 */
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { extname } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";
import puppeteer from "puppeteer-core";

const TYPES = {
  ".html": "text/html",
  ".js": "text/javascript",
  ".mjs": "text/javascript",
  ".map": "application/json",
};

/**
 * Serves the package on 127.0.0.1 under `/`, and `mounts` (URL prefix to directory URL) beside it.
 * Returns the origin and a `close` function.
 */
export async function serve(mounts = {}) {
  const roots = { ...mounts, "/": new URL("../../", import.meta.url) };
  const server = createServer(async (request, response) => {
    const path = new URL(request.url, "http://host").pathname;
    const prefix = Object.keys(roots).find((candidate) => path.startsWith(candidate));
    const headers = {
      "cross-origin-opener-policy": "same-origin",
      "cross-origin-embedder-policy": "require-corp",
      "cache-control": "no-store",
    };
    try {
      const body = await readFile(fileURLToPath(new URL(`.${path.slice(prefix.length - 1)}`, roots[prefix])));
      response.writeHead(200, {
        ...headers,
        "content-type": TYPES[extname(path)] ?? "application/octet-stream",
      });
      response.end(body);
    } catch {
      response.writeHead(404, headers).end();
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    origin: `http://127.0.0.1:${server.address().port}`,
    close: () =>
      new Promise((resolve) => {
        server.close(resolve);
        server.closeAllConnections();
      }),
  };
}

/** Starts Chromium. `open(url)` gives a page whose `evaluate(script)` resolves to the script's value. */
export async function launchChromium() {
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    headless: true,
    args: [
      "--no-sandbox",
      "--disable-gpu",
      "--disable-quic",
      "--no-first-run",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-sync",
      "--autoplay-policy=no-user-gesture-required",
    ],
  });
  return {
    version: `Chromium ${browser.version()}`,
    close: () => browser.close(),
    async open(url) {
      const page = await browser.newPage();
      await page.goto(url);
      return { evaluate: (script) => page.evaluate(script) };
    },
  };
}

/** Starts Firefox. `open(url)` gives a page whose `evaluate(script)` resolves to the script's value. */
export async function launchFirefox() {
  const browser = await puppeteer.launch({
    browser: "firefox",
    executablePath: process.env.FIREFOX ?? "/usr/bin/firefox-esr",
    headless: true,
    protocolTimeout: 600_000,
    extraPrefsFirefox: { "media.autoplay.default": 0, "media.autoplay.blocking_policy": 0 },
  });
  return {
    version: (await browser.version()).replace("/", " "),
    close: () => browser.close(),
    async open(url) {
      const page = await browser.newPage();
      await page.goto(url);
      return { evaluate: (script) => page.evaluate(script) };
    },
  };
}
