/** What is worth a word only once it has lasted. */

import { type Accessor, createEffect, createSignal, onCleanup } from "solid-js";

/** Whether `is` has been true for so long. */
export function createLasting(is: Accessor<boolean>, ms: number): Accessor<boolean> {
  const [isLong, setLong] = createSignal(false);
  createEffect(() => {
    if (!is()) return;
    const timer = setTimeout(setLong, ms, true);
    onCleanup(() => {
      clearTimeout(timer);
      setLong(false);
    });
  });
  return isLong;
}
