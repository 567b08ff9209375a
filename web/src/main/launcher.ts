/** Whether this browser was started for low latency: whoever does that opens links with a mark (crates/cli/src/open.rs), in a profile that is used for nothing else, or, in Firefox, once after it was set up by hand. */

import { keepText, readText } from "./storage";

const MARK = "#launched";
const KEY = "antiphon.launched";

/** The link that such a browser is to open. */
export const launchLink = (link: string): string => link + MARK;

/** Takes the mark off the address, where it would be passed on, and remembers it. */
export function wasLaunched(): boolean {
  const isMarked = location.hash === MARK;
  if (isMarked) history.replaceState(null, "", location.pathname + location.search);
  if (isMarked) keepText(KEY, "1");
  return isMarked || readText(KEY) !== null;
}
