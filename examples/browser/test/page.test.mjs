// The page of `osa package web` in a real browser: what it reads, whether its numbers are ONNX Runtime's, how it looks.
//   PAGE, ARTIFACT   the page, and the artifact that it was made from
//   PYTHON, CHROMIUM the interpreter that has osa_runtime, and the browser

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { DIGITS, draw, idle, launch, open, serve, SOFTWARE_GPU } from "./browser.mjs";

const HERE = dirname(fileURLToPath(import.meta.url));
const PAGE = resolve(process.env.PAGE ?? join(HERE, "../page"));
const ARTIFACT = resolve(process.env.ARTIFACT ?? join(HERE, "../../../runs/mnist-web"));
const PYTHON = resolve(process.env.PYTHON ?? join(HERE, "../../../.venv/bin/python"));
const SHOTS = join(HERE, "../screenshots");
const DESCRIPTION = JSON.parse(readFileSync(join(PAGE, "model.json")));
const NO_GPU = "No available adapters."; // what Chromium says of a machine without one

const python = (command, path, input) =>
  execFileSync(PYTHON, [join(HERE, "python_side.py"), command, path], { input, maxBuffer: 1e8 });

let server, chrome;
before(async () => {
  mkdirSync(SHOTS, { recursive: true });
  server = await serve(PAGE);
  chrome = await launch();
});
after(async () => {
  await chrome?.close();
  server?.close();
});

/** What the model received and returned, as plain numbers. */
const answer = (page) =>
  page.evaluate(() => {
    const { page, answer } = window.osa;
    const plain = (output) => Array.from(answer.outputs[output].data);
    return {
      device: answer.device,
      values: Array.from(answer.values),
      logits: plain(page.output),
      probabilities: answer.probabilities,
      matrices: page.attentions.map(({ output }) => plain(output)),
      shown: Object.fromEntries(
        ["best", "probability", "defect", "worst", "which"].map((id) => [id, document.getElementById(id).textContent]),
      ),
    };
  });

/** ‖AᵀA − I‖ of n × n matrices one after the other, by the definition. */
function defects(data, n) {
  const found = [];
  for (let from = 0; from < data.length; from += n * n) {
    let sum = 0;
    for (let i = 0; i < n; i++)
      for (let j = 0; j < n; j++) {
        let entry = i === j ? -1 : 0;
        for (let k = 0; k < n; k++) entry += data[from + k * n + i] * data[from + k * n + j];
        sum += entry ** 2;
      }
    found.push(Math.sqrt(sum));
  }
  return found;
}

const largest = (numbers) => numbers.reduce((most, value) => Math.max(most, Math.abs(value)), 0);

/** Compare logits with those of ONNX Runtime in Python, for the same inputs, relative to the largest. */
function compareWithPython(drawn, artifact = ARTIFACT, tolerance = DESCRIPTION.tolerance) {
  const expected = JSON.parse(
    python("answers", artifact, JSON.stringify({ values: drawn.flatMap(({ values }) => values) })),
  ).logits;
  drawn.forEach(({ logits }, i) => {
    const distance = largest(logits.map((value, j) => value - expected[i][j])) / largest(expected[i]);
    assert.ok(distance <= tolerance, `logits of drawing ${i} are ${distance} from Python's, allowed ${tolerance}`);
  });
}

test("ten drawn digits are read, and the numbers are those of Python", async () => {
  const { page, problems } = await open(chrome.context, server.address);
  const drawn = [];
  for (const strokes of DIGITS) {
    await page.keyboard.press("c");
    await draw(page, strokes);
    drawn.push(await answer(page));
  }
  const read = drawn.map(({ shown }) => shown.best);
  const right = read.filter((best, digit) => best === String(digit)).length;
  assert.ok(right >= 9, `read ${read.join(" ")}`);
  compareWithPython(drawn);
  for (const { probabilities, matrices, shown } of drawn) {
    assert.ok(Math.abs(probabilities.reduce((sum, p) => sum + p) - 1) < 1e-12);
    assert.equal(shown.probability, `${(100 * Math.max(...probabilities)).toFixed(1)}%`);
    const all = matrices.flatMap((data, layer) => defects(data, DESCRIPTION.attentions[layer].tokens));
    assert.ok(Math.max(...all) < 1e-5, `‖AᵀA − I‖ is ${Math.max(...all)}`);
    assert.equal(shown.worst, Math.max(...all).toExponential(1));
    assert.equal(shown.defect, all[0].toExponential(1));
    assert.ok(matrices.every((data) => largest(data) > 0.1 && data.some((value) => value < 0)));
  }
  assert.deepEqual(
    problems.filter((text) => text !== NO_GPU),
    [],
  );
});

