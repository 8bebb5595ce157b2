"""A step of training, forward, backward and optimiser, with orthogonal attention and with softmax.

The digits model with the batch and the threads of `osa train digits`, and an encoder of 1024 tokens with a batch of 8.
The softmax model is the same but for its attention, which is torch's ``scaled_dot_product_attention``. Both take turns
in blocks; the peak memory of a step is measured in processes of their own.

    python benchmarks/training.py [--rounds 15] [--threads 2] [--quick] [--out DIR]
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from speed.contest import Contest, Pace, all_doubts, compete
from speed.model_contenders import DIGITS, QUICK, Subject, encoder_config
from speed.report import Report, Verdict, facts_of, judge, mebi, parse, parser_of, table, time_cell
from torch import nn

from osa_runtime.benchmarking.memory import CLEAR, RESET_PEAK, memory_can_be_measured, status_bytes
from osa_runtime.training.settings import TrainingSettings

OURS, SOFTMAX = "osa", "softmax"
ENCODER = Subject("encoder", encoder_config(1024, 6), 1024)


@dataclass(frozen=True)
class Lesson:
    """A model and its batch.

    The targets: ``slowest``, the time of our step over that of the softmax model's, and, where many tokens decide what
    memory a step takes, no more of it.
    """

    subject: Subject
    batch: int
    threads: int
    slowest: float
    long: bool = True

    def step(self, attention: str) -> Callable[[], float]:
        """A step like that of the training loop; returns the loss."""
        model, x = self.subject.build(attention).requires_grad_(True).train(), self.subject.inputs(self.batch)
        labels = torch.arange(self.batch) % self.subject.config.classes
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


def lessons(threads: int, quick: bool) -> list[Lesson]:
    digits, encoder = QUICK if quick else (DIGITS, ENCODER)
    settings = TrainingSettings().resolved((8, 8))
    return [
        Lesson(digits, settings.batch_size, settings.threads or 1, 1.4, long=False),
        Lesson(encoder, 8, threads, 1.0),
    ]


def measure(lesson: Lesson, pace: Pace) -> Contest:
    print(f"{lesson.subject.name}: time", flush=True)
    torch.set_num_threads(lesson.threads)
    return compete({name: lesson.step(name) for name in (OURS, SOFTMAX)}, pace, lesson.threads)


def weigh(number: int, attention: str, options: Any) -> int | None:
    """The peak growth of a fresh process through three steps, in bytes; None where it cannot be measured."""
    if not memory_can_be_measured():
        return None
    quick = ["--quick"] if options.quick else []
    command = [sys.executable, __file__, "--threads", str(options.threads), *quick, "--weigh", str(number), attention]
    child = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(json.loads(child.stdout))


def weigh_here(lesson: Lesson, attention: str) -> int:
    torch.set_num_threads(lesson.threads)
    step = lesson.step(attention)
    before = status_bytes("VmRSS")
    CLEAR.write_text(RESET_PEAK)
    for _ in range(3):
        step()
    return status_bytes("VmHWM") - before


def verdicts(found: Sequence[tuple[Lesson, Contest, Mapping[str, int | None]]]) -> Iterator[Verdict]:
    for lesson, contest, memory in found:
        name, slower = lesson.subject.name, contest.ratio(SOFTMAX, OURS)  # how many times as fast softmax is
        target = f"{name}: a step takes at most {lesson.slowest:g} × the softmax model's"
        yield judge(target, slower, most=lesson.slowest)
        if not lesson.long:
            continue
        ours, theirs = memory[OURS], memory[SOFTMAX]
        target = f"{name}: the peak memory of a step is no larger than the softmax model's"
        yield judge(target, None if ours is None or theirs is None else ours / theirs, most=1)


def build_report(found: Sequence[tuple[Lesson, Contest, Mapping[str, int | None]]], facts: Mapping[str, Any]) -> Report:
    doubts = all_doubts({lesson.subject.name: contest for lesson, contest, _ in found})
    sections, content = [], []
    for lesson, contest, memory in found:
        config = lesson.subject.config
        sizes = f"{config.depth} × {config.dim}, {config.heads} heads, {lesson.subject.tokens} tokens"
        sections.append(f"## {lesson.subject.name}: {sizes}, batch {lesson.batch}, {lesson.threads} threads\n")
        rows = [[name, time_cell(contest, name), mebi(memory[name])] for name in (OURS, SOFTMAX)]
        sections.append(table(["attention", "ms of a step", "MiB"], rows))
        content.append({"model": lesson.subject.name, "batch": lesson.batch, **contest.as_dict(memory=memory)})
    about = "Skipless models with ‖S‖₂ = 2 in every layer; the softmax model differs in its attention alone.\n"
    judged = list(verdicts(found))
    return Report("training", "Steps of training", facts, doubts, {"steps": content}, sections, judged, about=about)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--weigh", nargs=2, metavar=("LESSON", "ATTENTION"), help="print the memory of one, in bytes")
    options = parse(parser, arguments)
    chosen = lessons(options.threads, options.quick)
    if options.weigh:
        print(json.dumps(weigh_here(chosen[int(options.weigh[0])], options.weigh[1])))
        return
    facts = facts_of(options)
    found = []
    for number, lesson in enumerate(chosen):
        memory = {name: weigh(number, name, options) for name in (OURS, SOFTMAX)}
        found.append((lesson, measure(lesson, options.pace), memory))
    build_report(found, facts).write(options.out)


if __name__ == "__main__":
    main()
