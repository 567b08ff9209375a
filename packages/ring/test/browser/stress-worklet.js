/** An AudioWorkletProcessor that runs several ends of rings. It may not block: it spins a bounded number of steps. */
import { makeTask } from "../stress.js";

/** Steps without anything moved after which a quantum ends. */
const VAIN_STEPS = 2000;
/** Steps after which a quantum ends anyway. */
const STEPS = 20_000;

class Stress extends AudioWorkletProcessor {
  constructor({ processorOptions }) {
    super();
    this.tasks = processorOptions.specs.map(makeTask);
    this.port.onmessage = () => this.report();
  }

  process() {
    let vain = 0;
    for (let i = 0; i < STEPS && vain < VAIN_STEPS; i++) {
      let moved = 0;
      let left = 0;
      for (const task of this.tasks) {
        if (task.done) continue;
        left++;
        moved += task.step();
      }
      if (left === 0) {
        this.report();
        return false;
      }
      vain = moved > 0 ? 0 : vain + 1;
    }
    return true;
  }

  report() {
    this.port.postMessage(this.tasks.map((task) => task.report()));
  }
}

registerProcessor("stress", Stress);
