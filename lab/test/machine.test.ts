import { mkdirSync, writeFileSync } from "node:fs";
import path from "node:path";
import { afterAll, expect, it } from "vitest";
import { commit, commitDoubts } from "../src/machine.js";
import { makeFolder, removeFolder, run } from "../src/processes.js";

const folder = makeFolder("checkout");

afterAll(() => removeFolder(folder));

it("doubts a run of what is in no commit, but for other runs", async () => {
  const git = (...args: string[]) =>
    run(["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@example.org", ...args], process.env);
  const write = (file: string, text: string) => writeFileSync(path.join(folder, file), text);
  mkdirSync(path.join(folder, "results"));
  await git("init", "--quiet");
  for (const file of ["source", "results/index.html"]) write(file, "1");
  await git("add", ".");
  await git("commit", "--quiet", "--message", "1");
  write("results/index.html", "2");
  write("results/new", "2");
  const name = await commit(folder);
  expect(name).toMatch(/^[0-9a-f]+$/);
  expect(commitDoubts(name)).toEqual([]);
  write("source", "2");
  expect(await commit(folder)).toBe(`${name}-dirty`);
  expect(commitDoubts(await commit(folder))).toHaveLength(1);
  expect(await commit(path.join(folder, "nowhere"))).toBe("unknown");
});
