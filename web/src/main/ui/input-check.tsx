/** Your own level, on a scale and in words. */

import { createEffect, createMemo, createSignal } from "solid-js";
import { announce } from "./announcer";
import { type HeardState, Hearing } from "./ballistics";
import { gainToDb } from "./decibel";
import { isHeard } from "./diagnosis";
import { formatDbfs, UNKNOWN } from "./format";
import { LevelNews, levelWords } from "./level-words";
import { Meter, MeterScale } from "./meter";
import { useView } from "./view";

const FIGURE_INTERVAL_MS = 500;

/** @param props.spoken whether changes are also spoken: in the lobby, not while playing */
export function InputCheck(props: { spoken: boolean }) {
  const view = useView();
  const hearing = new Hearing();
  const [heard, setHeard] = createSignal<HeardState>("quiet");
  /** The sound comes as far as here, and no further. */
  const muted = createMemo(() => !isHeard(view.state()));
  const level = createMemo(() => (heard() === "heard" && muted() ? "coming" : heard()));
  const [peakDb, setPeakDb] = createSignal<number | null>(null);
  const news = new LevelNews();
  createEffect(() => {
    const words = news.add(level());
    if (props.spoken && words !== null) announce(words);
  });
  let loudest = 0;
  let figureAtMs = 0;

  view.onFrame((levels, timeMs) => {
    const peak = Math.max(0, ...levels.input);
    setHeard(hearing.update(peak, timeMs));
    loudest = Math.max(loudest, peak);
    if (timeMs - figureAtMs < FIGURE_INTERVAL_MS) return;
    setPeakDb(levels.input.length > 0 ? gainToDb(loudest) : null);
    loudest = 0;
    figureAtMs = timeMs;
  });

  return (
    <div class="input-check">
      <Meter read={(levels) => levels.input} channels={view.state().settings.channels} dimmed={muted()} />
      <MeterScale />
      <div class="input-words">
        <p class={`input-state ${level()}`}>{levelWords[level()]}</p>
        <p class="figure-small">Peak {peakDb() === null ? UNKNOWN : formatDbfs(peakDb()!)}</p>
      </div>
    </div>
  );
}
