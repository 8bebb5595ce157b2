// Runs one ONNX model in onnxruntime-node for other_runtimes.py: a line of JSON, then the bytes of the tensors.
const ARRAYS = {
  float32: ["float32", Float32Array],
  float64: ["float64", Float64Array],
  float16: ["float16", Uint16Array],
  int64: ["int64", BigInt64Array],
  int32: ["int32", Int32Array],
  int16: ["int16", Int16Array],
  int8: ["int8", Int8Array],
  uint8: ["uint8", Uint8Array],
  bool: ["bool", Uint8Array],
};

let received = Buffer.alloc(0);
let wake = null;
let ended = false;
process.stdin.on("data", (chunk) => {
  received = Buffer.concat([received, chunk]);
  if (wake) wake();
});
process.stdin.on("end", () => {
  ended = true;
  if (wake) wake();
});

async function until(ready) {
  while (!ready()) {
    if (ended) process.exit(0);
    await new Promise((resolve) => (wake = resolve));
  }
}

async function line() {
  await until(() => received.includes(10));
  const end = received.indexOf(10);
  const text = received.subarray(0, end).toString();
  received = received.subarray(end + 1);
  return text;
}

async function bytes(size) {
  await until(() => received.length >= size);
  const copy = new Uint8Array(received.subarray(0, size)).buffer; // aligned, unlike a slice
  received = received.subarray(size);
  return copy;
}

function send(answer, buffers = []) {
  process.stdout.write(JSON.stringify(answer) + "\n");
  for (const buffer of buffers) process.stdout.write(buffer);
}

function required() {
  try {
    return require("onnxruntime-node");
  } catch (error) {
    send({ missing: String(error.message || error).split("\n")[0] });
    process.exit(1);
  }
}

const ort = required();

async function main() {
  const session = await ort.InferenceSession.create(process.argv[2]);
  send({ version: require("onnxruntime-node/package.json").version });
  for (;;) {
    const described = JSON.parse(await line());
    const feeds = {};
    for (const { name, dtype, shape, size } of described) {
      const [type, Typed] = ARRAYS[dtype];
      feeds[name] = new ort.Tensor(type, new Typed(await bytes(size)), shape);
    }
    try {
      const found = await session.run(feeds);
      const names = Object.keys(found);
      const buffers = names.map((n) => {
        const { buffer, byteOffset, byteLength } = found[n].data;
        return Buffer.from(buffer, byteOffset, byteLength);
      });
      const tensors = names.map((n, i) => ({ dtype: found[n].type, shape: found[n].dims, size: buffers[i].length }));
      send({ names, tensors }, buffers);
    } catch (error) {
      send({ error: String(error.message || error) });
    }
  }
}

main().catch((error) => {
  send({ error: String(error.message || error) });
  process.exitCode = 1;
});
