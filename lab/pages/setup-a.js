import { reportOf } from "./browser-report.js";
import { openMicrophone } from "./microphone.js";

let context;
let microphone;

/** Setup A of the paper: one page, the microphone connected to the speaker by the audio graph and nothing else. */
const start = async () => {
  const stream = await openMicrophone();
  context = new AudioContext({ latencyHint: 0, sampleRate: 48_000 });
  context.createMediaStreamSource(stream).connect(context.destination);
  await context.resume();
  [microphone] = stream.getAudioTracks();
};

const report = () => reportOf(context, microphone);

window.page = () => ({ start, report });
