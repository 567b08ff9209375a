/** Fast Fourier transform of one size, a power of two. */
export class Fft {
  private readonly cos: Float64Array;
  private readonly sin: Float64Array;

  constructor(readonly size: number) {
    const half = size / 2;
    this.cos = Float64Array.from({ length: half }, (_, k) => Math.cos((2 * Math.PI * k) / size));
    this.sin = Float64Array.from({ length: half }, (_, k) => Math.sin((2 * Math.PI * k) / size));
  }

  /** Radix-2 FFT in place, forward, not scaled. */
  transform(re: Float64Array, im: Float64Array): void {
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

/**
 * Power spectrum by Welch's method: Hann windows of `size` frames, half overlapping, averaged. Element k is at k / size of the sample rate;
 * only ratios of two of these mean anything.
 */
export function powerSpectrum(samples: Float32Array, size: number): Float64Array {
  const fft = new Fft(size);
  const mean = new Float64Array(size / 2);
  const windows = Math.floor((samples.length - size) / (size / 2)) + 1;
  for (let start = 0; start + size <= samples.length; start += size / 2) {
    const re = new Float64Array(size);
    for (let n = 0; n < size; n++)
      re[n] = samples[start + n]! * (0.5 - 0.5 * Math.cos((2 * Math.PI * n) / size));
    const im = new Float64Array(size);
    fft.transform(re, im);
    for (let k = 0; k < mean.length; k++) mean[k]! += (re[k]! ** 2 + im[k]! ** 2) / windows;
  }
  return mean;
}
