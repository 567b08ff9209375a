import { expect, it } from "vitest";
import { nameOf } from "../../src/main/settings";
import { vectors } from "./golden";

it("leaves something of each name that the server takes, and nothing of one that it refuses", () => {
  const { seen, unseen } = vectors("names.json");
  const escaped = (names: string[]) => names.map((name) => escape(name));
  expect(escaped(seen.filter((name: string) => nameOf(name) === ""))).toEqual([]);
  expect(escaped(unseen.filter((name: string) => nameOf(name) !== ""))).toEqual([]);
});
