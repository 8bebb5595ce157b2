"""Run an exported digits model on the test images that training never saw, in ONNX Runtime, and show some of them.

python examples/read_digits.py runs/digits-onnx
"""

from __future__ import annotations

import sys

import numpy as np

import osa_runtime
from osa_runtime.training import load_dataset

SHADES = " .:-=+*#%@"


def drawn(image: np.ndarray) -> list[str]:
    """An image as lines of text, two characters to a pixel."""
    levels = np.interp(image, (image.min(), image.max()), (0, len(SHADES) - 1)).astype(int)
    return ["".join(SHADES[level] * 2 for level in row) for row in levels]


def main(artifact: str) -> None:
    digits = load_dataset("digits")
    with osa_runtime.load(artifact) as session:
        logits = session.run({"images": digits.x_test}, check_finite=True)["logits"]
    read = logits.argmax(1)
    print(f"{(read == digits.y_test).mean():.2%} of {len(read)} unseen digits are read correctly in ONNX Runtime.\n")
    first = [drawn(image[0]) for image in digits.x_test[:4]]
    for lines in zip(*first, strict=True):
        print("   ".join(lines))
    print(
        "   ".join(
            f"read {answer}, is {label}".center(16) for answer, label in zip(read[:4], digits.y_test, strict=False)
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
