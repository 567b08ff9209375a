/** The part of WebAssembly that every thread has; TypeScript's ES library leaves it to DOM and WebWorker. */
declare namespace WebAssembly {
  class Module {
    private constructor();
  }
  class Memory {
    readonly buffer: ArrayBuffer;
  }
  class Instance {
    constructor(module: Module, imports?: object);
    readonly exports: Record<string, unknown>;
  }
}
