import type { Port } from "../../src/shared/records";

/** Two ends of a port, without the time that messages take. */
export function portPair(): [Port, Port] {
  const ends: Port[] = [0, 1].map((n) => ({
    postMessage: (data) => ends[1 - n].onmessage?.({ data }),
    onmessage: null,
  }));
  return [ends[0], ends[1]];
}
