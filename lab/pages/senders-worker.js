/** Sends what is due on every sender's lane: docs/protocol.md, "Kind 1" and "Lanes". */

const sampleRateHz = 48_000;
const packetFrames = 128;
const packetMs = (packetFrames / sampleRateHz) * 1000;
const headerBytes = 20;
const probeBytes = 16;
const kindProbe = 2;
const kindProbeReply = 3;
const intervalMs = 4;
/** A lane whose oldest unsent datagram has waited for longer takes no more. */
const maxWaitMs = 100;
/** Twenty senders together stay below half of full scale. */
const amplitude = 0.02;

const senders = [];
let maxLateMs = 0;

self.onmessage = ({ data }) => {
  if (data.type === "lane") addSender(data.index, data.channel);
  else if (data.type === "count") {
    data.port.postMessage({
      sentPackets: senders.map(({ sent }) => sent),
      droppedBacklog: senders.map(({ dropped }) => dropped),
      maxLateMs,
    });
    maxLateMs = 0;
  }
};

setInterval(() => {
  // One instant for all: what each sends does not depend on how many there are.
  const nowMs = performance.now();
  // Skips the place of a sender whose lane is not there yet.
  senders.forEach((sender) => {
    sendDue(sender, nowMs);
  });
}, intervalMs);

function addSender(index, channel) {
  const sender = {
    channel,
    packet: writePacket(index),
    startMs: null,
    offered: 0,
    sent: 0,
    dropped: 0,
    bursts: [],
  };
  senders[index] = sender;
  channel.binaryType = "arraybuffer";
  channel.onopen = () => {
    sender.startMs = performance.now();
  };
  channel.onmessage = ({ data }) => replyToProbe(sender, data);
}

/** Every packet that is complete by now, so that no frame is missing in the long run, however late the timer. */
function sendDue(sender, nowMs) {
  if (sender.startMs === null || sender.channel.readyState !== "open") return;
  const due = Math.floor((nowMs - sender.startMs) / packetMs);
  if (sender.offered === due) return;
  const firstDueMs = sender.startMs + (sender.offered + 1) * packetMs;
  const isCrowded = waitMs(sender, nowMs) > maxWaitMs;
  for (; sender.offered < due; sender.offered++) {
    sender.packet.setUint32(8, sender.offered, true);
    sender.packet.setBigUint64(12, BigInt(sender.offered * packetFrames), true);
    if (!isCrowded && trySend(sender.channel, sender.packet)) sender.sent++;
    else sender.dropped++;
  }
  if (!isCrowded) sender.bursts.push({ atMs: nowMs, sent: sender.sent });
  maxLateMs = Math.max(maxLateMs, performance.now() - firstDueMs);
}

/** How long the oldest unsent datagram has been waiting. To be asked before sending: `bufferedAmount` is up to date at the start of a task. */
function waitMs({ channel, packet, sent, bursts }, nowMs) {
  const gone = sent - channel.bufferedAmount / packet.byteLength;
  while (bursts.length > 0 && bursts[0].sent <= gone) bursts.shift();
  return bursts.length > 0 ? nowMs - bursts[0].atMs : 0;
}

function replyToProbe({ channel }, data) {
  const bytes = new Uint8Array(data);
  if (bytes.length !== probeBytes || bytes[1] !== kindProbe) return;
  bytes[1] = kindProbeReply;
  trySend(channel, bytes);
}

/** False if the browser refuses: the channel is closing, or its buffer is full. */
function trySend(channel, bytes) {
  try {
    channel.send(bytes);
    return true;
  } catch {
    return false;
  }
}

/** A sender's packet, with a tone of its own on both sides: whole periods, so that all packets differ in their headers only. */
function writePacket(index) {
  const packet = new DataView(new ArrayBuffer(headerBytes + packetFrames * 4));
  packet.setUint8(0, 1); // version
  packet.setUint8(1, 1); // audio
  packet.setUint8(2, 0x11); // 16-bit integer, 48,000 Hz
  packet.setUint8(3, 2); // channels
  packet.setUint16(6, packetFrames, true);
  for (let n = 0; n < packetFrames; n++) {
    const sample = Math.round(Math.sin((2 * Math.PI * (index + 1) * n) / packetFrames) * amplitude * 32_768);
    packet.setInt16(headerBytes + 4 * n, sample, true);
    packet.setInt16(headerBytes + 4 * n + 2, sample, true);
  }
  return packet;
}
