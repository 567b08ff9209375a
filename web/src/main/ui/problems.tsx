/** What is wrong and what to do about it: in the page's flow, never over the controls. */

import { type Accessor, createMemo, For, Show } from "solid-js";
import { isDismissable, type Problem } from "../model";
import { CopyButton } from "./copy-button";
import { Icon } from "./icon";
import { createIds, createRow, useView } from "./view";

const severityWords = { error: "Problem", warning: "Warning", advice: "Advice" } as const;
const severityIcons = { error: "circle-alert", warning: "triangle-alert", advice: "info" } as const;

/**
 * All problems of one severity. The live region stays in the page while empty, for a screen reader announces only what
 * enters a region it knew.
 */
export function Problems(props: { severity: Problem["severity"] }) {
  const view = useView();
  const problems = createMemo(() => view.problems().filter((p) => p.severity === props.severity));
  const ids = createIds(problems);
  return (
    <div class="problems" role={props.severity === "error" ? "alert" : "status"} aria-atomic="false">
      <For each={ids()}>{(id) => <ProblemCard problem={createRow(problems, id)} />}</For>
    </div>
  );
}

function Command(props: { text: string; what: string }) {
  return (
    <div class="command">
      <pre>{props.text}</pre>
      <CopyButton text={props.text} what={props.what} />
    </div>
  );
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
        <Show when={problem().how} fallback={<p>{problem().remedy}</p>}>
          {(how) => (
            <details class="disclosure" aria-live="off">
              <summary>How</summary>
              <p>{problem().remedy}</p>
              <For each={how()}>
                {(way) => (
                  <>
                    <p>{way.remedy}</p>
                    <Command text={way.command} what={way.what} />
                  </>
                )}
              </For>
            </details>
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
      <Show when={isDismissable(problem())}>
        <button
          type="button"
          class="button quiet square"
          aria-live="off"
          aria-label={`Dismiss: ${problem().title}`}
          onClick={() => view.dismiss(problem().id)}
        >
          <Icon name="x" />
        </button>
      </Show>
    </div>
  );
}
