import { expect, it } from "vitest";
import type { Participant } from "../../src/main/model";
import { Company } from "../../src/main/ui/company";

const bob = { id: "2", name: "Bob", connection: "connecting", mutedByOwner: false, isOwner: false };
const here = (...changes: Partial<Participant>[]) =>
  changes.map((change) => ({ ...bob, ...change }) as Participant);

it("says once that somebody has come, and that they are connected only if that took long", () => {
  for (const [afterMs, connected] of [
    [9_000, []],
    [11_000, ["Bob is connected."]],
  ] as const) {
    const company = new Company();
    expect(company.changes(0, [], here({}))).toEqual(["Bob joined."]);
    expect(company.changes(afterMs, here({}), here({ connection: "connected" }))).toEqual(connected);
  }
});

it("says that a connection is interrupted, and that it is there again, however soon", () => {
  const company = new Company();
  company.changes(0, [], here({}));
  const [before, between] = [here({ connection: "connected" }), here({ connection: "interrupted" })];
  expect(company.changes(1_000, before, between)).toEqual(["The connection to Bob is interrupted."]);
  expect(company.changes(2_000, between, before)).toEqual(["Bob is connected."]);
  expect(company.changes(3_000, before, here({ connection: "failed" }))).toEqual(["No connection to Bob."]);
});

it("says who leaves, is muted for everyone, and owns the room", () => {
  const company = new Company();
  expect(company.changes(0, here({}), here({ mutedByOwner: true, isOwner: true }))).toEqual([
    "The owner muted Bob for everyone.",
    "Bob is the room's owner now.",
  ]);
  expect(company.changes(0, here({ mutedByOwner: true }), here({}))).toEqual([
    "The owner unmuted Bob for everyone.",
  ]);
  expect(company.changes(0, here({}), [])).toEqual(["Bob left."]);
});
