/** Serves the measurement pages of lab/pages, cross-origin isolated as the product is. */

import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import path from "node:path";
import { root } from "./rig.js";

export interface PageServer {
  /** Ends in "/". */
  url: string;
  close(): void;
}

const types: Record<string, string> = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
};

export async function servePages(): Promise<PageServer> {
  const server = createServer(async (request, response) => {
    const name = path.basename(new URL(request.url ?? "/", "http://localhost").pathname);
    const type = types[path.extname(name)];
    const body = type && (await readFile(path.join(root, "lab/pages", name)).catch(() => undefined));
    response.setHeader("Cross-Origin-Opener-Policy", "same-origin");
    response.setHeader("Cross-Origin-Embedder-Policy", "require-corp");
    response.setHeader("Cache-Control", "no-store");
    if (body && type) response.setHeader("Content-Type", type);
    else response.statusCode = name === "favicon.ico" ? 204 : 404;
    response.end(body || undefined);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  return {
    // Secure context: browsers trust localhost without TLS.
    url: `http://127.0.0.1:${port}/`,
    close: () => {
      server.close();
      server.closeAllConnections();
    },
  };
}
