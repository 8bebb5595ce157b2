// Attention matrices: as colours, and their distance from orthogonality.

/** ‖AᵀA − I‖ in the Frobenius norm, in double precision, of the n × n matrix at `from`. */
export function defect(a, n, from) {
  let sum = 0;
  for (let i = 0; i < n; i++)
    for (let j = i; j < n; j++) {
      let product = i === j ? -1 : 0;
      for (let k = 0; k < n; k++) product += a[from + k * n + i] * a[from + k * n + j];
      sum += (i === j ? 1 : 2) * product * product;
    }
  return Math.sqrt(sum);
}

/** The colours of −1, 0 and 1 on the page as it is now, light or dark. */
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const triple = (name) => style.getPropertyValue(name).split(",").map(Number);
  const hex = style.getPropertyValue("--raised").trim();
  return {
    plus: triple("--plus"),
    minus: triple("--minus"),
    zero: [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)),
  };
}

/** Paint the n × n matrix at `from`, a pixel per entry. Colours grow as √|a|, or small entries could not be seen. */
export function paintMatrix(canvas, a, n, from, { plus, minus, zero }) {
  if (canvas.width !== n) canvas.width = canvas.height = n;
  const image = new ImageData(n, n);
  for (let i = 0; i < n * n; i++) {
    const value = a[from + i];
    const full = value < 0 ? minus : plus;
    const share = Math.sqrt(Math.min(1, Math.abs(value)));
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = zero[c] + share * (full[c] - zero[c]);
    image.data[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}
