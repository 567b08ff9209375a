/**
 * A way into the product for the lab's own pages. The server refuses browsers whose page is another site's and admits programs, which send
 * no `Origin` (docs/protocol.md, "Signalling"): this is such a program, that passes on what a page says over its WebSocket.
 */

import { createServer } from "node:http";
import { type AddressInfo, connect } from "node:net";
import { pipeline } from "node:stream";

export interface Doorway {
  /** To be used by pages in place of the product's own. */
  url: string;
  close(): void;
}

export async function openDoorway(productUrl: string): Promise<Doorway> {
  const { hostname, port } = new URL(productUrl);
  const server = createServer((_, response) => response.writeHead(426).end("WebSockets only\n"));
  const sockets = new Set<{ destroy(): unknown }>();
  server.on("upgrade", ({ method, url, headers }, socket, head) => {
    const lines = Object.entries(headers)
      .filter(([name]) => name !== "origin")
      .map(([name, value]) => `${name}: ${value}\r\n`);
    const onward = connect(Number(port), hostname);
    onward.write(`${method} ${url} HTTP/1.1\r\n${lines.join("")}\r\n`);
    onward.write(head);
    sockets.add(socket);
    // However one side ends, the other ends too.
    pipeline(socket, onward, socket, () => sockets.delete(socket));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    close: () => {
      server.close();
      for (const socket of sockets) socket.destroy();
    },
  };
}
