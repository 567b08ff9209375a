/** Cross-correlation of a long recording with short shapes, by FFT. */

export class Correlator {
  private readonly size: number;
  private readonly cos: Float64Array;
  private readonly sin: Float64Array;
  /** Spectra of the shapes met so far. */
  private readonly spectra = new Map<string, [Float64Array, Float64Array]>();

  /** For lags 0 to `lags - 1` of shapes of `shapeFrames`. */
  constructor(
    private readonly lags: number,
    private readonly shapeFrames: number,
  ) {
    this.size = 2 ** Math.ceil(Math.log2(lags + shapeFrames - 1));
    const half = this.size / 2;
    this.cos = Float64Array.from({ length: half }, (_, k) => Math.cos((2 * Math.PI * k) / this.size));
    this.sin = Float64Array.from({ length: half }, (_, k) => Math.sin((2 * Math.PI * k) / this.size));
  }

  /** The lag at which `shape` resembles `recording` most, either way up, counted from frame `start`. */
  strongestLag(recording: Float32Array, start: number, shape: Float32Array): number {
    const [shapeRe, shapeIm] = this.spectrum(shape);
    const re = new Float64Array(this.size);
    const im = new Float64Array(this.size);
    re.set(recording.subarray(start, start + this.lags + this.shapeFrames - 1));
    this.transform(re, im);
    // Times the conjugate; swapping the parts on the way in and out makes the transform its own inverse.
    for (let k = 0; k < this.size; k++) {
      const r = re[k]! * shapeRe[k]! + im[k]! * shapeIm[k]!;
      im[k] = im[k]! * shapeRe[k]! - re[k]! * shapeIm[k]!;
      re[k] = r;
    }
    this.transform(im, re);
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
      this.transform(...spectrum);
      this.spectra.set(key, spectrum);
    }
    return spectrum;
  }

  /** Radix-2 FFT in place, forward, not scaled. */
  private transform(re: Float64Array, im: Float64Array): void {
    const size = this.size;
    for (let i = 1, j = 0; i < size; i++) {
      let bit = size >> 1;
      for (; j & bit; bit >>= 1) j ^= bit;
      j ^= bit;
      if (i < j) {
        [re[i], re[j]] = [re[j]!, re[i]!];
        [im[i], im[j]] = [im[j]!, im[i]!];
      }
    }
    for (let length = 2; length <= size; length <<= 1) {
      const half = length >> 1;
      const stride = size / length;
      for (let block = 0; block < size; block += length) {
        for (let k = 0; k < half; k++) {
          const c = this.cos[k * stride]!;
          const s = -this.sin[k * stride]!;
          const low = block + k;
          const high = low + half;
          const r = re[high]! * c - im[high]! * s;
          const i = re[high]! * s + im[high]! * c;
          re[high] = re[low]! - r;
          im[high] = im[low]! - i;
          re[low] = re[low]! + r;
          im[low] = im[low]! + i;
        }
      }
    }
  }
}
