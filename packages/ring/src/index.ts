/**
 * Wait-free single-producer single-consumer ring buffers for the Web.
 *
 * @packageDocumentation
 */
export { AudioReader, AudioWriter } from "./audio.js";
export type { RingStorage } from "./layout.js";
export {
  createParameterStorage,
  type ParameterChange,
  ParameterReader,
  ParameterWriter,
} from "./parameter.js";
export { CORRUPT, EMPTY, RecordRing, recordBytes, TOO_LONG } from "./record-ring.js";
export {
  type NumericArray,
  type NumericArrayConstructor,
  Ring,
  type SpanCallback,
  type ViewCallback,
} from "./ring.js";
