/** Your own level, on a scale and in words. */

import { createEffect, createMemo, createSignal } from "solid-js";
import { announce } from "./announcer";
import { type HeardState, Hearing } from "./ballistics";
import { isHeard } from "./diagnosis";
import { LevelNews, levelState, levelWords } from "./level-words";
import { Meter, MeterScale, PeakWords } from "./meter";
import { useView } from "./view";

/** @param props.spoken whether changes are also spoken: in the lobby, not while playing */
export function InputCheck(props: { spoken: boolean }) {
  const view = useView();
  const hearing = new Hearing();
  const [heard, setHeard] = createSignal<HeardState>("quiet");
  /** The sound comes as far as here, and no further. */
  const muted = createMemo(() => !isHeard(view.state()));
  const level = createMemo(() => levelState(heard(), view.state()));
  const news = new LevelNews();
  createEffect(() => {
    const words = news.add(level());
    if (props.spoken && words !== null) announce(words);
  });
  view.onFrame((levels, timeMs) => {
    if (view.state().captures) setHeard(hearing.update(Math.max(0, ...levels.input), timeMs));
  });

  return (
    <div class="input-check">
      <Meter read={(levels) => levels.input} channels={view.state().settings.channels} dimmed={muted()} />
      <MeterScale />
      <div class="input-words">
        <p class={`input-state ${level()}`}>{levelWords[level()]}</p>
        <PeakWords read={(levels) => levels.input} class="figure-small" />
      </div>
    </div>
  );
}
