/** The ways in which browsers are launched for a measurement. */

import type { LaunchOptions } from "./browsers.js";

export const configs: Record<string, LaunchOptions> = {
  chromium: { browser: "chromium" },
  "chromium-128": { browser: "chromium", audioBufferSize: 128 },
  firefox: { browser: "firefox" },
  "firefox-128": { browser: "firefox", cubebFrames: 128 },
};

/** The chosen ones of `known`, in that order. *Errors* if one is unknown. */
export function choose(chosen: readonly string[] | undefined, known: readonly string[]): string[] {
  const unknown = (chosen ?? []).filter((name) => !known.includes(name));
  if (unknown.length > 0) throw new Error(`there is no ${unknown.join(", ")} here, but: ${known.join(", ")}`);
  return known.filter((name) => chosen === undefined || chosen.includes(name));
}

/** The same in the order of a session (counted from 1): each begins with another one, so that none is always the first or the last. */
export function rotated<T>(all: readonly T[], session: number, sessions: number): T[] {
  const first = Math.floor(((session - 1) * all.length) / sessions);
  return [...all.slice(first), ...all.slice(0, first)];
}

/** The one configuration that an experiment takes. *Errors* if it is unknown, or not alone. */
export function chooseConfig(chosen: readonly string[] = ["chromium-128"]): string {
  const [config, ...others] = choose(chosen, Object.keys(configs));
  if (config === undefined || others.length > 0)
    throw new Error(
      `peers, loss, native and fidelity take one of --configs at a time, not ${chosen.join(", ")}`,
    );
  return config;
}

/** What each of them is, in a sentence each: for a report's method. */
export function describe(known: Record<string, { about: string }>): string {
  return Object.entries(known)
    .map(([name, { about }]) => `${name}: ${about}.`)
    .join(" ");
}
