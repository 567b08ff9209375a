import { blockFrames, DejitterBuffer, packetBytes, SendRing } from "./paper-buffer.js";

/** Packs every quantum into a packet and hands it to the main thread: through the ring if it is given one, else as a message. */
class AudioSender extends AudioWorkletProcessor {
  #ring;
  #packet = new Uint8Array(packetBytes);
  #number = new Int32Array(this.#packet.buffer, 0, 1);
  #samples = new Int16Array(this.#packet.buffer, 4);

  constructor({ processorOptions: { ringMemory } }) {
    super();
    this.#ring = ringMemory ? new SendRing(ringMemory) : null;
  }

  process([[left, right]]) {
    // No channels as long as nothing comes from the microphone: silence is sent.
    for (let n = 0; n < blockFrames; n++) {
      this.#samples[2 * n] = pcm(left?.[n] ?? 0);
      this.#samples[2 * n + 1] = pcm(right?.[n] ?? 0);
    }
    if (this.#ring) this.#ring.push(this.#packet);
    else this.port.postMessage(this.#packet.buffer);
    this.#number[0]++;
    return true;
  }
}

/** Plays the de-jitter buffer. Packets that come as messages it puts there itself. */
class AudioReceiver extends AudioWorkletProcessor {
  #buffer;

  constructor({ processorOptions: { bufferMemory } }) {
    super();
    this.#buffer = new DejitterBuffer(bufferMemory);
    this.port.onmessage = ({ data }) => this.#buffer.enqueue(data);
  }

  process(_, [[left, right]]) {
    this.#buffer.dequeue(left, right);
    return true;
  }
}

registerProcessor("audio-sender", AudioSender);
registerProcessor("audio-receiver", AudioReceiver);

function pcm(sample) {
  return Math.max(-32_768, Math.min(32_767, Math.round(sample * 32_768)));
}
