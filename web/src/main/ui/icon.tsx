/** Lucide icons, inlined so that they take the text's colour. Always beside words, hence hidden from screen readers. */

import arrowRight from "lucide-static/icons/arrow-right.svg?raw";
import check from "lucide-static/icons/check.svg?raw";
import circleAlert from "lucide-static/icons/circle-alert.svg?raw";
import copy from "lucide-static/icons/copy.svg?raw";
import headphones from "lucide-static/icons/headphones.svg?raw";
import info from "lucide-static/icons/info.svg?raw";
import keyboard from "lucide-static/icons/keyboard.svg?raw";
import lock from "lucide-static/icons/lock.svg?raw";
import logOut from "lucide-static/icons/log-out.svg?raw";
import mic from "lucide-static/icons/mic.svg?raw";
import micOff from "lucide-static/icons/mic-off.svg?raw";
import repeat from "lucide-static/icons/repeat-2.svg?raw";
import rotate from "lucide-static/icons/rotate-ccw.svg?raw";
import share from "lucide-static/icons/share-2.svg?raw";
import triangleAlert from "lucide-static/icons/triangle-alert.svg?raw";
import x from "lucide-static/icons/x.svg?raw";

const icons = {
  "arrow-right": arrowRight,
  check,
  "circle-alert": circleAlert,
  copy,
  headphones,
  info,
  keyboard,
  lock,
  "log-out": logOut,
  mic,
  "mic-off": micOff,
  repeat,
  rotate,
  share,
  "triangle-alert": triangleAlert,
  x,
};

export type IconName = keyof typeof icons;

export function Icon(props: { name: IconName }) {
  return <span class="icon" aria-hidden="true" innerHTML={icons[props.name]} />;
}
