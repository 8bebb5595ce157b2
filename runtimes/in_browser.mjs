// Run a plan in ONNX Runtime Web, in a headless Chromium: CHROMIUM=… node in_browser.mjs wasm|webgpu PLAN
// The page asks this process for its files; WebGPU is SwiftShader's, so that no graphics card is needed.
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const [provider, plan] = process.argv.slice(2);
const packages = process.env.NODE_PATH;
const { chromium } = createRequire(join(packages, "x.js"))("playwright-core");
const version = JSON.parse(readFileSync(join(packages, "onnxruntime-web/package.json"))).version;
const say = (...words) => console.log(words.join("\t"));

const calls = readFileSync(plan, "utf8").trim().split("\n").map((line) => line.split("\t"));
const split = (field) => field.match(/^([^:]*):([^:]*):([^:]*):(.*)$/).slice(1); // name, type, shape, file
const files = new Set(calls.flatMap(([model, , ...fields]) => [model, ...fields.map((field) => split(field)[3])]));

const TYPES = { mjs: "text/javascript", wasm: "application/wasm" };
const server = createServer((request, response) => {
  const path = decodeURIComponent(request.url);
  const library = path.match(/^\/ort\/([\w.-]+)$/);
  const known = library ? join(packages, "onnxruntime-web/dist", library[1]) : files.has(path) ? path : null;
  // with these two headers the page is isolated, as WebAssembly's threads want it
  response.writeHead(known || path === "/" ? 200 : 404, {
    "content-type": TYPES[path.split(".").pop()] ?? (path === "/" ? "text/html" : "application/octet-stream"),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-embedder-policy": "require-corp",
  });
  response.end(known ? readFileSync(known) : "<!doctype html><title>Runtimes</title>");
});
await new Promise((ready) => server.listen(0, "127.0.0.1", ready));

const browser = await chromium.launchPersistentContext(mkdtempSync(join(tmpdir(), "runtimes-")), {
  executablePath: process.env.CHROMIUM,
  args: ["--no-sandbox", "--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--enable-unsafe-webgpu", "--enable-features=Vulkan", "--use-webgpu-adapter=swiftshader"],
});
const page = browser.pages()[0] ?? (await browser.newPage());
await page.goto(`http://127.0.0.1:${server.address().port}/`);

// Runs in the page. The session is kept while the model is the same.
async function call({ provider, model, fields, repeats }) {
  const ort = (globalThis.ort ??= await import(`/ort/ort.${provider}.bundle.min.mjs`));
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmPaths = "/ort/";
  ort.env.logLevel = "error";
  if (globalThis.loaded?.model !== model) {
    await globalThis.loaded?.session?.release();
    const session = await ort.InferenceSession.create(model, { executionProviders: [provider] });
    globalThis.loaded = { model, session };
  }
  const ARRAYS = { float32: Float32Array, int64: BigInt64Array, bool: Uint8Array };
  const feeds = {};
  for (const [name, type, shape, file] of fields) {
    const data = new ARRAYS[type](await (await fetch(file)).arrayBuffer());
    feeds[name] = new ort.Tensor(type, data, shape.split("x").map(Number));
  }
  const { session } = globalThis.loaded;
  const answer = Array.from((await session.run(feeds))[session.outputNames[0]].data);
  let seconds = Infinity;
  for (let i = 0; i < repeats; i++) {
    const started = performance.now();
    await session.run(feeds);
    seconds = Math.min(seconds, (performance.now() - started) / 1e3);
  }
  return { answer: answer.map(String), seconds }; // as text, in which NaN stays NaN
}

try {
  const adapter = await page.evaluate(async () => (await navigator.gpu?.requestAdapter())?.info?.architecture ?? null);
  if (provider === "webgpu" && adapter === null) throw new Error("this Chromium has no WebGPU adapter");
  const chromium = await page.evaluate(() => navigator.userAgent.match(/Chrome\/(\d+)/)[1]);
  say("version", `${version}, Chromium ${chromium}${provider === "webgpu" ? `, ${adapter}` : ""}`);
  for (const [index, [model, file, ...fields]] of calls.entries()) {
    try {
      const { answer, seconds } = await page.evaluate(call, { provider, model, fields: fields.map(split), repeats: 5 });
      writeFileSync(file, Buffer.from(Float32Array.from(answer, Number).buffer));
      say("ok", index, seconds);
    } catch (error) {
      say("error", index, String(error.message ?? error).replace(/\s+/g, " ").slice(0, 500));
    }
  }
} finally {
  await browser.close();
  server.close();
}
