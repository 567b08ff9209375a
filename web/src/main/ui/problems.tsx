/** What is wrong and what to do about it: in the page's flow, never over the controls. */

import { type Accessor, createMemo, For, Show } from "solid-js";
import type { Problem } from "../model";
import { CopyButton } from "./copy-button";
import { Icon } from "./icon";
import { createIds, createRow, useView } from "./view";

const severityWords = { error: "Problem", warning: "Warning", advice: "Advice" } as const;
const severityIcons = { error: "circle-alert", warning: "triangle-alert", advice: "info" } as const;

/*
 * The live regions stay in the page while empty, for a screen reader announces only what enters a region it knew.
 */

export function Problems() {
  return (
    <>
      <Errors />
      <Advice />
    </>
  );
}

export function Errors() {
  const view = useView();
  const errors = createMemo(() => view.problems().filter((p) => p.severity === "error"));
  return (
    <div class="problems" role="alert" aria-atomic="false">
      <ProblemList problems={errors} />
    </div>
  );
}

/** Warnings, too: all that does not stop one from playing. */
export function Advice() {
  const view = useView();
  const others = createMemo(() => view.problems().filter((p) => p.severity !== "error"));
  return (
    <div class="problems advice" role="status" aria-atomic="false">
      <ProblemList problems={others} />
    </div>
  );
}

function ProblemList(props: { problems: Accessor<Problem[]> }) {
  const ids = createIds(() => props.problems());
  return <For each={ids()}>{(id) => <ProblemCard problem={createRow(() => props.problems(), id)} />}</For>;
}

function ProblemCard(props: { problem: Accessor<Problem> }) {
  const view = useView();
  const problem = () => props.problem();
  return (
    <div class={`problem ${problem().severity}`} data-problem={problem().id}>
      <Icon name={severityIcons[problem().severity]} />
      <div class="problem-text">
        <p class="problem-title">
          <span class="visually-hidden">{severityWords[problem().severity]}: </span>
          {problem().title}
        </p>
        <p>{problem().remedy}</p>
        <Show when={problem().command}>
          {(command) => (
            <div class="command">
              <pre>{command()}</pre>
              <CopyButton text={command()} what="command" />
            </div>
          )}
        </Show>
        <Show when={problem().action}>
          {(action) => (
            <button type="button" class="button" onClick={() => action().run()}>
              {action().label}
            </button>
          )}
        </Show>
      </div>
      <button
        type="button"
        class="button quiet square"
        aria-label={`Dismiss: ${problem().title}`}
        onClick={() => view.dismiss(problem().id)}
      >
        <Icon name="x" />
      </button>
    </div>
  );
}
