/** Who comes and goes, and what changes for those who are there: for those who do not see it. */

import type { Participant } from "../model";

/** Whoever has just joined is connected within so long: one sentence is enough for both. */
const ARRIVAL_MS = 10_000;

export class Company {
  /** When they joined. */
  readonly #arrivals = new Map<string, number>();

  /** One sentence for each change, in the room. */
  changes(timeMs: number, before: readonly Participant[], now: readonly Participant[]): string[] {
    return [
      ...now.flatMap((participant) => {
        const was = before.find(({ id }) => id === participant.id);
        if (was !== undefined) return this.#changesOf(timeMs, was, participant);
        this.#arrivals.set(participant.id, timeMs);
        return [`${participant.name} joined.`];
      }),
      ...before.flatMap(({ id, name }) => {
        if (now.some((participant) => participant.id === id)) return [];
        this.#arrivals.delete(id);
        return [`${name} left.`];
      }),
    ];
  }

  #changesOf(timeMs: number, was: Participant, { id, name, ...is }: Participant): string[] {
    const sentences: string[] = [];
    if (was.connection !== is.connection) {
      const arrivedMs = this.#arrivals.get(id) ?? Number.NEGATIVE_INFINITY;
      const isArriving = was.connection === "connecting" && timeMs - arrivedMs < ARRIVAL_MS;
      if (is.connection === "connected" && !isArriving) sentences.push(`${name} is connected.`);
      if (is.connection === "interrupted") sentences.push(`The connection to ${name} is interrupted.`);
      if (is.connection === "failed") sentences.push(`No connection to ${name}.`);
    }
    if (was.mutedByOwner !== is.mutedByOwner)
      sentences.push(`The owner ${is.mutedByOwner ? "muted" : "unmuted"} ${name} for everyone.`);
    if (is.isOwner && !was.isOwner) sentences.push(`${name} is the room's owner now.`);
    return sentences;
  }
}
