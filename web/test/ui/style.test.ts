import { readFileSync } from "node:fs";
import { expect, it } from "vitest";

const css = readFileSync(new URL("../../src/main/ui/style.css", import.meta.url), "utf8");

/** Of the first rule of that selector. */
function zIndex(selector: string): number {
  const from = css.indexOf(`\n${selector} {`);
  return Number(/z-index: (\d+)/.exec(css.slice(from, css.indexOf("}", from)))?.[1]);
}

it("lets the user's own colours show what is pressed, as strongly as the page's", () => {
  const coloured = Array.from(css.matchAll(/^(\.toggle\S*\[aria-pressed="true"\]) \{/gm), ([, rule]) => rule);
  const forced = css.slice(css.indexOf("@media (forced-colors: active)"));
  expect(coloured).toHaveLength(3);
  for (const selector of coloured) expect(forced).toContain(`  ${selector}`);
});

it("shows the link that skips the bar above it, also where that is pinned", () => {
  expect(zIndex(".bar.pinned")).toBeGreaterThan(0);
  expect(zIndex(".skip")).toBeGreaterThan(zIndex(".bar.pinned"));
});
