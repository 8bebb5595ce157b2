"""Whole models in every format: the digits ViT, a ViT-S-sized model, and an encoder of 4096 tokens.

Contenders: ONNX Runtime, TorchScript, pt2, eager, torch.compile where its compiler works, and the softmax model of the
same sizes in ONNX Runtime, in the fastest of its ways. All have the same inputs and threads and take turns in blocks.
Beside times: throughput, peak memory in processes of their own, load times, sizes, and errors against float64.

    python benchmarks/model.py [--rounds 15] [--threads 2] [--models digits,vit-s,encoder] [--quick] [--out DIR]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from speed import model_report, models, results
from speed.model_contenders import ModelResult, measure_model
from speed.model_plots import draw_models
from speed.model_targets import verdicts
from speed.plots import mark_noisy
from speed.repeated import help_seconds

from osa_runtime.benchmarking.machine import describe_machine

NAMED = {"digits": models.DIGITS, "vit-s": models.VIT_S, "encoder": models.ENCODER}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    results.add_options(parser)
    parser.add_argument("--models", default=",".join(NAMED), help="with commas; %(default)s by default")
    chosen = results.checked(parser, None if arguments is None else list(arguments))
    unknown = set(chosen.models.split(",")) - set(NAMED)
    if unknown:
        parser.error(f"--models has {', '.join(sorted(unknown))}; known are {', '.join(NAMED)}")
    return chosen


def say(text: str) -> None:
    print(text, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = parse(arguments)
    machine = describe_machine()
    subjects = models.QUICK if chosen.quick else [NAMED[name] for name in chosen.models.split(",")]
    found: list[ModelResult] = [measure_model(subject, chosen.pace, chosen.threads, say) for subject in subjects]
    started = help_seconds(repeats=3) if chosen.quick else help_seconds()
    plots = {"Milliseconds by model and batch": "model-time.svg"}
    facts = {
        "machine": machine,
        "threads": chosen.threads,
        "rounds": chosen.pace.rounds,
        "help_seconds": started,
        "plots": plots,
    }
    judged = list(verdicts(found, started))
    text = model_report.as_markdown(found, facts, judged)
    figure = draw_models(found)
    if model_report.doubts(found):
        mark_noisy(figure)
    content = model_report.as_json(found, facts, judged)
    results.write(chosen.out, "model", content, text, dict.fromkeys(plots.values(), figure))


if __name__ == "__main__":
    main()
