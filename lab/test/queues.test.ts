import { copyFileSync } from "node:fs";
import { cpus } from "node:os";
import path from "node:path";
import { afterEach, expect, it } from "vitest";
import { makeFolder, removeFolder, Service, sleep } from "../src/processes.js";
import { mostQueuedShare, Queues } from "../src/queues.js";

const folder = makeFolder("queues");
let queues: Queues;
const services: Service[] = [];

afterEach(async () => {
  queues.stop();
  await Promise.all(services.map((service) => service.stop()));
  removeFolder(folder);
});

it("sees that a thread wants to run and may not", async () => {
  // A program is called as its file is.
  const carrier = path.join(folder, "GraphRunner");
  copyFileSync("/bin/sh", carrier);
  const begin = Date.now();
  queues = new Queues();
  await sleep(500);
  // Nobody is there to be watched.
  expect(queues.between(begin, Date.now())).toBeNull();
  for (let n = 0; n < 5 * cpus().length; n++)
    services.push(
      Service.start([carrier, "-c", "while :; do :; done"], process.env, path.join(folder, `${n}.log`)),
    );
  await sleep(5000);
  // Of five that share a processor each waits for four fifths of the time.
  expect(queues.between(begin, Date.now())).toBeGreaterThan(mostQueuedShare);
});
