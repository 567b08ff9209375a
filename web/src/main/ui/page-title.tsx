/** The heading of a screen. When the screen changes, it takes the focus, so that a screen reader reads on from there, and is in sight. */

import { type JSX, onMount } from "solid-js";

let firstScreen = true;

export function PageTitle(props: { children: JSX.Element; class?: string }) {
  let heading!: HTMLHeadingElement;
  onMount(() => {
    if (!firstScreen) {
      heading.focus({ preventScroll: true });
      scrollTo(0, 0); // where the button was that led here
    }
    firstScreen = false;
  });
  return (
    <h1 ref={heading} tabindex="-1" class={props.class}>
      {props.children}
    </h1>
  );
}
