import { expect, it } from "vitest";
import { readAudioHeader, writeOpus, writeSequence } from "../../src/shared/wire";
import { Numbering } from "../../src/worker/numbering";

function through(numbering: Numbering, sequence: number): number {
  const { datagram } = writeOpus(2, 240, 0n, 10);
  writeSequence(datagram, sequence);
  numbering.apply(datagram);
  return readAudioHeader(datagram).sequence;
}

it("leaves numbers as they are, and with them what was lost or overtaken", () => {
  const numbering = new Numbering();
  numbering.interrupt();
  for (const sequence of [7, 8, 11, 9, 12]) expect(through(numbering, sequence)).toBe(sequence);
});

it("goes on by one after an interruption, whatever passed meanwhile", () => {
  const numbering = new Numbering();
  const seen = [4294967294, 4294967295].map((sequence) => through(numbering, sequence));
  numbering.interrupt();
  seen.push(...[30_000, 30_001, 30_003, 30_002].map((sequence) => through(numbering, sequence)));
  numbering.interrupt();
  seen.push(through(numbering, 5));
  expect(seen).toEqual([4294967294, 4294967295, 0, 1, 3, 2, 4]);
});

it("gives what the first one after an interruption has overtaken a number of its own", () => {
  const numbering = new Numbering();
  const seen = [7, 8].map((sequence) => through(numbering, sequence));
  numbering.interrupt();
  seen.push(...[31, 30, 32, 34, 33].map((sequence) => through(numbering, sequence)));
  expect(seen).toEqual([7, 8, 9, 10, 11, 13, 12]);
});

it("forgets what was numbered last where nobody took it, and goes on by one", () => {
  const numbering = new Numbering();
  const seen = [7, 8].map((sequence) => through(numbering, sequence));
  for (const sequence of [9, 10, 11]) {
    through(numbering, sequence);
    numbering.withdraw();
  }
  seen.push(...[12, 14].map((sequence) => through(numbering, sequence)));
  expect(seen).toEqual([7, 8, 9, 11]);
});

it("leaves numbers alone that begin anew or go round, long after an interruption", () => {
  const numbering = new Numbering();
  through(numbering, 9);
  numbering.interrupt();
  for (let sequence = 10; sequence <= 5_000; sequence++) through(numbering, sequence);
  for (let sequence = 0; sequence < 3_000; sequence++) expect(through(numbering, sequence)).toBe(sequence);

  const going = new Numbering();
  through(going, 9);
  going.interrupt();
  for (const sequence of [10, 2 ** 30, 2 ** 31 - 1, 3 * 2 ** 30, 2 ** 32 - 1, 2 ** 30])
    expect(through(going, sequence)).toBe(sequence);
  expect([2 ** 30 + 1, 2 ** 30 + 3].map((sequence) => through(going, sequence))).toEqual([
    2 ** 30 + 1,
    2 ** 30 + 3,
  ]);
});
