/** How one sends, as it was chosen, and what becomes of Opus where it cannot be encoded. */

import { opusRefusal, type Rung, rungsFor, type SendConfig } from "../shared/rungs";
import type { Store } from "./store";

export class SendingFormat {
  readonly #store: Store;
  readonly #rateHz: () => number;
  /** Why the Opus that is chosen cannot be encoded, by the worker's word; null as long as it can. */
  #opusFailure: string | null = null;

  /** `rateHz`: of now. */
  constructor(store: Store, rateHz: () => number) {
    this.#store = store;
    this.#rateHz = rateHz;
  }

  get config(): SendConfig {
    const { bits, opusKbps, channels, packet, copies, adapt, lanes } = this.#store.state.settings;
    const config = { rateHz: this.#rateHz(), bits, opusKbps, channels, packetFrames: packet, copies };
    return { ...config, adapts: adapt === "auto", addsLanes: lanes === "auto" };
  }

  /** What who is not stepped down gets. */
  get chosen(): Rung {
    return rungsFor(this.config, this.#failure === null)[0];
  }

  /** The same, where the worker need not be asked, too. */
  get #failure(): string | null {
    return typeof AudioEncoder === "undefined" ? "It has no encoder that pages may use." : this.#opusFailure;
  }

  /** The worker's word; null: what is chosen has not failed. */
  opusFailed(reason: string | null): void {
    this.#opusFailure = reason;
    this.advise();
  }

  /** Says it in plain words if Opus was chosen and cannot be. */
  advise(): void {
    const { bits, channels } = this.#store.state.settings;
    const refusal = opusRefusal({ rateHz: this.#rateHz(), channels });
    const failure = this.#failure === null ? null : `This browser cannot encode it. ${this.#failure}`;
    if (bits !== "opus" || (refusal ?? failure) === null) {
      this.#store.end("opus");
      return;
    }
    this.#store.raise({
      id: "opus",
      severity: "warning",
      title: "You chose Opus, and send 16 bit instead.",
      remedy: `${refusal ?? failure} What you send is chosen in the settings.`,
    });
  }
}
