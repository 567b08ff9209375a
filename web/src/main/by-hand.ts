/** What `antiphon open` does, for those who have the browser only: the same sound buffer (crates/cli/src/open.rs), by hand. */

import { launchLink } from "./launcher";

/** `what` the command is, as in "Copy command". */
export interface ByHand {
  remedy: string;
  command: string;
  what: "command" | "name";
}

/** What there is a name for on each system; the last, whatever brand it is. */
const PRODUCTS = [
  { brand: "Microsoft Edge", linux: "microsoft-edge", mac: "Microsoft Edge", windows: "msedge" },
  { brand: "Brave", linux: "brave-browser", mac: "Brave Browser", windows: "brave" },
  { brand: "Google Chrome", linux: "google-chrome", mac: "Google Chrome", windows: "chrome" },
  { brand: "Chromium", linux: "chromium", mac: "Chromium", windows: "chrome" },
] as const;

/** For a browser that `userAgent` and `brands` say is Firefox, or Chrome or its kin. @param brands of `navigator.userAgentData` */
export function startByHand(link: string, userAgent: string, brands: readonly string[]): ByHand {
  if (userAgent.includes("Firefox/"))
    return {
      remedy: `Enter about:config as an address, and there add this as a number: 128. It holds for all pages. Then start Firefox anew, and open ${launchLink(link)} in a new tab once, so that this page knows.`,
      command: "media.cubeb_latency_mtg_frames",
      what: "name",
    };
  const product = PRODUCTS.find(({ brand }) => brands.includes(brand)) ?? PRODUCTS[2];
  // Without a profile of its own, a browser that runs already would take the link, and none of the settings.
  const flags = (home: string) =>
    `--user-data-dir="${home}antiphon-browser" --audio-buffer-size=128 --no-first-run --app="${launchLink(link)}"`;
  const starts = `It starts ${product.brand} with a profile of its own, which asks for the microphone again.`;
  if (userAgent.includes("Windows"))
    return {
      remedy: `Press the Windows key and R, and enter this. ${starts}`,
      command: `${product.windows} ${flags("%USERPROFILE%\\")}`,
      what: "command",
    };
  const remedy = `Enter this in a terminal. ${starts}`;
  if (userAgent.includes("Mac OS"))
    return { remedy, command: `open -na "${product.mac}" --args ${flags("$HOME/")}`, what: "command" };
  return { remedy, command: `PULSE_LATENCY_MSEC=5 ${product.linux} ${flags("$HOME/")}`, what: "command" };
}
