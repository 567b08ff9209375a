import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { EMPTY, RecordRing } from "../src/index.js";

const readme = readFileSync(new URL("../README.md", import.meta.url), "utf8");

test("the example for records goes on after one that is too long", () => {
  const [, example] = readme.match(/```js\n(import [^`]*new RecordRing[^`]*)```/) ?? [];
  const code = example
    .replace(/import .*\n/, "")
    .replace("const room", "records.push(3, new Uint8Array(2000));\nrecords.push(4, datagram);\nconst room");
  const tags: number[] = [];
  const names = ["EMPTY", "RecordRing", "streamId", "timestamp8", "datagram", "handle"];
  const handle = (tag: number, room: Uint8Array, length: number) => {
    if (room[length - 1] === 9) tags.push(tag);
  };
  new Function(...names, code)(EMPTY, RecordRing, 2, new Uint8Array(8), Uint8Array.of(7, 9), handle);
  expect(tags).toEqual([2, 2, 4]);
});
