/** The servers by which peers find their ways to each other. */

/** Those that the browser takes: with one that it refuses, no connection could be made at all. */
export function accepted(servers: readonly RTCIceServer[]): RTCIceServer[] {
  return servers.filter((server) => {
    try {
      new RTCPeerConnection({ iceServers: [server] }).close();
      return true;
    } catch {
      return false;
    }
  });
}
