/** Runs the cases in many interleaved rounds. Returns {case: {queue: [ns per operation, one per round]}}. */
import { localCases, postRound, storageFor } from "./cases.js";

/**
 * `host`: {now, MessageChannel, startThread, rounds, blocks}. `startThread()` resolves to {post(job), onMessage(handler), stop()}
 * once the thread is ready.
 */
export async function runAll(modules, host) {
  const { now, rounds, blocks } = host;
  const samples = {};
  const note = (name, queue, value) => {
    samples[name] ??= {};
    samples[name][queue] ??= [];
    samples[name][queue].push(value);
  };
  const cases = localCases(modules, now);
  for (let i = 0; i < 30; i++) {
    for (const queues of Object.values(cases)) for (const round of Object.values(queues)) round();
  }
  for (let i = 0; i < 3; i++) await postRound(host.MessageChannel, now);

  for (let i = 0; i < rounds; i++) {
    for (const [name, queues] of Object.entries(cases)) {
      for (const [queue, round] of Object.entries(queues)) note(name, queue, round());
    }
    const { push, pushPop } = await postRound(host.MessageChannel, now);
    note("push 128", "postMessage", push);
    note("push + pop 128", "postMessage", pushPop);
  }

  const producer = await host.startThread();
  const consumer = await host.startThread();
  for (let i = -2; i < rounds / 3; i++) {
    for (const queue of ["ring", "ringbuf.js", "postMessage"]) {
      // A wait for the other end takes as long as hundreds of blocks, so there have to be many; messages queue without end, and need none.
      const job = {
        queue,
        storage: storageFor(modules, queue),
        blocks: queue === "postMessage" ? blocks / 10 : blocks,
      };
      const time =
        queue === "postMessage" ? receive(producer, job, now) : once(consumer, { ...job, role: "consumer" });
      producer.post({ ...job, role: "producer" });
      const value = await time;
      if (i >= 0) note("128 from thread to thread", queue, value);
    }
  }
  await producer.stop();
  await consumer.stop();
  return samples;
}

/** The first message that a thread posts after it has got `job`. */
function once(thread, job) {
  return new Promise((resolve) => {
    thread.onMessage(resolve);
    thread.post(job);
  });
}

/** Receives the blocks that `thread` posts: ns per block from the first to the last. */
function receive(thread, { blocks }, now) {
  return new Promise((resolve) => {
    let start = 0;
    let next = 0;
    thread.onMessage((block) => {
      if (next === 0) start = now();
      if (block[0] !== next) throw new Error("out of order");
      if (++next === blocks) resolve(((now() - start) * 1e6) / (blocks - 1));
    });
  });
}
