/** What the lab changes on the machine is as before when it has ended, however it ended. */

import { type ChildProcess, spawn } from "node:child_process";
import { accessSync, constants, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { schedulingWords } from "../src/machine.js";
import { root } from "../src/rig.js";

const grouping = "/proc/sys/kernel/sched_autogroup_enabled";

describe.skipIf(!isOurs())("the kernel's grouping of threads", () => {
  let before: string;
  /** Where lab processes find each other. */
  let folder: string;
  const children: ChildProcess[] = [];

  beforeAll(() => {
    before = readFileSync(grouping, "utf8");
    folder = mkdtempSync(path.join(tmpdir(), "grouping-"));
  });

  beforeEach(() => writeFileSync(grouping, "1"));

  afterEach(async () => {
    for (const child of children.splice(0)) await end(child, "SIGKILL");
  });

  afterAll(() => {
    writeFileSync(grouping, before);
    rmSync(folder, { recursive: true, force: true });
  });

  /** A lab process that has ended the grouping. */
  async function start(): Promise<ChildProcess> {
    const script = `import { ungroupSessions } from ${JSON.stringify(path.join(root, "lab/dist/processes.js"))};
      ungroupSessions();
      console.log("ready");
      setInterval(() => undefined, 1000);`;
    const child = spawn(process.execPath, ["--input-type=module", "--eval", script], {
      env: { ...process.env, TMPDIR: folder },
      stdio: ["ignore", "pipe", "inherit"],
    });
    children.push(child);
    await new Promise((resolve) => child.stdout!.once("data", resolve));
    expect(isGrouped()).toBe(false);
    return child;
  }

  it("is as before when the process has ended", async () => {
    await end(await start(), "SIGTERM");
    expect(isGrouped()).toBe(true);
  });

  it("is as before at the latest when the next one has ended after one that was killed", async () => {
    await end(await start(), "SIGKILL");
    expect(isGrouped()).toBe(false);
    await end(await start(), "SIGTERM");
    expect(isGrouped()).toBe(true);
  });

  it.each([0, 1])(
    "is as before when the last of two side by side has ended, begun as number %i",
    async (last) => {
      const both = [await start(), await start()];
      await end(both[1 - last]!, "SIGTERM");
      expect(isGrouped()).toBe(false);
      await end(both[last]!, "SIGTERM");
      expect(isGrouped()).toBe(true);
    },
  );
});

it("says what was done about the processors", () => {
  expect(schedulingWords(true, { given: 4, refused: 0 })).toBe(
    "the kernel does not group threads by session; real-time priority given to 4 threads that reach the sound server",
  );
  expect(schedulingWords(false, { given: 0, refused: 2 })).toBe(
    "the kernel groups threads by session; real-time priority given to 0 threads that reach the sound server, refused to 2",
  );
});

function isGrouped(): boolean {
  return readFileSync(grouping, "utf8").trim() === "1";
}

function isOurs(): boolean {
  try {
    accessSync(grouping, constants.W_OK);
    return true;
  } catch {
    return false;
  }
}

async function end(child: ChildProcess, signal: NodeJS.Signals): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const gone = new Promise((resolve) => child.once("exit", resolve));
  child.kill(signal);
  await gone;
}
