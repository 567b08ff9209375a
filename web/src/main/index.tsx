/** The entry: which page the address asks for. */

import type { Stats, Trace } from "../shared/stats";
import { loadSettings } from "./settings";
import { Studio } from "./studio";
import { mount, mountHome } from "./ui/app";

declare global {
  interface Window {
    /** docs/automation.md */
    antiphon?: { stats(): Stats; trace(seconds: number): Promise<Trace> };
  }
}

const root = document.getElementById("app");
if (root === null) throw new Error("index.html has no #app");

const room = /^\/r\/([A-Za-z0-9_-]{16,64})$/.exec(location.pathname)?.[1];
if (room === undefined) mountHome(root);
else {
  const { settings, automation } = loadSettings(location.search);
  const studio = new Studio(room, settings, automation);
  window.antiphon = { stats: () => studio.automationStats(), trace: (seconds) => studio.trace(seconds) };
  mount(root, studio);
  if (automation.autojoin) void studio.join({ microphone: true });
}
