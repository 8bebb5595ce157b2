"""Whole models in every format: the digits ViT, a ViT-S-sized model, and an encoder of 4096 tokens.

Contenders: ONNX Runtime, TorchScript, pt2, eager, torch.compile where its compiler works, and the softmax model of the
same sizes in ONNX Runtime, in its fastest variant. All have the same inputs and threads and take turns in blocks.
With --smaller they also run in fp16 and in 8 bits. Next to times: peak memory in processes of their own, load times,
sizes, and errors against float64.

    python benchmarks/model.py [--rounds 15] [--threads 2] [--models digits,vit-s,encoder] [--smaller] [--quick]
"""

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from contenders import models
from contenders.models import DIGITS, EAGER, ENCODER, ORT, QUICK, SMALLER, VIT_S, Point
from driver.benchmark import Benchmark, names_of
from driver.contest import Contest, Row
from driver.report import Verdict, judge

NAMED = {"digits": DIGITS, "vit-s": VIT_S, "encoder": ENCODER}


def contests(options: argparse.Namespace) -> Iterator[Contest]:
    for subject in QUICK if options.quick else [NAMED[name] for name in options.models]:
        with tempfile.TemporaryDirectory() as folder:
            names = (*models.ALL, *SMALLER) if options.smaller else models.ALL
            opened = models.OpenedModel(subject, options.threads, Path(folder), names)
            for batch in subject.batches:
                yield opened.contest(batch)


def targets(rows: Mapping[Point, Row]) -> Iterator[Verdict]:
    for peer, least in ((EAGER, 1.5), (models.COMPILED, 1.0)):
        for batch in VIT_S.batches:
            row = rows.get(Point(VIT_S.name, batch))
            title = f"ViT-S in ONNX Runtime, batch {batch}: {least:g} × as fast as {peer}"
            yield judge(title, row and row.ratio(ORT, peer), least=least)
    for subject, first, again in ((VIT_S, 500, 200), (DIGITS, 150, 40)):
        row, title = rows.get(Point(subject.name, 1)), f"{subject.name} is loaded in at most"
        yield judge(f"{title} {first} ms", row and row.figure(ORT, models.LOAD), "{:.0f} ms", most=first)
        yield judge(
            f"{title} {again} ms from the cache", row and row.figure(ORT, models.CACHED), "{:.0f} ms", most=again
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    known = ",".join(NAMED)
    parser.add_argument("--models", type=names_of(NAMED), default=known, help="with commas; %(default)s by default")
    parser.add_argument("--smaller", action="store_true", help="also in fp16 and in 8 bits; see docs/quantization.md")


BENCHMARK = Benchmark(
    description=__doc__,
    name="model",
    title="Whole models",
    about=f"{DIGITS}, {VIT_S} and {ENCODER}: {models.SKIPLESS} × is how many times as fast the first is. A process "
    "of its own grows from before it loads the model, its libraries not counted.",
    contests=contests,
    targets=targets,
    contenders=(*models.ALL, *SMALLER),
    ratios={f"{ORT} × {peer}": (ORT, peer) for peer in (EAGER, models.COMPILED, models.SOFTMAX)}
    | {f"{name} × fp32": (name, ORT) for name in SMALLER},
    across=True,
    add_options=add_options,
)

if __name__ == "__main__":
    BENCHMARK.run()
