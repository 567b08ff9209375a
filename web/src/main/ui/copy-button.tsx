/** Copies a text, and says whether that worked. */

import { createSignal, onCleanup } from "solid-js";
import { announce } from "./announcer";
import { Icon } from "./icon";

const SHOWN_MS = 2_500;

interface Props {
  text: string;
  /** What is copied, as in "Copy link". */
  what: string;
  primary?: boolean;
  /** Called when the browser refuses the clipboard, to select the text, and give it the focus, for copying by hand. */
  onRefused?: () => void;
}

export function CopyButton(props: Props) {
  const [outcome, setOutcome] = createSignal<"copied" | "refused" | null>(null);
  let timer: number | undefined;
  onCleanup(() => clearTimeout(timer));

  const copy = async () => {
    const copied = await writeClipboard(props.text);
    if (!copied) props.onRefused?.();
    setOutcome(copied ? "copied" : "refused");
    announce(copied ? `${capitalise(props.what)} copied.` : "Select the text and copy it by hand.");
    clearTimeout(timer);
    timer = window.setTimeout(() => setOutcome(null), SHOWN_MS);
  };

  return (
    <button type="button" class="button" classList={{ primary: props.primary ?? false }} onClick={copy}>
      <Icon name={outcome() === "copied" ? "check" : "copy"} />
      {outcome() === "copied" ? "Copied" : outcome() === "refused" ? "Copy by hand" : `Copy ${props.what}`}
    </button>
  );
}

async function writeClipboard(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text); // absent on an insecure page
    return true;
  } catch {
    return false;
  }
}

const capitalise = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);
