/** What the user does that may fail: what is said of it, and said again though it is the same. */

import type { Problem } from "../model";
import { announce } from "./announcer";

export class Acts {
  readonly #show: (fault: Problem | null) => void;
  #running = 0;
  #problems: readonly Problem[];

  /** `show`: what has failed unexpectedly. `problems`: the session's. */
  constructor(show: (fault: Problem | null) => void, problems: readonly Problem[]) {
    this.#show = show;
    this.#problems = problems;
  }

  /** Does it; should it fail unexpectedly, says so instead of doing nothing. */
  async attempt(request: () => Promise<void>): Promise<void> {
    this.#show(null);
    this.#running++;
    try {
      await request();
    } catch (error) {
      this.#show({
        id: "ui-request-failed",
        severity: "error",
        title: "That did not work.",
        remedy: `The browser says: ${error instanceof Error ? error.message : String(error)}. Try again, or reload the page.`,
      });
    } finally {
      this.#running--;
    }
  }

  /** The session's problems after each change. An error that an act raises while it is shown already changes nothing on the page. */
  follow(problems: readonly Problem[]): void {
    const before = this.#problems;
    this.#problems = problems;
    if (this.#running === 0) return;
    for (const problem of problems) {
      const was = before.find(({ id }) => id === problem.id);
      if (problem.severity === "error" && was !== undefined && was !== problem) announce(problem.title);
    }
  }
}
