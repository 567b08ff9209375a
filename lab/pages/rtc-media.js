import { openMicrophone } from "./microphone.js";

/** RTCPeerConnection audio at its best settings for music: stereo Opus, short packets, no jitter buffer beyond what it insists on. */
const connection = new RTCPeerConnection();
const element = new Audio();
let microphone;

connection.ontrack = ({ receiver, streams }) => {
  receiver.jitterBufferTarget = 0;
  element.srcObject = streams[0];
  element.play();
};

const start = async () => {
  const stream = await openMicrophone();
  microphone = stream.getAudioTracks()[0];
  connection.addTrack(microphone, stream);
};

/** With no argument makes the offer; with an offer, the answer. The driver carries both. */
const describe = async (offer) => {
  if (offer) await connection.setRemoteDescription(offer);
  const description = offer ? await connection.createAnswer() : await connection.createOffer();
  await connection.setLocalDescription({ type: description.type, sdp: stereo(description.sdp) });
  while (connection.iceGatheringState !== "complete") {
    await new Promise((resolve) =>
      connection.addEventListener("icegatheringstatechange", resolve, { once: true }),
    );
  }
  return { type: connection.localDescription.type, sdp: short(stereo(connection.localDescription.sdp)) };
};

const accept = async (answer) => connection.setRemoteDescription(answer);

/** An element may play, silence, before the first packet has come. */
const ready = async () =>
  connection.connectionState === "connected" &&
  !element.paused &&
  element.currentTime > 0 &&
  (await inbound())?.packetsReceived > 0;

const report = () => {
  const { latency } = microphone.getSettings();
  return {
    quantumFrames: null,
    reportedBaseLatencyMs: null,
    reportedOutputLatencyMs: null,
    reportedInputLatencyMs: latency === undefined ? null : latency * 1000,
  };
};

/** Undefined until the first packet of the other end has come. */
const inbound = async () =>
  [...(await connection.getStats()).values()].find((entry) => entry.type === "inbound-rtp");

/** Samples are per channel here, so they are frames. */
const counters = async () => {
  const received = await inbound();
  const { totalSamplesReceived, concealedSamples, removedSamplesForAcceleration } = received;
  return {
    playedFrames: difference(totalSamplesReceived, concealedSamples),
    concealedFrames: concealedSamples ?? null,
    skippedFrames: removedSamplesForAcceleration ?? null,
    receivedPackets: received.packetsReceived ?? null,
    lostPackets: received.packetsLost ?? null,
    latePackets: received.packetsDiscarded ?? null,
    underruns: received.concealmentEvents ?? null,
    bufferFrames: null,
  };
};

window.page = () => ({ start, describe, accept, ready, report, counters });

function difference(whole, part) {
  return whole === undefined || part === undefined ? null : whole - part;
}

function stereo(sdp) {
  const opus = /a=rtpmap:(\d+) opus\/48000\/2/.exec(sdp)[1];
  const wanted = "stereo=1;sprop-stereo=1;maxaveragebitrate=256000;minptime=10";
  return sdp.replace(new RegExp(`(a=fmtp:${opus} )([^\r\n]*)`), (_, head, old) => {
    const kept = old
      .split(";")
      .filter((item) => !/^(stereo|sprop-stereo|maxaveragebitrate|minptime)=/.test(item.trim()));
    return head + [...kept, wanted].join(";");
  });
}

/** Asks the other end, whose sender follows it, for packets of 10 ms, the shortest there are. */
function short(sdp) {
  return sdp.replace(/^(a=rtpmap:\d+ opus\/48000\/2)\r\n/m, "$1\r\na=ptime:10\r\n");
}
