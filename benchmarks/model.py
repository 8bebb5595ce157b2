"""Whole models in every format: the digits ViT, a ViT-S-sized model, and an encoder of 4096 tokens.

Contenders: ONNX Runtime, TorchScript, pt2, eager, torch.compile where its compiler works, and the softmax model of the
same sizes in ONNX Runtime, in the fastest of its ways. All have the same inputs and threads and take turns in blocks.
Next to times: throughput, peak memory in processes of their own, load times, sizes, and errors against float64.

    python benchmarks/model.py [--rounds 15] [--threads 2] [--models digits,vit-s,encoder] [--quick] [--out DIR]
"""

import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from speed.model_contenders import DIGITS, ENCODER, LOADS, QUICK, VIT_S, measure_model
from speed.model_report import build_report
from speed.report import facts_of, parse, parse_names, parser_of

from osa_runtime.benchmarking.timing import timed_opening

NAMED = {"digits": DIGITS, "vit-s": VIT_S, "encoder": ENCODER}


def help_seconds(repeats: int) -> float | None:
    """Of ``osa --help``; None where the command is not installed next to this interpreter."""
    command = Path(sys.executable).with_name("osa")
    run = partial(subprocess.run, [command, "--help"], capture_output=True, check=True)
    return timed_opening(run, repeats)[1] if command.exists() else None


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--models", default=",".join(NAMED), help="with commas; %(default)s by default")
    options = parse(parser, arguments)
    names = parse_names(parser, "--models", options.models, NAMED)
    facts = facts_of(options)
    subjects = QUICK if options.quick else [NAMED[name] for name in names]
    results = [measure_model(subject, options.pace, options.threads) for subject in subjects]
    facts["help_seconds"] = help_seconds(3 if options.quick else LOADS)
    build_report(results, facts).write(options.out)


if __name__ == "__main__":
    main()
