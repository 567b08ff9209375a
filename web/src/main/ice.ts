/** The servers by which peers find their ways to each other. */

/** Those that the browser has taken, in JSON. None is tried twice: browsers make so many connections, and keep closed ones for a while. */
const taken = new Set<string>();

/**
 * Those that the browser takes: with one that it refuses, no connection could be made at all. That it makes none because it made enough is no
 * fault of a server.
 */
export function accepted(servers: readonly RTCIceServer[]): RTCIceServer[] {
  return servers.filter((server) => {
    const text = JSON.stringify(server);
    if (taken.has(text)) return true;
    if (!makes([server])) return !makes([]);
    taken.add(text);
    return true;
  });
}

function makes(iceServers: RTCIceServer[]): boolean {
  try {
    new RTCPeerConnection({ iceServers }).close();
    return true;
  } catch {
    return false;
  }
}
