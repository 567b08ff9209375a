/** What the worker has told last: of what it captures and sends, of the relay and of each peer. */

import type { FromWorker, WorkerPeerStats } from "../shared/messages";
import type { SenderStats } from "../shared/stats";

type Told = Extract<FromWorker, { type: "stats" }>;

const NO_SENDER: SenderStats = {
  capturePath: "none",
  captures: 0,
  capturedFrames: 0,
  sentFrames: 0,
  overrunFrames: 0,
  packets: 0,
  peak: [],
};

export class WorkerStats {
  #newest: Told = { type: "stats", sender: NO_SENDER, peers: [], relay: null, ringOverflows: 0 };
  #peers = new Map<number, WorkerPeerStats>();
  #capturePath: SenderStats["capturePath"] = "none";

  get newest(): Told {
    return this.#newest;
  }

  /** Of the peer whose stream it is. */
  peer(stream: number): WorkerPeerStats | undefined {
    return this.#peers.get(stream);
  }

  /** The last one that was any. */
  get capturePath(): SenderStats["capturePath"] {
    return this.#capturePath;
  }

  take(told: Told): void {
    this.#newest = told;
    this.#peers = new Map(told.peers.map((peer) => [peer.stream, peer]));
    if (told.sender.capturePath !== "none") this.#capturePath = told.sender.capturePath;
  }

  /** There is no worker any more. What was lost in its rings stays counted, until the next one tells of its own. */
  forget(): void {
    this.take({ ...this.#newest, sender: NO_SENDER, peers: [], relay: null });
  }
}
