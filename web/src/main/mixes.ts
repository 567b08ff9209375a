/** How players were mixed, for when they come back: within the page's life. */

import type { Participant } from "./model";
import { DEFAULT_NAME } from "./remembered";

export type Mix = Pick<Participant, "gain" | "pan" | "muted" | "solo" | "buffer" | "pin">;

type Who = Pick<Participant, "id" | "name">;

/** By identity, which a page that is loaded again has not; then by name, unless it is that of who has none. */
export class Mixes {
  readonly #byId = new Map<string, Mix>();
  /** And whose it was. */
  readonly #byName = new Map<string, { id: string; mix: Mix }>();

  /** `here`: the names of the others who are there, so that who comes second under a name is not taken for the first. */
  of({ id, name }: Who, here: readonly string[]): Mix | undefined {
    return this.#byId.get(id) ?? (here.includes(name) ? undefined : this.#byName.get(name)?.mix);
  }

  keep({ id, name }: Who, { gain, pan, muted, solo, buffer, pin }: Mix): void {
    const mix = { gain, pan, muted, solo, buffer, pin };
    this.#byId.set(id, mix);
    if (name !== DEFAULT_NAME) this.#byName.set(name, { id, mix });
  }

  /** `here` as of `of`. What is remembered of another under that name stays. */
  rename({ id, name }: Who, here: readonly string[]): void {
    const mix = this.#byId.get(id);
    const isAnothers = here.includes(name) || (this.#byName.get(name)?.id ?? id) !== id;
    if (mix !== undefined && !isAnothers) this.keep({ id, name }, mix);
  }

  /** The buffer of all was changed. */
  setBuffer(buffer: Mix["buffer"]): void {
    const named = Array.from(this.#byName.values(), ({ mix }) => mix);
    for (const mix of [...this.#byId.values(), ...named]) mix.buffer = buffer;
  }
}
