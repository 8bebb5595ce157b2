// A folder served on loopback, a headless Chromium, and a hand that draws.

import { createReadStream, existsSync, mkdtempSync, rmSync, statSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { extname, join, normalize } from "node:path";
import { chromium } from "playwright-core";

const TYPES = {
  ".html": "text/html",
  ".css": "text/css",
  ".js": "text/javascript",
  ".mjs": "text/javascript",
  ".wasm": "application/wasm",
  ".json": "application/json",
};
const QUIET = [
  "--no-sandbox",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];
export const SOFTWARE_GPU = [
  "--enable-unsafe-webgpu",
  "--use-webgpu-adapter=swiftshader",
  "--enable-features=Vulkan",
  "--use-vulkan=swiftshader",
];

/** Serve `folder` as any static server would; `changed` maps paths to other contents. */
export async function serve(folder, changed = {}) {
  const server = createServer((request, response) => {
    const path = normalize(decodeURIComponent(new URL(request.url, "http://x").pathname)).replace(/\/$/, "/index.html");
    const file = join(folder, path);
    const found = path in changed ? changed[path] : existsSync(file) && statSync(file).isFile();
    response.writeHead(found ? 200 : 404, { "content-type": TYPES[extname(path)] ?? "application/octet-stream" });
    if (found && path in changed) response.end(changed[path]);
    else if (found) createReadStream(file).pipe(response);
    else response.end();
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { address: `http://127.0.0.1:${server.address().port}/`, close: () => server.close() };
}

/** A browser; `flags` as for SOFTWARE_GPU. Its `close` also removes its profile. */
export async function launch(flags = ["--disable-gpu"]) {
  const profile = mkdtempSync(join(tmpdir(), "osa-browser-"));
  const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
  const context = await chromium.launchPersistentContext(profile, {
    executablePath,
    headless: true,
    args: [...QUIET, ...flags],
  });
  const browser = context.browser() ?? context;
  return {
    context,
    browser,
    close: async () => (await context.close(), rmSync(profile, { recursive: true, force: true })),
  };
}

/** Open the page and wait until the model is there; `problems` gathers what goes wrong. */
export async function open(context, address, { size = [1280, 800], scheme = "light", motion = "no-preference" } = {}) {
  const page = await context.newPage();
  await page.setViewportSize({ width: size[0], height: size[1] });
  await page.emulateMedia({ colorScheme: scheme, reducedMotion: motion });
  const problems = [];
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && problems.push(message.text()));
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("requestfailed", (request) => problems.push(`failed: ${request.url()}`));
  page.on(
    "request",
    (request) =>
      request.url().startsWith(address) ||
      /^(data|blob):/.test(request.url()) ||
      problems.push(`elsewhere: ${request.url()}`),
  );
  await page.goto(address);
  await idle(page);
  return { page, problems };
}

export const idle = (page) =>
  page.waitForFunction(() => window.osa?.model && !window.osa.busy && window.osa.answer, null, { timeout: 60_000 });

/** Draw with the mouse; points are in units of the paper. */
export async function draw(page, strokes) {
  const box = await page.locator("#paper").boundingBox();
  const at = ([x, y]) => [box.x + x * box.width, box.y + y * box.height];
  for (const [first, ...rest] of strokes) {
    await page.mouse.move(...at(first));
    await page.mouse.down();
    for (const point of rest) await page.mouse.move(...at(point), { steps: 4 });
    await page.mouse.up();
  }
  await idle(page);
}

const arc = (cx, cy, rx, ry, from, to, n = 16) =>
  Array.from({ length: n + 1 }, (_, i) => {
    const angle = ((from + ((to - from) * i) / n) * Math.PI) / 180;
    return [cx + rx * Math.cos(angle), cy + ry * Math.sin(angle)];
  });

/** The ten digits as a person draws them: off centre and of different sizes. */
export const DIGITS = [
  [arc(0.5, 0.5, 0.2, 0.3, -90, 270)],
  [
    [
      [0.42, 0.3],
      [0.55, 0.18],
      [0.55, 0.85],
    ],
  ],
  [[...arc(0.5, 0.35, 0.2, 0.17, 180, 390), [0.3, 0.8], [0.74, 0.8]]],
  [[...arc(0.48, 0.34, 0.18, 0.15, 200, 440), ...arc(0.48, 0.65, 0.2, 0.17, -80, 160)]],
  [
    [
      [0.42, 0.18],
      [0.3, 0.55],
      [0.72, 0.55],
    ],
    [
      [0.6, 0.3],
      [0.58, 0.85],
    ],
  ],
  [[[0.68, 0.2], [0.38, 0.2], [0.35, 0.46], ...arc(0.5, 0.62, 0.19, 0.19, 235, 500)]],
  [[[0.6, 0.15], [0.42, 0.4], ...arc(0.5, 0.65, 0.16, 0.17, 200, 560)]],
  [
    [
      [0.28, 0.22],
      [0.7, 0.22],
      [0.45, 0.85],
    ],
  ],
  [[...arc(0.5, 0.35, 0.14, 0.15, 90, 450), ...arc(0.5, 0.66, 0.17, 0.17, -90, 270)]],
  [[...arc(0.5, 0.36, 0.16, 0.17, 0, 360), [0.65, 0.5], [0.6, 0.85]]],
];
