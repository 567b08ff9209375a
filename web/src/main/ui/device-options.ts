import type { Device } from "../model";

/**
 * The system's default first; a device without a label (not yet allowed) by its place. One that was chosen and is not listed stands last, so that a
 * list never shows another than is asked for.
 */
export function deviceOptions(
  devices: readonly Device[],
  chosen: string,
  systemDefault: string,
): [id: string, label: string][] {
  const named = devices
    .filter(({ id }) => id !== "")
    .map(({ id, label }, n): [string, string] => [id, label || `Device ${n + 1}`]);
  const isListed = chosen === "" || named.some(([id]) => id === chosen);
  // Before a page may use any, browsers list none.
  const absent = named.length === 0 ? "The one you chose last" : "The one you chose last, which is not there";
  return [["", systemDefault], ...named, ...(isListed ? [] : [[chosen, absent] as [string, string]])];
}
