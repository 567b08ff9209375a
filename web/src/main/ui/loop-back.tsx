/** The loop-back measurement of one's own sound devices, in the lobby. */

import { createMemo, createUniqueId, Match, Show, Switch } from "solid-js";
import { formatMs, msFigure } from "./format";
import { Icon } from "./icon";
import { useView } from "./view";

export function LoopBack() {
  const view = useView();
  const calibration = createMemo(() => view.state().calibration);
  const running = () => calibration().phase === "running";
  const id = createUniqueId();
  return (
    <details class="disclosure">
      <summary>Measure my sound card</summary>
      <p class="hint" id={id}>
        The page knows the delay of your sound card only by the browser's word. To measure it, connect output
        and input with a cable, or turn the loudspeaker up and hold the microphone to it (each metre of air
        adds 3 ms). Take headphones off: six short hisses follow.
      </p>
      <div class="loop-back">
        <button
          type="button"
          class="button"
          aria-disabled={running()}
          aria-describedby={id}
          onClick={() => !running() && void view.attempt(() => view.studio.calibrate())}
        >
          <Icon name="repeat" />
          {running() ? "Measuring…" : calibration().phase === "done" ? "Measure again" : "Measure"}
        </button>
        <Show when={calibration().phase === "done"}>
          <button type="button" class="button quiet" onClick={() => view.studio.forgetCalibration()}>
            Forget it
          </button>
        </Show>
      </div>
      <Show when={running()}>
        <progress max="1" value={calibration().doneShare} aria-label="Measuring the sound card" />
      </Show>
      <p role="status">
        <Switch>
          <Match when={calibration().phase === "failed"}>{calibration().problem}</Match>
          <Match when={calibration().phase === "done"}>
            Measured: {formatMs(calibration().roundTripMs)} ± {msFigure(calibration().spreadMs)} ms out and in
            again. It is used from now on instead of the browser's word, for these devices and settings. How
            much of it is output and how much input no loop can tell.
          </Match>
        </Switch>
      </p>
    </details>
  );
}
