// The page: what the reader draws goes to the model, and what the model returns is shown.

import { ARROWS, Drawing, picture, showPaper, usePaper } from "./drawing.js";
import { defect, paintMatrix, palette } from "./matrices.js";
import { DEVICES, loaded, Model, shares } from "./runtime.js";

const MULTIPLICATIONS = 2e7; // for the distances of all matrices after each stroke; for more, of the shown one alone
const $ = (id) => document.getElementById(id);
const percent = (share) => `${(100 * share).toFixed(1)}%`;
const made = (tag, fields = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), fields);
  element.append(...children);
  return element;
};

const page = await loaded("model.json").then((response) => response.json(), fail);
document.title = $("title").textContent = page.title;
const long = page.class_names.some((name) => name.length > 2);
const rows = page.class_names.map((name) => made("li", {}, made("span", { textContent: name }), made("i"), made("b")));
const paper = $("paper");
const drawing = new Drawing(page);
const pen = usePaper(paper, drawing, () => $("colour").value, changed);
const chosen = { layer: 0, head: 0 };
let model, answer, waiting, running;

$("classes").append(...rows);
$("classes").classList.toggle("long", long);
document.querySelector(".best").classList.toggle("long", long);
$("colour").hidden = drawing.channels === 1;
paper.classList.toggle("black", drawing.channels > 1);
Object.assign($("seen"), { width: drawing.width, height: drawing.height });
paper.style.aspectRatio = drawing.width / drawing.height;

function changed() {
  $("hint").hidden = !drawing.empty;
  showPaper(paper, drawing, pen);
  read();
}

/** Run the model on the newest drawing; while it runs, further changes wait together. */
async function read() {
  if (!model || running) return void (waiting = true);
  running = true;
  do {
    waiting = false;
    await new Promise(requestAnimationFrame);
    const pixels = drawing.pixels();
    picture(pixels, page.input.shape, $("seen"));
    try {
      answer = { pixels, empty: drawing.empty, device: model.device, ...(await model.run(pixels)) };
      show();
    } catch (error) {
      running = false;
      return model.device === "wasm" ? fail(error) : leaveGpu(error);
    }
  } while (waiting);
  running = false;
}

function show() {
  const logits = [...answer.outputs[page.output].data];
  const finite = Object.values(answer.outputs).every(({ data }) => data.every(Number.isFinite));
  const most = Math.max(...logits);
  const powers = logits.map((logit) => Math.exp(logit - most));
  const total = powers.reduce((sum, power) => sum + power, 0);
  answer.probabilities = powers.map((power) => power / total);
  const silent = answer.empty || !finite;
  const best = silent ? -1 : logits.indexOf(most);
  $("best").textContent = silent ? "–" : page.class_names[best];
  $("probability").textContent = silent ? "–" : percent(answer.probabilities[best]);
  $("time").textContent = `${answer.ms.toFixed(1)} ms`;
  rows.forEach((row, i) => {
    const share = silent ? 0 : answer.probabilities[i];
    row.classList.toggle("top", i === best);
    row.children[1].style.setProperty("--share", share.toFixed(4));
    row.children[2].textContent = silent ? "" : percent(share);
  });
  showMatrices();
  const limit = page.largest_norm ? ` of ‖S‖ ≤ ${page.largest_norm.toPrecision(3)}` : "";
  say(finite ? model.note : `No answer: this picture is beyond the range${limit} of the exported model`, !finite);
}

function showMatrices() {
  const colours = palette();
  let [worst, cost] = [0, 0];
  for (const { heads, tokens } of page.attentions) cost += heads * tokens ** 3;
  page.attentions.forEach(({ output, heads, tokens }, layer) => {
    const { data } = answer.outputs[output];
    for (let head = 0; head < heads; head++) {
      const from = head * tokens * tokens;
      const shown = layer === chosen.layer && head === chosen.head;
      paintMatrix(cell(layer, head).firstChild, data, tokens, from, colours);
      if (shown) paintMatrix($("matrix"), data, tokens, from, colours);
      if (!shown && cost > MULTIPLICATIONS) continue;
      const distance = defect(data, tokens, from);
      worst = Math.max(worst, distance);
      if (shown) $("defect").textContent = distance.toExponential(1);
    }
  });
  $("worst").textContent = cost > MULTIPLICATIONS ? "–" : worst.toExponential(1);
  $("which").textContent = `layer ${chosen.layer + 1}, head ${chosen.head + 1}`;
}

const cell = (layer, head) => $("heads").querySelector(`[data-layer="${layer}"][data-head="${head}"]`);

