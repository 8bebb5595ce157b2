// The paper: strokes and pictures, what they look like on the screen, and the pixels that the model receives.

const PEN = 0.115; // width of the pen as a share of the height of the box that drawings are placed in
const AS_DRAWN = 0.08; // where drawings are not placed
const STEP = 0.04; // of the pen that is moved by keys
export const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const xy = (of) => [of(0), of(1)];
const within = (value) => Math.min(1, Math.max(0, value));

/** Everything that was put on the paper, in units of the paper: (0, 0) to (1, 1). */
export class Drawing {
  items = []; // {points, colour} or {picture}, the oldest first
  constructor({ input, placement }) {
    [, this.channels, this.height, this.width] = input.shape;
    this.placement = placement ?? null;
    this.oversampling = Math.max(1, Math.min(4, Math.floor(512 / Math.max(this.width, this.height))));
    const canvas = document.createElement("canvas");
    canvas.width = this.width * this.oversampling;
    canvas.height = this.height * this.oversampling;
    this.raster = canvas.getContext("2d", { willReadFrequently: true });
  }

  get empty() {
    return this.items.length === 0;
  }

  get hasPicture() {
    return this.items.some((item) => item.picture);
  }

  /** Begin a stroke and return its points, to be continued. */
  begin(point, colour) {
    this.items.push({ points: [point], colour });
    return this.items.at(-1).points;
  }

  show(picture) {
    this.items = [{ picture }];
  }

  /** Draw what was put there; `transform` maps the paper to the context, in whose units the pen is. */
  paint(context, { scale, shift, pen, colour }) {
    const at = ([x, y]) => [x * scale[0] + shift[0], y * scale[1] + shift[1]];
    context.lineWidth = pen;
    context.lineCap = context.lineJoin = "round";
    for (const item of this.items) {
      if (item.picture) {
        context.imageSmoothingEnabled = item.picture.width > context.canvas.width;
        context.drawImage(item.picture, ...at([0, 0]), scale[0], scale[1]);
        continue;
      }
      context.strokeStyle = colour ?? item.colour;
      context.beginPath();
      context.moveTo(...at(item.points[0]));
      for (const point of item.points) context.lineTo(...at(point)); // a single point becomes a dot
      context.stroke();
    }
  }

  /** The place of the paper in the raster: as it is, or such that the ink fills the box that the samples fill. */
  placed() {
    const size = [this.raster.canvas.width, this.raster.canvas.height];
    if (!this.placement || this.hasPicture) return { scale: size, shift: [0, 0], pen: AS_DRAWN * size[1] };
    const points = this.items.flatMap((item) => item.points);
    const pen = PEN * this.placement.height * size[1];
    const box = [this.placement.width * size[0] - pen, this.placement.height * size[1] - pen];
    const low = xy((axis) => points.reduce((least, point) => Math.min(least, point[axis]), 1));
    const high = xy((axis) => points.reduce((most, point) => Math.max(most, point[axis]), 0));
    const extent = xy((axis) => Math.max(high[axis] - low[axis], 0.05) * size[axis]); // a dot stays small
    const fill = xy((axis) => box[axis] / extent[axis]);
    const even = Math.min(...fill);
    const slender = extent[0] * even < box[0] / 2; // as a 1, which no data set makes as wide as an 8
    const scale = xy((axis) => size[axis] * (this.placement.stretch && !slender ? fill[axis] : even));
    return { scale, shift: xy((axis) => (size[axis] - scale[axis] * (low[axis] + high[axis])) / 2), pen };
  }

  /** Paint the raster, white on black, and return its bytes. */
  painted(place) {
    const { raster } = this;
    const { width, height } = raster.canvas;
    raster.fillStyle = "#000";
    raster.fillRect(0, 0, width, height);
    this.paint(raster, { ...place, colour: this.channels === 1 ? "#fff" : undefined });
    return raster.getImageData(0, 0, width, height).data;
  }

