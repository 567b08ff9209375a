/** How players were mixed, for when they come back. */

import type { Participant } from "./model";
import { DEFAULT_NAME } from "./remembered";
import { readBuffer } from "./settings";
import { type Keeper, keep, readEntries, renew } from "./storage";

const KEY = "antiphon.mixes";
const MOST_NAMES = 64;
/** +12 dB. */
const MAX_GAIN = 4;

export type Mix = Pick<Participant, "gain" | "pan" | "muted" | "solo" | "buffer" | "pin">;

/** What outlives the page: a solo would silence the others unawares, and which path is best is a matter of the day. */
type KeptMix = Pick<Mix, "gain" | "pan" | "muted" | "buffer">;

type Who = Pick<Participant, "id" | "name">;

/** By identity, which a page that is loaded again has not; then by name, unless it is that of who has none. */
export class Mixes {
  readonly #byId = new Map<string, Mix>();
  /** And whose it was; of an earlier page's nobody knows. Oldest first. */
  readonly #byName: Map<string, { id: string | null; mix: Partial<Mix> & KeptMix }>;

  /** `asked`: the buffer that the page's address asks for, which counts more than what an earlier page kept. */
  constructor(
    private readonly asked: Mix["buffer"] | null = null,
    private readonly keeper?: Keeper,
  ) {
    const kept = Array.from(readMixes(keeper), ([name, mix]) => [name, { id: null, mix }] as const);
    this.#byName = new Map(kept);
  }

  /** `here`: the names of the others who are there, so that who comes second under a name is not taken for the first. */
  of({ id, name }: Who, here: readonly string[]): Partial<Mix> | undefined {
    const known = here.includes(name) ? undefined : this.#byName.get(name);
    const isEarlier = known?.id === null && this.asked !== null;
    return this.#byId.get(id) ?? (isEarlier ? { ...known.mix, buffer: this.asked } : known?.mix);
  }

  keep({ id, name }: Who, { gain, pan, muted, solo, buffer, pin }: Mix): void {
    const mix = { gain, pan, muted, solo, buffer, pin };
    this.#byId.set(id, mix);
    if (name === DEFAULT_NAME) return;
    renew(this.#byName, name, { id, mix }, MOST_NAMES);
    // Beside what another page has kept meanwhile.
    const kept = readMixes(this.keeper);
    renew(kept, name, { gain, pan, muted, buffer }, MOST_NAMES);
    keep(KEY, Array.from(kept), this.keeper);
  }

  /** `here` as of `of`. What is remembered of another under that name stays. */
  rename({ id, name }: Who, here: readonly string[]): void {
    const mix = this.#byId.get(id);
    const known = this.#byName.get(name);
    const isAnothers = here.includes(name) || (known !== undefined && known.id !== id);
    if (mix !== undefined && !isAnothers) this.keep({ id, name }, mix);
  }

  /** The buffer of all was changed. */
  setBuffer(buffer: Mix["buffer"]): void {
    const named = Array.from(this.#byName.values(), ({ mix }) => mix);
    const kept = readMixes(this.keeper);
    for (const mix of [...this.#byId.values(), ...named, ...kept.values()]) mix.buffer = buffer;
    keep(KEY, Array.from(kept), this.keeper);
  }
}

/** Oldest first. */
function readMixes(keeper?: Keeper): Map<string, KeptMix> {
  const read = readEntries(KEY, keeper).flatMap(([name, value]): [string, KeptMix][] => {
    const mix = readMix(value);
    return mix === null ? [] : [[name, mix]];
  });
  return new Map(read.slice(-MOST_NAMES));
}

function readMix(value: unknown): KeptMix | null {
  const { gain, pan, muted, buffer: chosen } = Object(value) as Record<keyof KeptMix, unknown>;
  const buffer = readBuffer(chosen);
  if (!isWithin(gain, 0, MAX_GAIN) || !isWithin(pan, -1, 1)) return null;
  return typeof muted === "boolean" && buffer !== null ? { gain, pan, muted, buffer } : null;
}

function isWithin(value: unknown, least: number, most: number): value is number {
  return typeof value === "number" && value >= least && value <= most;
}
