"""Rounds of blocks: at each point all contenders take their turn, and the next round begins with another of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from serving_load.contender import Contender
from serving_load.grpc_connection import GrpcConnection
from serving_load.http_connection import HttpConnection
from serving_load.load import Block, run_block
from serving_load.machine import Busyness
from serving_load.messages import BadAnswer
from serving_load.models import Served

PAUSE, WARM_UP, RUN_SECONDS = 0.2, 0.4, 0.5


class Point(NamedTuple):
    model: str
    protocol: str
    concurrency: int


@dataclass
class Series:
    """The blocks of one contender at one point, one per round; or why there are none.

    ``cpu`` has the seconds that the server computed per request: other processes hardly change it.
    """

    blocks: list[Block] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    failure: str = ""


Table = dict[tuple[str, Point], Series]


@dataclass
class Measured:
    """``others`` has the cores that everybody else used, per block; ``runs`` the models' own seconds, per round."""

    table: Table = field(default_factory=dict)
    others: list[float] = field(default_factory=list)
    runs: dict[str, list[float]] = field(default_factory=dict)


def measure(
    contenders: Sequence[Contender],
    models: Sequence[Served],
    plan: Mapping[Point, Sequence[str]],
    rounds: int,
    seconds: float,
) -> Measured:
    """``plan`` says which contenders are asked at which point."""
    measured, by_name = Measured(), {model.name: model for model in models}
    for number in range(rounds):
        for model in models:
            measured.runs.setdefault(model.name, []).append(model.run_time(RUN_SECONDS))
        for contender, point in _turns(contenders, plan, number):
            series = measured.table.setdefault((contender.name, point), Series())
            if series.failure:
                continue  # who answers wrongly gets no figure
            busyness = Busyness(contender.processes)
            try:
                block = _block(contender, by_name[point.model], point, seconds)
            except (BadAnswer, OSError) as error:
                series.failure, series.blocks, series.cpu = str(error), [], []
                continue
            used, others = busyness.look()
            series.blocks.append(block)
            series.cpu.append(used / block.answers)
            measured.others.append(others)
        print(f"round {number + 1} of {rounds} done", flush=True)
    return measured


def _turns(
    contenders: Sequence[Contender], plan: Mapping[Point, Sequence[str]], number: int
) -> Iterator[tuple[Contender, Point]]:
    for point, names in plan.items():
        there = [contender for contender in contenders if contender.name in names]
        first = number % len(there) if there else 0
        for contender in (*there[first:], *there[:first]):
            yield contender, point


def _block(contender: Contender, model: Served, point: Point, seconds: float) -> Block:
    time.sleep(PAUSE)
    grpc = point.protocol == "grpc"
    return run_block(
        GrpcConnection if grpc else HttpConnection,
        contender.grpc if grpc else contender.http,
        model.questions,
        point.protocol,
        point.concurrency,
        WARM_UP,
        seconds,
    )
