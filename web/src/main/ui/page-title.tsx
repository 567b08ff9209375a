/** The heading of a screen. It takes the focus when the screen changes, so that a screen reader reads on from there. */

import { type JSX, onMount } from "solid-js";

let firstScreen = true;

export function PageTitle(props: { children: JSX.Element; class?: string }) {
  let heading!: HTMLHeadingElement;
  onMount(() => {
    if (!firstScreen) heading.focus({ preventScroll: true });
    firstScreen = false;
  });
  return (
    <h1 ref={heading} tabindex="-1" class={props.class}>
      {props.children}
    </h1>
  );
}
