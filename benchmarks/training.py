"""A step of training, forward, backward and optimiser, with orthogonal attention and with softmax.

The digits model with the batch and the threads of `osa train digits`, and an encoder of 1024 tokens with a batch of 8.
The softmax model is the same but for its attention, which is torch's ``scaled_dot_product_attention``. Both take turns
in blocks; the peak memory of a step is measured in processes of their own.

    python benchmarks/training.py [--rounds 15] [--threads 2] [--quick] [--out DIR]
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple

import torch
from contenders.models import DIGITS, QUICK, SKIPLESS, Subject, encoder_config
from driver.benchmark import Benchmark
from driver.contest import Contest, Figures, Row, Variant
from driver.report import MIB, Verdict, judge
from torch import nn

from osa_runtime.benchmarking.memory import CLEAR, RESET_PEAK, memory_can_be_measured, status_bytes
from osa_runtime.training.settings import TrainingSettings

OURS, SOFTMAX = "osa", "softmax"
ENCODER = Subject("encoder", encoder_config(1024, 6), 1024)
MEMORY = "MiB by which a process of its own grew through a step"


class Point(NamedTuple):
    model: str
    batch: int
    threads: int

    def __str__(self) -> str:
        return self.model


def contests(options: argparse.Namespace) -> Iterator[Contest]:
    digits, encoder = QUICK if options.quick else (DIGITS, ENCODER)
    settings = TrainingSettings().resolved((8, 8))
    for subject, batch, threads in (
        (digits, settings.batch_size, settings.threads or 1),
        (encoder, 8, options.threads),
    ):
        steps = {name: {"": Variant(prepare_step(subject, name, batch))} for name in (OURS, SOFTMAX)}
        weigh = partial(memory_of_step, subject, batch, threads)
        yield Contest(Point(subject.name, batch, threads), steps, threads, weigh=weigh)


def prepare_step(subject: Subject, attention: str, batch: int) -> Callable[[], float]:
    """A step like that of the training loop; returns the loss."""
    model, x = subject.build(attention).requires_grad_(True).train(), subject.inputs(batch)
    labels = torch.arange(batch) % subject.config.classes
    # A rate of zero: the step costs the same, and ‖S‖ stays as it was.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)

    def run() -> float:
        loss = nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return run


def memory_of_step(subject: Subject, batch: int, threads: int, attention: str, _: str) -> Figures:
    if not memory_can_be_measured():
        return {}
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        return {MEMORY: fresh.submit(grown_by_steps, subject, attention, batch, threads).result() / MIB}


def grown_by_steps(subject: Subject, attention: str, batch: int, threads: int) -> int:
    torch.set_num_threads(threads)
    step = prepare_step(subject, attention, batch)
    before = status_bytes("VmRSS")
    CLEAR.write_text(RESET_PEAK)
    for _ in range(3):
        step()
    return status_bytes("VmHWM") - before


def targets(rows: Mapping[Point, Row]) -> Iterator[Verdict]:
    for point, row in rows.items():
        long = point.model != DIGITS.name  # many tokens decide what memory a step takes
        most = 1.0 if long else 1.4
        slower = row.ratio(SOFTMAX, OURS)  # how many times as fast softmax is
        yield judge(f"{point}: a step takes at most {most:g} × the softmax model's", slower, most=most)
        if long:
            ours, theirs = row.figure(OURS, MEMORY), row.figure(SOFTMAX, MEMORY)
            target = f"{point}: the peak memory of a step is no larger than the softmax model's"
            yield judge(target, ours / theirs if ours and theirs else None, most=1)


BENCHMARK = Benchmark(
    description=__doc__,
    name="training",
    title="Steps of training",
    about=f"{DIGITS} and {ENCODER}: {SKIPLESS}",
    contests=contests,
    targets=targets,
    contenders=(OURS, SOFTMAX),
    ratios={"×": (OURS, SOFTMAX)},
)

if __name__ == "__main__":
    BENCHMARK.run()