test("it reads while the pen is still down", async () => {
  const { page } = await open(chrome.context, server.address);
  const box = await page.locator("#paper").boundingBox();
  await page.mouse.move(box.x + 0.5 * box.width, box.y + 0.2 * box.height);
  await page.mouse.down();
  await page.mouse.move(box.x + 0.5 * box.width, box.y + 0.8 * box.height, { steps: 8 });
  await page.waitForFunction(() => document.getElementById("best").textContent === "1");
  await page.keyboard.press("c"); // in the middle of a stroke
  await page.mouse.move(box.x + 0.6 * box.width, box.y + 0.8 * box.height);
  await page.mouse.up();
  await idle(page);
  assert.equal(await page.textContent("#best"), "–");
});

test("WebGPU returns what WASM and Python return", async () => {
  const gpu = await launch(SOFTWARE_GPU);
  try {
    const { page, problems } = await open(gpu.context, server.address);
    assert.match(await page.textContent("#status"), /WASM [\d.]+ ms, WebGPU [\d.]+ ms; they agree to \d?e?/);
    await page.getByRole("button", { name: "WebGPU" }).click();
    await draw(page, DIGITS[5]);
    const drawn = await answer(page);
    assert.equal(drawn.device, "webgpu");
    assert.equal(drawn.shown.best, "5");
    compareWithPython([drawn]);
    assert.deepEqual(problems, []);
    const strict = await serve(PAGE, { "/model.json": JSON.stringify({ ...DESCRIPTION, tolerance: 1e-12 }) });
    const refused = await open(gpu.context, strict.address);
    assert.match(await refused.page.textContent("#status"), /^WebGPU is not used: its answers are \S+ from WASM's$/);
    assert.deepEqual(await refused.page.locator("#devices button").allTextContents(), ["WASM"]);
    strict.close();
  } finally {
    await gpu.close();
  }
});

test("everything can be done by keys", async () => {
  const { page } = await open(chrome.context, server.address);
  const focused = () =>
    page.evaluate(() => document.activeElement.id || document.activeElement.getAttribute("aria-label"));
  await page.keyboard.press("7");
  await idle(page);
  assert.equal(await page.textContent("#best"), "7");
  await page.keyboard.press("z");
  await idle(page);
  assert.equal(await page.textContent("#best"), "–");
  while ((await focused()) !== "paper") await page.keyboard.press("Tab");
  const ring = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  assert.equal(ring, "solid");
  for (let i = 0; i < 8; i++) await page.keyboard.press("ArrowUp");
  await page.keyboard.down("Shift");
  for (let i = 0; i < 16; i++) await page.keyboard.press("ArrowDown");
  await page.keyboard.up("Shift");
  await idle(page);
  assert.equal(await page.textContent("#best"), "1");
  while (!/^Layer/.test(await focused())) await page.keyboard.press("Tab");
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowDown");
  assert.equal(await focused(), "Layer 3, head 2");
  const { matrices, shown } = await answer(page);
  assert.equal(shown.which, "layer 3, head 2");
  assert.equal(shown.defect, defects(matrices[2], DESCRIPTION.attentions[2].tokens)[1].toExponential(1));
});

test("a picture beyond the model's range has no answer, and the page says why", async () => {
  const preprocessing = { ...DESCRIPTION.preprocessing, std: [1e-3] };
  const other = await serve(PAGE, { "/model.json": JSON.stringify({ ...DESCRIPTION, preprocessing }) });
  const { page } = await open(chrome.context, other.address);
  await draw(page, DIGITS[3]);
  assert.equal(await page.textContent("#best"), "–");
  assert.match(await page.textContent("#status"), /^No answer: this picture is beyond the range of ‖S‖ ≤ /);
  other.close();
});

test("what is missing is said", async () => {
  for (const path of ["/model.onnx", "/model.json"]) {
    const other = await serve(PAGE, { [path]: undefined });
    const page = await chrome.context.newPage();
    await page.goto(other.address);
    await page.waitForFunction(() =>
      /^It does not run here: model\.\w+ cannot be loaded \(404\)/.test(document.getElementById("status").textContent),
    );
    other.close();
  }
});

for (const [form, size] of [
  ["desktop", [1280, 800]],
  ["phone", [390, 844]],
])
  for (const scheme of ["light", "dark"])
    test(`it fits a ${form}, ${scheme}`, async () => {
      const { page } = await open(chrome.context, server.address, {
        size,
        scheme,
        motion: scheme === "dark" ? "reduce" : "no-preference",
      });
      await draw(page, DIGITS[form === "phone" ? 8 : 2]);
      const seen = await page.evaluate(async () => {
        const shifts = await new Promise((resolve) => {
          new PerformanceObserver((list) => resolve(list.getEntries())).observe({
            type: "layout-shift",
            buffered: true,
          });
          setTimeout(() => resolve([]), 500);
        });
        const root = document.documentElement;
        return {
          shift: shifts.reduce((sum, { value }) => sum + value, 0),
          overflow: root.scrollWidth - root.clientWidth,
          below: root.scrollHeight - root.clientHeight,
          answerEnds: document.getElementById("answer").getBoundingClientRect().bottom,
          back: getComputedStyle(document.body).backgroundColor,
          transition: getComputedStyle(document.querySelector("#classes i"), "::after").transitionDuration,
        };
      });
      // After the measurement, since a picture of the whole page changes the viewport.
      await page.screenshot({ path: join(SHOTS, `${form}-${scheme}.png`), fullPage: true });
      assert.equal(seen.overflow, 0);
      assert.ok(seen.shift < 0.01, `layout shift ${seen.shift}`);
      assert.ok(seen.answerEnds <= size[1], `the answer ends at ${seen.answerEnds}`);
      if (form === "desktop") assert.equal(seen.below, 0);
      assert.equal(seen.back, scheme === "light" ? "rgb(250, 249, 246)" : "rgb(19, 20, 23)");
      assert.equal(seen.transition, scheme === "dark" ? "0s" : "0.09s");
    });

test("a colour model of bytes with named classes opens pictures", async () => {
  const folder = join(HERE, "../page-colour");
  python("colour", folder);
  const other = await serve(folder);
  const { page, problems } = await open(chrome.context, other.address, { size: [390, 844] });
  assert.equal(await page.textContent("#status"), "The model was exported for WASM alone");
  await page.locator("#file").setInputFiles(join(SHOTS, "desktop-light.png"));
  await page.waitForFunction(() => document.getElementById("best").textContent !== "–");
  await draw(page, [
    [
      [0.2, 0.2],
      [0.8, 0.8],
    ],
  ]);
  const { values, shown, probabilities, matrices } = await answer(page);
  assert.ok(values.every((value) => Number.isInteger(value) && value >= 0 && value <= 255));
  assert.ok(new Set(values).size > 20);
  const names = await page.locator("#classes span").allTextContents();
  assert.equal(shown.best, names[probabilities.indexOf(Math.max(...probabilities))]);
  assert.ok(Math.max(...defects(matrices[0], 24)) < 1e-5);
  await page.screenshot({ path: join(SHOTS, "colour-phone.png"), fullPage: true });
  await page.locator("#file").setInputFiles(join(folder, "model.json"));
  await page.waitForFunction(() => /is not a picture/.test(document.getElementById("status").textContent));
  assert.deepEqual(
    problems.filter((text) => text !== NO_GPU),
    [],
  );
  other.close();
});
