/** What had the focus may vanish (a dismissed problem, a person who leaves): the focus then stays near by. */

import { onCleanup } from "solid-js";

/** Without it the focus falls back to the top of the page, and a keyboard user starts over. */
export function keepFocus(root: HTMLElement): void {
  let path: Element[] = [];
  const onFocusIn = (event: FocusEvent) => {
    path = event.composedPath().filter((target) => target instanceof Element);
  };
  const observer = new MutationObserver(() => {
    const [focused] = path;
    if (!focused || focused.isConnected || document.activeElement !== document.body) return;
    const near = path.find((element) => element.isConnected && element.matches("section, main"));
    if (!(near instanceof HTMLElement)) return;
    near.tabIndex = -1;
    near.focus({ preventScroll: true });
  });
  root.addEventListener("focusin", onFocusIn);
  observer.observe(root, { childList: true, subtree: true });
  onCleanup(() => {
    root.removeEventListener("focusin", onFocusIn);
    observer.disconnect();
  });
}