  /** The bytes of the raster with the drawing in its place. */
  rasterised() {
    const place = this.placed();
    const bytes = this.painted(place);
    if (!this.placement?.by_mass || this.empty || this.hasPicture) return bytes;
    const { width, height } = this.raster.canvas;
    let [mass, x, y] = [0, 0, 0];
    for (let i = 0; i < width * height; i++) {
      mass += bytes[4 * i];
      x += bytes[4 * i] * ((i % width) + 0.5);
      y += bytes[4 * i] * (Math.floor(i / width) + 0.5);
    }
    const [left, top] = place.shift;
    return this.painted({ ...place, shift: [left + width / 2 - x / mass, top + height / 2 - y / mass] });
  }

  /** Shares of white, 0 to 1, as (channels, height, width): averages of the raster's blocks. */
  pixels() {
    const { width, height, channels, oversampling: n } = this;
    const data = this.rasterised();
    const shares = new Float32Array(channels * height * width);
    for (let c = 0; c < channels; c++)
      for (let y = 0; y < height * n; y++)
        for (let x = 0; x < width * n; x++) {
          const at = 4 * (y * width * n + x);
          const value = channels === 1 ? (data[at] + data[at + 1] + data[at + 2]) / 3 : data[at + c];
          shares[(c * height + Math.floor(y / n)) * width + Math.floor(x / n)] += value / (255 * n * n);
        }
    return shares;
  }
}

/** A canvas with shares (channels, height, width), for the model's view and for samples. */
export function picture(shares, [, channels, height, width], canvas = document.createElement("canvas")) {
  const image = new ImageData(width, height);
  for (let i = 0; i < width * height; i++)
    for (let c = 0; c < 4; c++)
      image.data[4 * i + c] = c === 3 ? 255 : Math.round(255 * shares[(channels === 1 ? 0 : c) * width * height + i]);
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** Let pointers and keys draw on the canvas; `changed` is called whenever they have. Returns where the keys' pen is. */
export function usePaper(canvas, drawing, colour, changed) {
  const pen = { at: [0.5, 0.5] };
  let stroke = null;
  const point = (event) => {
    const box = canvas.getBoundingClientRect();
    return [within((event.clientX - box.left) / box.width), within((event.clientY - box.top) / box.height)];
  };
  const on = (names, act) => names.split(" ").forEach((name) => canvas.addEventListener(name, act));
  on("pointerdown", (event) => {
    if (event.button !== 0 || !event.isPrimary) return;
    canvas.setPointerCapture(event.pointerId);
    stroke = drawing.begin(point(event), colour());
    changed();
  });
  on("pointermove", (event) => {
    if (!stroke || !event.isPrimary) return;
    const events = event.getCoalescedEvents?.() ?? [];
    stroke.push(...(events.length ? events : [event]).map(point));
    changed();
  });
  on("keydown", (event) => {
    const move = ARROWS[event.key];
    if (!move) return;
    event.preventDefault();
    stroke = event.shiftKey ? (stroke ?? drawing.begin(pen.at, colour())) : null;
    pen.at = xy((axis) => within(pen.at[axis] + STEP * move[axis]));
    stroke?.push(pen.at);
    changed();
  });
  on("keyup", (event) => event.key === "Shift" && (stroke = null));
  on("pointerup pointercancel", () => (stroke = null));
  on("focus blur", changed);
  return pen;
}

/** Show the paper: dark on light or light on dark, as the page is, and the pen where keys move it. */
export function showPaper(canvas, drawing, pen) {
  const [width, height] = [canvas.clientWidth, canvas.clientHeight].map((side) => Math.round(side * devicePixelRatio));
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, width, height);
  const colour = drawing.channels === 1 && !drawing.hasPicture ? getComputedStyle(canvas).color : undefined;
  drawing.paint(context, { scale: [width, height], shift: [0, 0], pen: 0.055 * height, colour });
  if (!canvas.matches(":focus-visible")) return;
  context.beginPath();
  context.arc(pen.at[0] * width, pen.at[1] * height, 0.03 * height, 0, 7);
  context.strokeStyle = getComputedStyle(canvas).outlineColor;
  context.lineWidth = 2 * devicePixelRatio;
  context.stroke();
}
