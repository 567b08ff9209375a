/** One interface over real browsers on the rig's cards: Chromium through Playwright, Firefox through WebDriver BiDi. */

import { chmodSync, existsSync, readFileSync, writeFileSync } from "node:fs";
import path from "node:path";
import type { EmulatedNetwork, Side } from "./network.js";
import { freePort } from "./ports.js";
import {
  dieWithParent,
  findProgram,
  makeFolder,
  offspring,
  removeFolder,
  requirePrograms,
} from "./processes.js";

export type BrowserName = "chromium" | "firefox";

export interface LaunchOptions {
  browser: BrowserName;
  /** Environment of the process: `rig.cardEnv("A")` gives it the card A. */
  env?: NodeJS.ProcessEnv;
  /** The side of an emulated network to live on. */
  place?: { network: EmulatedNetwork; side: Side };
  /** More command-line flags. */
  flags?: string[];
  /** More preferences (Firefox). */
  prefs?: Record<string, string | number | boolean>;
  /** Chromium: `--audio-buffer-size`, frames. */
  audioBufferSize?: number;
  /** Firefox: `media.cubeb_latency_mtg_frames`. */
  cubebFrames?: number;
  /** `PULSE_LATENCY_MSEC`. */
  pulseLatencyMs?: number;
}

export interface Look {
  width: number;
  height: number;
  dark: boolean;
}

/** A browser process with one page. */
export interface Browser {
  readonly name: BrowserName;
  readonly version: string;
  /** Console errors and uncaught exceptions so far. */
  readonly errors: string[];
  open(url: string): Promise<void>;
  /** Runs a function in the page. It sees its JSON arguments and the page's globals, nothing else. */
  evaluate<A extends unknown[], R>(fn: (...args: A) => R, ...args: A): Promise<Awaited<R>>;
  screenshot(file: string, look: Look): Promise<void>;
  /** Ends the process in good order. */
  close(): Promise<void>;
  /** Ends the process as a crash would. */
  kill(): void;
}

/**
 * Processes of Chromium that hold all its sockets. Chromium 156 crashes them now and then when a WebTransport server dies, and starts new
 * ones.
 */
export function networkServices(): number[] {
  return offspring().filter((id) => {
    try {
      return readFileSync(`/proc/${id}/cmdline`, "utf8").includes("network.mojom.NetworkService");
    } catch {
      // It has ended meanwhile.
      return false;
    }
  });
}

/** Chromium: a real microphone and speaker for an unattended page. The microphone is granted, never faked. */
const chromiumFlags = [
  "--use-fake-ui-for-media-stream",
  "--autoplay-policy=no-user-gesture-required",
  "--disable-features=WebRtcHideLocalIpsWithMdns",
  "--disable-quic",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--disable-background-timer-throttling",
  "--disable-backgrounding-occluded-windows",
  "--disable-renderer-backgrounding",
  "--no-first-run",
];

const firefoxPrefs = {
  "media.navigator.permission.disabled": true,
  "media.navigator.streams.fake": false,
  "media.autoplay.default": 0,
  "media.autoplay.blocking_policy": 0,
  "media.peerconnection.ice.loopback": true,
  "media.peerconnection.ice.obfuscate_host_addresses": false,
  "network.manage-offline-status": false,
  "dom.min_background_timeout_value": 4,
  "dom.timeout.enable_budget_timer_throttling": false,
};

export async function launch(options: LaunchOptions): Promise<Browser> {
  const { browser, pulseLatencyMs } = options;
  requirePrograms("setpriv", browser === "chromium" ? "chromium" : "firefox-esr");
  const folder = makeFolder(browser);
  const env: NodeJS.ProcessEnv = { ...(options.env ?? process.env), HOME: folder };
  if (pulseLatencyMs !== undefined) env.PULSE_LATENCY_MSEC = String(pulseLatencyMs);
  const strings = Object.fromEntries(
    Object.entries(env).filter((entry): entry is [string, string] => entry[1] !== undefined),
  );

  // A wrapper, so that the browser dies with the lab and its process id is known.
  const program = findProgram(browser === "chromium" ? "chromium" : "firefox-esr")!;
  const wrapper = path.join(folder, browser);
  const pidFile = path.join(folder, "pid");
  const { place } = options;
  const enter = place ? ["nsenter", `--net=${place.network.netns(place.side)}`] : [];
  const lines = [
    "#!/bin/sh",
    `echo $$ > '${pidFile}'`,
    `exec ${[...enter, ...dieWithParent].join(" ")} '${program}' "$@"`,
  ];
  writeFileSync(wrapper, `${lines.join("\n")}\n`);
  chmodSync(wrapper, 0o755);
  const kill = () => {
    if (existsSync(pidFile)) {
      try {
        process.kill(Number(readFileSync(pidFile, "utf8")), "SIGKILL");
      } catch {
        // It has ended already.
      }
    }
  };
  try {
    const start = browser === "chromium" ? launchChromium : launchFirefox;
    return await start(options, wrapper, strings, () => {
      kill();
      removeFolder(folder);
    });
  } catch (error) {
    kill();
    removeFolder(folder);
    throw error;
  }
}

