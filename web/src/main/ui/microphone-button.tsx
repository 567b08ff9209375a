/** The button that asks for the microphone, in the lobby and in the room. */

import { createMemo } from "solid-js";
import { askForMicrophone, microphoneAction } from "./ask-for-microphone";
import { Icon } from "./icon";
import { useView } from "./view";

/** @param props.large where it is the next thing to do */
export function MicrophoneButton(props: { large: boolean }) {
  const view = useView();
  const microphone = createMemo(() => view.state().microphone);
  return (
    <button
      type="button"
      class="button"
      classList={{ "primary large": props.large }}
      aria-disabled={microphone() === "asking"}
      onClick={() => askForMicrophone(view)}
    >
      <Icon name="mic" />
      {microphoneAction(view.state())}
    </button>
  );
}
