import { execFileSync } from "node:child_process";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

/** Builds dist/ before the tests, so that threads and browsers never run an old build. */
export default function setup(): void {
  const typescript = dirname(createRequire(import.meta.url).resolve("typescript/package.json"));
  const project = fileURLToPath(new URL("..", import.meta.url));
  execFileSync(process.execPath, [join(typescript, "bin/tsc"), "-b", project], { stdio: "inherit" });
}