type Launcher = (
  options: LaunchOptions,
  executablePath: string,
  env: Record<string, string>,
  end: () => void,
) => Promise<Browser>;

const launchChromium: Launcher = async (options, executablePath, env, end) => {
  const flags = [...chromiumFlags, ...(options.flags ?? [])];
  if (process.getuid?.() === 0) flags.push("--no-sandbox");
  if (options.audioBufferSize !== undefined) flags.push(`--audio-buffer-size=${options.audioBufferSize}`);
  const { chromium } = await import("playwright-core");
  const browser = await chromium.launch({
    executablePath,
    env,
    args: flags,
    ignoreDefaultArgs: ["--mute-audio"],
    handleSIGINT: false,
    handleSIGTERM: false,
    handleSIGHUP: false,
  });
  const page = await browser.newPage();
  const errors: string[] = [];
  page.on("console", (message) => {
    if (message.type() === "error") errors.push(message.text());
  });
  page.on("pageerror", (error) => errors.push(String(error)));
  return {
    name: "chromium",
    version: `Chromium ${browser.version()}`,
    errors,
    open: async (url) => {
      await page.goto(url);
    },
    evaluate: (fn, ...args) => page.evaluate(expression(fn, args)),
    screenshot: async (file, { width, height, dark }) => {
      await page.setViewportSize({ width, height });
      await page.emulateMedia({ colorScheme: dark ? "dark" : "light" });
      // What the page draws itself, the meters, has the new colours two frames later.
      await page.evaluate(
        () => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))),
      );
      // Transitions at their end: a change of scheme has begun some.
      await page.screenshot({ path: file, animations: "disabled" });
    },
    close: async () => {
      await within(5000, browser.close());
      end();
    },
    kill: end,
  };
};

const launchFirefox: Launcher = async (options, executablePath, env, end) => {
  const prefs: Record<string, string | number | boolean> = { ...firefoxPrefs, ...options.prefs };
  // Firefox asks the sound server for its default microphone and ignores PULSE_SOURCE: this hides all others from it.
  if (env.PULSE_SOURCE !== undefined) prefs["media.audio_loopback_dev"] = env.PULSE_SOURCE;
  if (options.cubebFrames !== undefined) prefs["media.cubeb_latency_mtg_frames"] = options.cubebFrames;
  const args = [...(options.flags ?? [])];
  if (options.place) {
    // Firefox is driven over TCP, on its own side's 127.0.0.1.
    const port = await freePort();
    args.push(`--remote-debugging-port=${port}`);
    await options.place.network.expose(port, options.place.side);
  }
  const { default: puppeteer } = await import("puppeteer-core");
  const browser = await puppeteer.launch({
    browser: "firefox",
    executablePath,
    env,
    args,
    extraPrefsFirefox: prefs,
    defaultViewport: null,
    protocolTimeout: 60_000,
    handleSIGINT: false,
    handleSIGTERM: false,
    handleSIGHUP: false,
  });
  const page = (await browser.pages())[0] ?? (await browser.newPage());
  const errors: string[] = [];
  page.on("console", (message) => {
    if (message.type() === "error") errors.push(message.text());
  });
  page.on("pageerror", (error) => errors.push(String(error)));
  return {
    name: "firefox",
    version: (await browser.version()).replace("/", " "),
    errors,
    open: async (url) => {
      await page.goto(url);
    },
    evaluate: <A extends unknown[], R>(fn: (...args: A) => R, ...args: A) =>
      page.evaluate(expression(fn, args)) as Promise<Awaited<R>>,
    screenshot: async (file, { width, height, dark }) => {
      if (dark)
        throw new Error(
          "Firefox: a dark page needs the preference layout.css.prefers-color-scheme.content-override = 0",
        );
      await page.setViewport({ width, height });
      await page.screenshot({ path: file as `${string}.png` });
    },
    close: async () => {
      await within(5000, browser.close());
      end();
    },
    kill: end,
  };
};

/** A call as text: the same for both drivers, and closed over nothing. */
function expression<A extends unknown[]>(fn: (...args: A) => unknown, args: A): string {
  return `(${fn.toString()})(...${JSON.stringify(args)})`;
}

async function within(ms: number, work: Promise<unknown>): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, ms);
  });
  await Promise.race([work.catch(() => undefined), late]);
  clearTimeout(timer);
}
