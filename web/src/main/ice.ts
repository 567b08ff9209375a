/** The servers by which peers find their ways to each other. */

/** Those that the browser has taken, in JSON. None is tried twice: browsers make so many connections, and keep closed ones for a while. */
const taken = new Set<string>();

/** Those that the browser takes: with one that it refuses, no connection could be made at all. */
export function accepted(servers: readonly RTCIceServer[]): RTCIceServer[] {
  return servers.filter((server) => {
    const text = JSON.stringify(server);
    if (taken.has(text)) return true;
    try {
      new RTCPeerConnection({ iceServers: [server] }).close();
      taken.add(text);
      return true;
    } catch {
      return false;
    }
  });
}
