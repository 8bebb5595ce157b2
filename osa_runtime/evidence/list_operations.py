"""ListOps (Nangia & Bowman, 2018), made on the spot: nested lists of digits whose value, a digit, is the class.

    [MAX 4 [MIN 7 2 ] 3 ]  →  4

Its value depends on the whole of the sequence, so that a model must look far.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from osa_runtime.atomic import atomic_file

OPERATIONS: dict[str, Callable[[Sequence[int]], int]] = {
    "[MAX": max,
    "[MIN": min,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}
CLOSE = "]"
TOKENS = (*map(str, range(10)), *OPERATIONS, CLOSE)
MOST_ARGUMENTS, DEEPEST = 8, 6


def value_of(tokens: Sequence[str]) -> int:
    """The value of an expression, by a stack."""
    stack: list[list[int]] = [[]]
    operations: list[str] = []
    for token in tokens:
        if token in OPERATIONS:
            operations.append(token)
            stack.append([])
        elif token == CLOSE:
            values = stack.pop()
            stack[-1].append(OPERATIONS[operations.pop()](values))
        else:
            stack[-1].append(int(token))
    return stack[0][0]


def expression(length: int, generator: random.Random, depth: int = DEEPEST) -> list[str]:
    """An expression of about, and at most, ``length`` tokens; a list has at least one argument."""
    if length < 3 or depth == 0:
        return [str(generator.randrange(10))]
    inside, left = [generator.choice(list(OPERATIONS))], length - 2
    arguments = generator.randint(2, MOST_ARGUMENTS)
    while left > 0:
        part = expression(min(left, max(1, (length - 2) // arguments)), generator, depth - 1)
        inside += part
        left -= len(part)
    return [*inside, CLOSE]


def write_list_operations(path: Path, train: int, test: int, longest: int, seed: int = 0) -> None:
    """An .npz for ``osa train --model encoder``, with sequences from a quarter of ``longest`` to ``longest``."""
    generator = random.Random(seed)
    arrays: dict[str, Any] = {}
    for suffix, count in (("", train), ("_test", test)):
        made = [expression(generator.randint(max(3, longest // 4), longest), generator) for _ in range(count)]
        x = np.zeros((count, longest), np.int64)
        for row, tokens in enumerate(made):
            x[row, : len(tokens)] = [TOKENS.index(token) for token in tokens]
        arrays |= {f"x{suffix}": x, f"y{suffix}": np.array([value_of(tokens) for tokens in made])}
        arrays[f"lengths{suffix}"] = np.array([len(tokens) for tokens in made])
    with atomic_file(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, **arrays)
