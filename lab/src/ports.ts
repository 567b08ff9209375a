/** Ports of this machine. */

import { type AddressInfo, createServer } from "node:net";

/** A TCP port of 127.0.0.1 that nobody listens on, for a program about to start. */
export function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = createServer().on("error", reject);
    probe.listen(0, "127.0.0.1", () => {
      const { port } = probe.address() as AddressInfo;
      probe.close(() => resolve(port));
    });
  });
}
