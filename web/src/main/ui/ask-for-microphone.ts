/** To ask for the microphone, and what that is called. */

import type { StudioState } from "../model";
import type { View } from "./view";

type Asked = Pick<StudioState, "microphone" | "microphoneAllowed">;

/** Other texts name the last. */
export const microphoneAction = ({ microphone, microphoneAllowed }: Asked) =>
  microphone === "unasked"
    ? microphoneAllowed
      ? "Use my microphone"
      : "Allow microphone"
    : microphone === "asking"
      ? "Waiting for you…"
      : "Try the microphone again";

/** Not while the browser asks: the answer to that would count no more. */
export function askForMicrophone({
  state,
  studio,
  attempt,
}: Pick<View, "state" | "studio" | "attempt">): void {
  if (state().microphone !== "asking") void attempt(() => studio.enableMicrophone());
}
