// The model in ONNX Runtime Web: in WASM, and on WebGPU where there is one that returns the same.

export const DEVICES = { wasm: "WASM", webgpu: "WebGPU" };
const ROUNDS = 5; // for the choice of the faster device

export class Model {
  devices = {}; // by name: a session and its time in ms
  constructor(page, ort) {
    Object.assign(this, { page, ort });
  }

  /** Load the runtime and the model, and compare the devices. */
  static async open(page) {
    const adapter = page.webgpu && (await navigator.gpu?.requestAdapter().catch(() => null));
    const ort = await import(`./runtime/ort.${adapter ? "webgpu" : "wasm"}.min.mjs`);
    ort.env.wasm.wasmPaths = new URL("runtime/", document.baseURI).href;
    ort.env.wasm.numThreads = 1; // more need headers that static servers do not send
    ort.env.logLevel = "error";
    const model = new Model(page, ort);
    model.bytes = new Uint8Array(await (await loaded("model.onnx")).arrayBuffer());
    await model.start("wasm");
    model.note = page.webgpu ? "This browser has no WebGPU" : "The model was exported for WASM alone";
    if (adapter) await model.tryGpu();
    model.device = Object.entries(model.devices).sort(([, a], [, b]) => a.ms - b.ms)[0][0]; // the fastest
    return model;
  }

  async start(name) {
    const session = await this.ort.InferenceSession.create(this.bytes, {
      executionProviders: [name],
      logSeverityLevel: 3,
    });
    this.devices[name] = { session, ms: Infinity };
    await this.run(this.probes()[0], name); // the first run compiles
  }

  /** Start WebGPU, and keep it only if it answers as WASM does. */
  async tryGpu() {
    try {
      await this.start("webgpu");
      const distance = await this.distance();
      if (!(distance <= this.page.tolerance))
        throw new Error(`its answers are ${distance.toExponential(0)} from WASM's`);
      for (const name of Object.keys(this.devices)) await this.time(name);
      const times = Object.entries(this.devices).map(([name, { ms }]) => `${DEVICES[name]} ${ms.toFixed(1)} ms`);
      this.note = `${times.join(", ")}; they agree to ${distance.toExponential(0)}`;
    } catch (error) {
      this.drop("webgpu", error);
    }
  }

  drop(name, error) {
    delete this.devices[name];
    this.note = `${DEVICES[name]} is not used: ${String(error.message ?? error).split("\n")[0]}`;
  }

  /** The largest difference of any output between the devices, relative to the output's largest value; NaN counts. */
  async distance() {
    let worst = 0;
    for (const pixels of this.probes()) {
      const [expected, found] = [await this.run(pixels, "wasm"), await this.run(pixels, "webgpu")];
      for (const name of Object.keys(expected.outputs)) {
        const [a, b] = [expected.outputs[name].data, found.outputs[name].data];
        const difference = a.reduce((most, value, i) => Math.max(most, Math.abs(value - b[i])), 0);
        worst = Math.max(worst, difference / a.reduce((most, value) => Math.max(most, Math.abs(value)), 0));
      }
    }
    return worst;
  }

  async time(name) {
    const times = [];
    for (let i = 0; i < ROUNDS; i++) times.push((await this.run(this.probes()[0], name)).ms);
    this.devices[name].ms = times.sort((a, b) => a - b)[Math.floor(ROUNDS / 2)];
  }

  /** Pictures to try the devices on: samples, or else one with every shade. */
  probes() {
    const { shape } = this.page.input;
    if (this.page.samples?.length) return this.page.samples.slice(0, ROUNDS).map((sample) => shares(sample, shape));
    return [Float32Array.from({ length: shape[1] * shape[2] * shape[3] }, (_, i) => 0.5 + 0.5 * Math.sin(i * i))];
  }

  /** The outputs for shares of white, 0 to 1, and the time in ms. */
  async run(pixels, name = this.device) {
    const values = standardised(pixels, this.page);
    const feeds = {
      [this.page.input.name]: new this.ort.Tensor(this.page.input.dtype, values, [
        1,
        ...this.page.input.shape.slice(1),
      ]),
    };
    const start = performance.now();
    const outputs = await this.devices[name].session.run(feeds);
    return { outputs, values, ms: performance.now() - start };
  }
}

/** The model's input: pixels in its own units, standardised as the manifest says. */
export function standardised(pixels, { input, preprocessing }) {
  const { mean, std, pixels: range, formula } = preprocessing;
  if (formula !== "(pixel - mean) / std") throw new Error(`The preprocessing is unknown: ${formula}`);
  const plane = input.shape[2] * input.shape[3];
  const values = pixels.map((share, i) => {
    const c = mean.length === 1 ? 0 : Math.floor(i / plane);
    return (range[0] + share * (range[1] - range[0]) - mean[c]) / std[c];
  });
  return input.dtype === "uint8" ? Uint8Array.from(values, Math.round) : values;
}

/** A sample, stored as bytes (height, width, channels), as shares (channels, height, width). */
export function shares({ bytes }, [, channels, height, width]) {
  const plane = height * width;
  return Float32Array.from(bytes, (_, i) => bytes[(i % plane) * channels + Math.floor(i / plane)] / 255);
}

export async function loaded(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${path} cannot be loaded (${response.status})`);
  return response;
}
