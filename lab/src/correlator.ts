/** Cross-correlation of a long recording with short shapes, by FFT. */

import { Fft } from "./fft.js";

export class Correlator {
  private readonly size: number;
  private readonly fft: Fft;
  /** Spectra of the shapes met so far. */
  private readonly spectra = new Map<string, [Float64Array, Float64Array]>();

  /** For lags 0 to `lags - 1` of shapes of `shapeFrames`. */
  constructor(
    private readonly lags: number,
    private readonly shapeFrames: number,
  ) {
    this.size = 2 ** Math.ceil(Math.log2(lags + shapeFrames - 1));
    this.fft = new Fft(this.size);
  }

  /** The lag at which `shape` resembles `recording` most, either way up, counted from frame `start`. */
  strongestLag(recording: Float32Array, start: number, shape: Float32Array): number {
    const [shapeRe, shapeIm] = this.spectrum(shape);
    const re = new Float64Array(this.size);
    const im = new Float64Array(this.size);
    re.set(recording.subarray(start, start + this.lags + this.shapeFrames - 1));
    this.fft.transform(re, im);
    // Times the conjugate; swapping the parts on the way in and out makes the transform its own inverse.
    for (let k = 0; k < this.size; k++) {
      const r = re[k]! * shapeRe[k]! + im[k]! * shapeIm[k]!;
      im[k] = im[k]! * shapeRe[k]! - re[k]! * shapeIm[k]!;
      re[k] = r;
    }
    this.fft.transform(im, re);
    let best = 0;
    for (let lag = 1; lag < this.lags; lag++) if (Math.abs(re[lag]!) > Math.abs(re[best]!)) best = lag;
    return best;
  }

  private spectrum(shape: Float32Array): [Float64Array, Float64Array] {
    const key = shape.join();
    let spectrum = this.spectra.get(key);
    if (!spectrum) {
      spectrum = [new Float64Array(this.size), new Float64Array(this.size)];
      spectrum[0].set(shape);
      this.fft.transform(...spectrum);
      this.spectra.set(key, spectrum);
    }
    return spectrum;
  }
}
