/**
 * Many musicians in one page, each a participant of its own in a room of the product, who play to one listener and to nobody else.
 * They speak docs/protocol.md: signalling here, datagrams in the worker.
 */

const protocolVersion = 1;
const channelOptions = { negotiated: true, id: 0, ordered: false, maxRetransmits: 0 };
/** Only a listener whose id begins with 16 ones makes so many necessary. */
const maxSecrets = 100_000;

let worker;
let senders = [];

/** `url`: where `/ws/ROOM` of the product is reached. `listener`: a participant's id, who is in the room already. */
const start = async ({ url, room, count, listener }) => {
  worker = new Worker("senders-worker.js", { type: "module" });
  const address = new URL(`/ws/${room}`, url);
  address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
  senders = await Promise.all(Array.from({ length: count }, (_, index) => join(address, index, listener)));
};

const ready = () =>
  senders.length > 0 && senders.every(({ connection }) => connection.connectionState === "connected");

/**
 * `sentPackets` and `droppedBacklog`: one of each sender, since its channel opened. `maxLateMs`: how long after it was due the latest packet
 * of all was sent, since the last call: what is late here already is not the listener's fault.
 */
const counters = () =>
  new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = ({ data }) => resolve(data);
    worker.postMessage({ type: "count", port: port2 }, [port2]);
  });

const stop = () => {
  for (const { socket, connection } of senders) {
    socket.send(JSON.stringify({ type: "leave" }));
    connection.close();
  }
  senders = [];
  worker.terminate();
};

window.page = () => ({ start, ready, counters, stop });

/** One participant, from hello to its offer. What goes wrong later is an uncaught error of the page. */
async function join(address, index, listener) {
  const secret = await secretAbove(listener);
  const socket = new WebSocket(address);
  const hello = {
    type: "hello",
    version: protocolVersion,
    secret: hex(secret),
    name: `sender ${index + 1}`,
    sample_rate_hz: 48_000,
  };
  return new Promise((resolve, reject) => {
    let connection;
    let accept;
    socket.onopen = () => socket.send(JSON.stringify(hello));
    socket.onclose = ({ code }) =>
      reject(new Error(`${hello.name}: connection to ${address} closed, ${code}`));
    socket.onmessage = ({ data }) => {
      const message = JSON.parse(data);
      if (message.type === "welcome") {
        const problem = misfit(message, listener);
        if (problem) return reject(new Error(`${hello.name}: ${problem}`));
        const signal = (content) =>
          socket.send(
            JSON.stringify({ type: "signal", to: listener, data: { lane: 0, epoch: 0, ...content } }),
          );
        ({ connection, accept } = offer(message.ice_servers, index, signal));
        resolve({ socket, connection });
      } else if (message.type === "signal" && message.from === listener) {
        accept(message.data);
      } else if (message.type === "error") {
        const error = new Error(`${hello.name}: ${message.code}: ${message.message}`);
        reject(error);
        throw error;
      }
    };
  });
}

function misfit({ participants, sample_rate_hz }, listener) {
  if (sample_rate_hz !== 48_000) return `the room plays at ${sample_rate_hz} Hz, not 48000`;
  if (!participants.some(({ id }) => id === listener)) return `the listener ${listener} is not in the room`;
  return null;
}

/** The only lane to the listener. Its channel plays in the worker; how many lanes the listener would like is not heeded. */
function offer(iceServers, index, signal) {
  const connection = new RTCPeerConnection({ iceServers });
  const channel = connection.createDataChannel("audio", channelOptions);
  worker.postMessage({ type: "lane", index, channel }, [channel]);
  connection.onicecandidate = ({ candidate }) =>
    signal({ kind: "candidate", candidate: candidate?.toJSON() ?? null });
  let steps = connection.setLocalDescription().then(() => {
    const { type, sdp } = connection.localDescription;
    signal({ kind: "description", description: { type, sdp } });
  });
  /** One signal after the other. The listener sends its description before its candidates. */
  const accept = ({ kind, lane, epoch, description, candidate }) => {
    if (lane !== 0 || epoch !== 0) return;
    steps = steps.then(async () => {
      if (kind === "description") await connection.setRemoteDescription(description);
      else if (kind === "candidate" && candidate) await connection.addIceCandidate(candidate);
    });
  };
  return { connection, accept };
}

/** A secret whose participant id is greater than the listener's: who has the greater id makes all offers, and so decides on one lane. */
async function secretAbove(listener) {
  for (let tries = 0; tries < maxSecrets; tries++) {
    const secret = crypto.getRandomValues(new Uint8Array(32));
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", secret));
    if (hex(digest.subarray(0, 16)) > listener) return secret;
  }
  throw new Error(`no participant id found above ${listener}`);
}

function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
