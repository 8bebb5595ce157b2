"""Where results go, and the options that all benchmarks have."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from osa_runtime.atomic import atomic_file
from osa_runtime.benchmarking.machine import usable_cores
from speed.contest import LEAST_ROUNDS, Pace
from speed.plots import save

RESULTS = Path(__file__).resolve().parent.parent / "results"
QUICK = Pace(rounds=2, block_seconds=0.005, pause=0.01)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=LEAST_ROUNDS, help=f"{LEAST_ROUNDS} or more for figures to trust")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="of every contender; all cores by default")
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds, to see that it works")
    parser.add_argument("--out", type=Path, help=f"a folder; {RESULTS.name}/ beside the script, or quick/ in it")


def checked(parser: argparse.ArgumentParser, arguments: list[str] | None) -> argparse.Namespace:
    chosen = parser.parse_args(arguments)
    for name in ("rounds", "threads"):
        if getattr(chosen, name) < 1:
            parser.error(f"--{name} is {getattr(chosen, name)}, expected a whole number of at least 1")
    chosen.out = chosen.out or (RESULTS / "quick" if chosen.quick else RESULTS)
    chosen.pace = QUICK if chosen.quick else Pace(rounds=chosen.rounds)
    return chosen


def write(folder: Path, name: str, content: Mapping[str, Any], text: str, plots: Mapping[str, Figure]) -> None:
    with atomic_file(folder / f"{name}.json") as path:
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    with atomic_file(folder / f"{name}.md") as path:
        path.write_text(text, encoding="utf-8")
    for file, figure in plots.items():
        save(figure, folder / file)
    print(text)
    print(f"wrote {', '.join([f'{name}.json', f'{name}.md', *plots])} to {folder}")