function choose(layer, head, focus = true) {
  const next = cell(layer, head);
  if (!next) return;
  for (const other of $("heads").children) {
    other.setAttribute("aria-checked", other === next);
    other.tabIndex = other === next ? 0 : -1;
  }
  Object.assign(chosen, { layer, head });
  if (focus) next.focus();
  if (answer) showMatrices();
}

function layOutHeads() {
  const layers = page.attentions;
  $("attention").hidden = !layers.length;
  $("all").textContent = `largest of ${layers.reduce((sum, { heads }) => sum + heads, 0)}`;
  $("heads").style.gridTemplateColumns = `repeat(${layers.length}, minmax(0, 3.5rem))`;
  layers.forEach(({ heads }, layer) => {
    for (let head = 0; head < heads; head++) {
      const button = made("button", {}, made("canvas"));
      Object.assign(button.dataset, { layer, head });
      Object.assign(button.style, { gridColumn: layer + 1, gridRow: head + 1 });
      button.setAttribute("role", "radio");
      button.setAttribute("aria-label", `Layer ${layer + 1}, head ${head + 1}`);
      button.addEventListener("click", () => choose(layer, head));
      $("heads").append(button);
    }
  });
  if (layers.length) choose(0, 0, false);
}

function layOutDevices() {
  for (const name of Object.keys(model.devices)) {
    const button = made("button", { textContent: DEVICES[name], onclick: () => use(name) });
    button.dataset.device = name;
    $("devices").append(button);
  }
  use(model.device);
}

function use(name) {
  model.device = name;
  for (const button of $("devices").children) button.setAttribute("aria-pressed", button.dataset.device === name);
  read();
}

function leaveGpu(error) {
  model.drop("webgpu", error);
  $("devices").querySelector('[data-device="webgpu"]')?.remove();
  use("wasm");
}

function layOutSamples() {
  const samples = page.samples ?? [];
  $("samples").hidden = !samples.length;
  for (const label of new Set(samples.map((sample) => sample.label))) {
    const group = samples.filter((sample) => sample.label === label);
    const drawn = (i) => picture(shares(group[i % group.length], page.input.shape), page.input.shape);
    const button = made("button", { title: page.class_names[label] }, drawn(0));
    button.setAttribute("aria-label", `Sample: ${page.class_names[label]}`);
    if (label < 10) button.setAttribute("aria-keyshortcuts", label);
    let turn = 0;
    button.addEventListener("click", () => {
      drawing.show(drawn(turn++));
      changed();
    });
    $("samples").append(button);
  }
}

function say(text, wrong = false) {
  $("status").textContent = text;
  $("status").classList.toggle("wrong", wrong);
}

function fail(error) {
  document.body.hidden = false;
  say(`It does not run here: ${String(error.message ?? error).split("\n")[0]}`, true);
  throw error;
}

$("undo").addEventListener("click", () => changed(drawing.items.pop()));
$("clear").addEventListener("click", () => changed((drawing.items = [])));
$("file").addEventListener("change", async ({ target }) => {
  if (!target.files[0]) return;
  try {
    drawing.show(await createImageBitmap(target.files[0]));
    changed();
  } catch {
    say(`${target.files[0].name} is not a picture that this browser reads`, true);
  }
  target.value = "";
});
addEventListener("keydown", (event) => {
  if (event.altKey || event.shiftKey || event.ctrlKey || event.metaKey) return;
  document.querySelector(`button[aria-keyshortcuts="${CSS.escape(event.key.toLowerCase())}"]`)?.click();
});
$("heads").addEventListener("keydown", (event) => {
  const move = ARROWS[event.key];
  if (!move) return;
  event.preventDefault();
  choose(chosen.layer + move[0], chosen.head + move[1]);
});
const matrix = $("matrix");
matrix.addEventListener("pointermove", (event) => {
  if (!answer) return;
  const { output, tokens } = page.attentions[chosen.layer];
  const index = (offset, side) => Math.min(tokens - 1, Math.max(0, Math.floor((offset / side) * tokens)));
  const [i, j] = [index(event.offsetY, matrix.clientHeight), index(event.offsetX, matrix.clientWidth)];
  $("where").textContent = `entry ${i + 1}, ${j + 1}`;
  $("entry").textContent = answer.outputs[output].data[(chosen.head * tokens + i) * tokens + j].toFixed(3);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
new ResizeObserver(() => showPaper(paper, drawing, pen)).observe(paper);

layOutHeads();
layOutSamples();
document.body.hidden = false; // nothing moves from here on
model = await Model.open(page).catch(fail);
layOutDevices();

// For tests and for the curious: the newest answer, with the pixels that the model received.
Object.defineProperty(window, "osa", { get: () => ({ page, model, answer, drawing, busy: running || waiting }) });
