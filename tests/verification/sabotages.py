"""Many ways in which an exported model can be wrong, most of them so that it is right on ordinary inputs.

``PYTHONPATH=tests python tests/verification/sabotages.py`` verifies each and prints the table of docs/verification.md.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from sabotaged import Bases, Sabotage, accusations, caught_by
from sabotages_manifest import OF_MANIFESTS
from sabotages_onnx import OF_ONNX
from sabotages_quantised import OF_QUANTISED
from sabotages_torch import OF_TORCH

from made_once import kept_in

SABOTAGES = [*OF_ONNX, *OF_MANIFESTS, *OF_TORCH, *OF_QUANTISED]


def row(sabotage: Sabotage, bases: Bases, out: Path) -> str:
    certificate = sabotage.judged(bases, out)
    found = accusations(certificate)
    said = next((text for text in found if sabotage.names(text)), f"NOT NAMED: {found[:2]}")
    words = (sabotage.fault, sabotage.format, ", ".join(caught_by(certificate)), said.split("; ")[0])
    return " | ".join(["", *(word.replace("|", "‖") for word in words), ""]).strip() + "\n"


def main(start: int = 0) -> None:
    sys.stdout.write("| fault | format | caught by | message |\n|---|---|---|---|\n")
    with tempfile.TemporaryDirectory() as home, kept_in(Path(home) / "exports"):
        bases = Bases(Path(home))
        for number, sabotage in enumerate(SABOTAGES[start:]):
            sys.stdout.write(row(sabotage, bases, Path(home) / f"broken-{number}"))
            sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
