"""One block of load: so many connections, each sends its next request when the last one is answered.

The client does as little as it can while the clock runs: requests are bytes made before, answers are kept as bytes and
checked afterwards, every one of them.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import uvloop

from serving_load.messages import BadAnswer, Question

PATIENCE = 10.0  # seconds beyond the end of a block in which nothing was answered


@dataclass
class Recorder:
    """What all connections of a block share."""

    requests: Sequence[bytes]
    end: float
    answers: list[tuple[int, float, float, bytes]] = field(default_factory=list)  # (request, sent, answered, bytes)
    failure: str = ""
    open: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def leave(self, failure: str = "") -> None:
        self.failure = self.failure or failure
        self.open -= 1
        if self.open == 0 or failure:
            self.done.set()


Connect = Callable[[Recorder, int], asyncio.Protocol]


@dataclass(frozen=True)
class Block:
    """Requests per second and the latencies, in seconds, after the warm-up; ``answers`` counts all of the block."""

    rate: float
    median: float
    p99: float
    answers: int


def run_block(
    connect: Connect,
    addresses: Sequence[tuple[str, int]],
    questions: Sequence[Question],
    protocol: str,
    concurrency: int,
    warm_up: float,
    seconds: float,
) -> Block:
    """Raises BadAnswer when one answer is wrong, late or missing."""
    requests = [question.encode(protocol) for question in questions]
    gc.collect()
    gc.disable()
    try:
        recorder = uvloop.run(_drive(connect, addresses, requests, concurrency, warm_up + seconds))
    finally:
        gc.enable()
    for index, _, _, answer in recorder.answers:
        questions[index].check(protocol, answer)  # first: an error that was answered says more than a lost connection
    if recorder.failure:
        raise BadAnswer(recorder.failure)
    start, end = recorder.end - seconds, recorder.end
    times = sorted(done - sent for _, sent, done, _ in recorder.answers if start <= done < end)
    if not times:
        raise BadAnswer("no answer came within the measured time")
    return Block(
        len(times) / seconds, statistics.median(times), times[int(0.99 * (len(times) - 1))], len(recorder.answers)
    )


async def _drive(
    connect: Connect, addresses: Sequence[tuple[str, int]], requests: Sequence[bytes], concurrency: int, seconds: float
) -> Recorder:
    loop = asyncio.get_running_loop()
    recorder = Recorder(requests, time.perf_counter() + seconds, open=concurrency)
    transports = []
    for number in range(concurrency):
        host, port = addresses[number % len(addresses)]
        transport, _ = await loop.create_connection(lambda number=number: connect(recorder, number), host, port)
        transports.append(transport)
    try:
        await asyncio.wait_for(recorder.done.wait(), seconds + PATIENCE)
    except TimeoutError:
        recorder.failure = f"{recorder.open} connections were still waiting {PATIENCE:g} s after the end"
    for transport in transports:
        transport.close()
    return recorder
