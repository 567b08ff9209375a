/** What the browser keeps between visits, or for a tab: perhaps nothing, and perhaps not what this page wrote. */

/** It may throw: it does where site data is blocked. */
export type Keeper = () => Pick<Storage, "getItem" | "setItem">;

/** Across visits. */
const lasting: Keeper = () => localStorage;
/** For as long as the tab is there, through every reload of the page. */
export const ofTab: Keeper = () => sessionStorage;

/** Null if nothing is kept. */
export function readText(key: string, keeper = lasting): string | null {
  try {
    return keeper().getItem(key);
  } catch {
    return null;
  }
}

/** In a browser that keeps nothing it holds for this visit. */
export function keepText(key: string, text: string, keeper = lasting): void {
  try {
    keeper().setItem(key, text);
  } catch {
    // No room, or blocked.
  }
}

/** Whatever it is; null if nothing is kept, or nothing that can be read. */
export function readKept(key: string, keeper = lasting): unknown {
  try {
    return JSON.parse(readText(key, keeper) ?? "null");
  } catch {
    return null;
  }
}

/** Of a list; of anything else, none. */
export function readList(key: string, keeper = lasting): unknown[] {
  const kept = readKept(key, keeper);
  return Array.isArray(kept) ? kept : [];
}

/** Of a list of what is kept by a name. */
export function readEntries(key: string, keeper = lasting): [name: string, value: unknown][] {
  return readList(key, keeper).filter(
    (entry): entry is [string, unknown] =>
      Array.isArray(entry) && entry.length === 2 && typeof entry[0] === "string",
  );
}

export function keep(key: string, value: unknown, keeper = lasting): void {
  keepText(key, JSON.stringify(value), keeper);
}

/** Makes it the newest in the map; of more than `most`, the oldest goes. */
export function renew<T>(map: Map<string, T>, name: string, value: T, most: number): void {
  map.delete(name);
  map.set(name, value);
  const [oldest] = map.keys();
  if (map.size > most && oldest !== undefined) map.delete(oldest);
}
