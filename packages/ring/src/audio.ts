import type { Ring } from "./ring.js";

/**
 * Producer's end of a ring of interleaved audio. Counts in frames: one sample of every channel.
 *
 * Only whole frames enter the ring. Make the ring for `frames * channels` elements.
 */
export class AudioWriter {
  /** Samples per frame. */
  readonly channels: number;
  readonly #ring: Ring<Float32Array>;

  /** *Errors* RangeError if `channels` is not a whole number from 1 to the ring's capacity. */
  constructor(ring: Ring<Float32Array>, channels: number) {
    this.channels = checkChannels(ring, channels);
    this.#ring = ring;
  }

  /** Frames that can be enqueued. RT. */
  get availableFrames(): number {
    return Math.floor(this.#ring.availableWrite / this.channels);
  }

  /**
   * Appends up to `frames` frames of `interleaved` from frame `offsetFrames`; returns how many fitted.
   *
   * *Errors* RangeError if the range is not inside `interleaved`. *Real-time* as `Ring.push`.
   */
  enqueue(
    interleaved: Float32Array,
    offsetFrames = 0,
    frames = Math.floor(interleaved.length / this.channels) - offsetFrames,
  ): number {
    checkFrames(Math.floor(interleaved.length / this.channels), offsetFrames, frames);
    const count = wholeFrames(this.#ring.grantWrite(frames * this.channels), this.channels);
    this.#ring.push(interleaved, offsetFrames * this.channels, count * this.channels);
    return count;
  }

  /**
   * Appends up to `frames` frames from `planes[channel][offsetFrames + i]`, interleaving them; returns how many fitted.
   *
   * *Errors* RangeError if there are not `channels` planes or a plane is too short. *Real-time* RT.
   */
  enqueuePlanar(
    planes: readonly Float32Array[],
    offsetFrames = 0,
    frames = (planes[0]?.length ?? 0) - offsetFrames,
  ): number {
    const ring = this.#ring;
    const channels = this.channels;
    checkPlanes(planes, channels, offsetFrames, frames);
    const count = wholeFrames(ring.grantWrite(frames * channels), channels);
    const { data, mask } = ring;
    const start = ring.writeAt();
    for (let channel = 0; channel < channels; channel++) {
      const plane = planes[channel];
      for (let i = 0, at = start + channel; i < count; i++, at += channels) {
        data[at & mask] = plane[offsetFrames + i];
      }
    }
    ring.commitWrite(count * channels);
    return count;
  }
}

/**
 * Consumer's end of a ring of interleaved audio. Counts in frames: one sample of every channel.
 *
 * A dequeue that returns fewer frames than asked for is an underrun. The rest of the destination then holds whatever it held
 * before: the caller must count the missing frames and conceal them, with silence at least, and not play the old ones.
 */
export class AudioReader {
  /** Samples per frame. */
  readonly channels: number;
  readonly #ring: Ring<Float32Array>;

  /** *Errors* RangeError if `channels` is not a whole number from 1 to the ring's capacity. */
  constructor(ring: Ring<Float32Array>, channels: number) {
    this.channels = checkChannels(ring, channels);
    this.#ring = ring;
  }

  /** Frames that can be dequeued. RT. */
  get availableFrames(): number {
    return Math.floor(this.#ring.availableRead / this.channels);
  }

  /**
   * Moves up to `frames` frames to `interleaved` from frame `offsetFrames`; returns how many there were.
   *
   * *Errors* RangeError if the range is not inside `interleaved`. *Real-time* as `Ring.pop`.
   */
  dequeue(
    interleaved: Float32Array,
    offsetFrames = 0,
    frames = Math.floor(interleaved.length / this.channels) - offsetFrames,
  ): number {
    checkFrames(Math.floor(interleaved.length / this.channels), offsetFrames, frames);
    const count = wholeFrames(this.#ring.grantRead(frames * this.channels), this.channels);
    this.#ring.pop(interleaved, offsetFrames * this.channels, count * this.channels);
    return count;
  }

  /**
   * Moves up to `frames` frames to `planes[channel][offsetFrames + i]`; returns how many there were.
   *
   * *Errors* RangeError if there are not `channels` planes or a plane is too short. *Real-time* RT.
   */
  dequeuePlanar(
    planes: readonly Float32Array[],
    offsetFrames = 0,
    frames = (planes[0]?.length ?? 0) - offsetFrames,
  ): number {
    const ring = this.#ring;
    const channels = this.channels;
    checkPlanes(planes, channels, offsetFrames, frames);
    const count = wholeFrames(ring.grantRead(frames * channels), channels);
    const { data, mask } = ring;
    const start = ring.readAt();
    for (let channel = 0; channel < channels; channel++) {
      const plane = planes[channel];
      for (let i = 0, at = start + channel; i < count; i++, at += channels) {
        plane[offsetFrames + i] = data[at & mask];
      }
    }
    ring.commitRead(count * channels);
    return count;
  }
}

function wholeFrames(samples: number, channels: number): number {
  return Math.floor(samples / channels);
}

function checkChannels(ring: Ring<Float32Array>, channels: number): number {
  if (!Number.isInteger(channels) || channels < 1 || channels > ring.capacity) {
    throw new RangeError(`${channels} is no number of channels for a ring of ${ring.capacity} samples`);
  }
  return channels;
}

function checkPlanes(
  planes: readonly Float32Array[],
  channels: number,
  offset: number,
  frames: number,
): void {
  if (planes.length !== channels) throw new RangeError(`${planes.length} planes for ${channels} channels`);
  for (let channel = 0; channel < channels; channel++) checkFrames(planes[channel].length, offset, frames);
}

function checkFrames(length: number, offset: number, frames: number): void {
  if (
    (offset | 0) !== offset ||
    (frames | 0) !== frames ||
    offset < 0 ||
    frames < 0 ||
    offset + frames > length
  ) {
    throw new RangeError(`${frames} frames from ${offset} are not inside an array of ${length} frames`);
  }
}
