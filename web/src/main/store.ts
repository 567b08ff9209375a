/** What the page shows, and who is told when it changes. */

import { isDismissable, type Problem, type StudioState } from "./model";
import { keep, readList } from "./storage";

/** Of advice that was dismissed. */
const KEY = "antiphon.unwanted";

export class Store {
  #state: StudioState;
  readonly #listeners = new Set<() => void>();
  readonly #dismissed = new Set(readList(KEY));

  constructor(state: StudioState) {
    this.#state = state;
  }

  get state(): StudioState {
    return this.#state;
  }

  subscribe(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  set(change: Partial<StudioState>): void {
    this.#state = { ...this.#state, ...change };
    for (const listener of this.#listeners) listener();
  }

  raise(problem: Problem): void {
    // What was dismissed stays away until it has ended; an error may come again.
    if (problem.severity !== "error" && this.#dismissed.has(problem.id)) return;
    const others = this.#state.problems.filter(({ id }) => id !== problem.id);
    this.set({ problems: [...others, problem] });
  }

  clear(...problemIds: string[]): void {
    const problems = this.#state.problems.filter(({ id }) => !problemIds.includes(id));
    if (problems.length < this.#state.problems.length) this.set({ problems });
  }

  /** The same for what happens and is over: it is said when it happens again, though it was dismissed. */
  end(...problemIds: string[]): void {
    for (const id of problemIds) this.#dismissed.delete(id);
    this.clear(...problemIds);
  }

  dismiss(problemId: string): void {
    const problem = this.#state.problems.find(({ id }) => id === problemId);
    if (problem === undefined || !isDismissable(problem)) return;
    this.#dismissed.add(problemId);
    // What is wrong may be worse the next time; advice is the same.
    if (problem.severity === "advice") keep(KEY, [...readList(KEY), problemId]);
    this.clear(problemId);
  }
}
