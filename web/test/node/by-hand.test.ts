import { expect, it } from "vitest";
import { startByHand } from "../../src/main/by-hand";

const link = "https://music.example.org/r/k3J9x0aQbW2mT7uYpL5sNg";
const chrome = ["Not A;Brand", "Chromium", "Google Chrome"];

it.each([
  [
    "X11; Linux x86_64",
    chrome,
    'PULSE_LATENCY_MSEC=5 google-chrome --user-data-dir="$HOME/antiphon-browser"',
  ],
  ["X11; Linux x86_64", ["Chromium"], "PULSE_LATENCY_MSEC=5 chromium --user-data-dir"],
  [
    "Macintosh; Intel Mac OS X 10_15_7",
    ["Chromium", "Brave"],
    'open -na "Brave Browser" --args --user-data-dir',
  ],
  [
    "Windows NT 10.0; Win64",
    ["Microsoft Edge", "Chromium"],
    'msedge --user-data-dir="%USERPROFILE%\\antiphon-browser"',
  ],
  // Where the browser does not tell its brand.
  ["Windows NT 10.0; Win64", [], "chrome --user-data-dir"],
])("starts the browser that one has, on %s", (system, brands, beginning) => {
  const { command } = startByHand(link, `Mozilla/5.0 (${system})`, brands);
  expect(command.slice(0, beginning.length)).toBe(beginning);
  expect(command).toContain(` --audio-buffer-size=128 `);
  // Some shells take a # for a pattern.
  expect(command.endsWith(` --app="${link}#launched"`)).toBe(true);
});

it("tells those who have Firefox what to set in it, and how the page learns of it", () => {
  const { command, what, remedy } = startByHand(link, "Mozilla/5.0 (X11; Linux x86_64) Firefox/153.0", []);
  expect(command).toBe("media.cubeb_latency_mtg_frames");
  expect(what).toBe("name");
  expect(remedy).toContain("about:config");
  expect(remedy).toContain(`${link}#launched`);
});
