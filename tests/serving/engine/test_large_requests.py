"""Large requests share one budget; they are read one at a time, away from the event loop."""

from __future__ import annotations

import asyncio
import threading
import time

import numpy as np
import pytest

from osa_runtime.serving.engine import limits
from osa_runtime.serving.engine.limits import AHEAD, AT_ONCE, LargeRequests
from osa_runtime.serving.engine.messages import InferenceRequest, InferenceResponse
from osa_runtime.serving.refusals import TooSlow, Unavailable

pytestmark = pytest.mark.slow


def test_the_event_loop_goes_on_while_one_is_read_after_the_other() -> None:
    async def main() -> None:
        large = LargeRequests(10)
        main_thread = threading.get_ident()
        at_once: list[int] = []
        under_way = 0

        def read(number: int) -> int:
            nonlocal under_way
            assert threading.get_ident() != main_thread
            under_way += 1
            at_once.append(under_way)
            time.sleep(0.02)
            under_way -= 1
            return number

        futures = [large.submit(read, number) for number in range(4)]
        assert not any(future.done() for future in futures)
        assert await asyncio.gather(*futures) == list(range(4))
        assert at_once == [1] * 4
        large.close()

    asyncio.run(main())


def test_an_error_while_reading_is_raised_to_the_one_who_waits() -> None:
    async def main() -> None:
        large = LargeRequests(10)
        with pytest.raises(ZeroDivisionError):
            await large.submit(lambda: 1 / 0)
        assert await large.submit(int) == 0
        large.close()

    asyncio.run(main())


def test_messages_that_have_come_and_wait_are_limited_and_leave_their_place() -> None:
    async def main() -> None:
        large = LargeRequests(10)
        leave = asyncio.Event()
        answered: list[int] = []

        async def take(number: int) -> None:
            async with large.room(10, held=10):
                await leave.wait()
                answered.append(number)

        tasks = [asyncio.create_task(take(number)) for number in range(AT_ONCE + AHEAD)]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="wait to be read; try again later"):
            await take(-1)
        tasks.pop().cancel()  # its client has left
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(take(AT_ONCE + AHEAD)))
        leave.set()
        await asyncio.gather(*tasks)
        assert answered == [*range(AT_ONCE + AHEAD - 1), AT_ONCE + AHEAD]
        async with large.room(10 * AT_ONCE):  # all of it is free again
            pass
        large.close()

    asyncio.run(main())


@pytest.mark.parametrize(("rate", "fast_enough"), [(0.5, False), (2.0, True)])
def test_a_slow_body_loses_its_room_when_others_wait(
    monkeypatch: pytest.MonkeyPatch, rate: float, fast_enough: bool
) -> None:
    monkeypatch.setattr(limits, "PATIENCE", 0.05)
    monkeypatch.setattr(limits, "RATE", 1000)

    async def main() -> None:
        large = LargeRequests(10)
        begin = time.monotonic()

        async def send() -> None:
            async with large.room(20) as place, place.receiving(lambda: int((time.monotonic() - begin) * rate * 1000)):
                await asyncio.sleep(0.4)

        slow = asyncio.create_task(send())
        await asyncio.sleep(0.2)
        assert not slow.done()  # nobody waits: it has all the time that requests have
        async with large.room(10):
            waited = time.monotonic() - begin
        assert (waited > 0.4) == fast_enough
        if fast_enough:
            await slow
        else:
            with pytest.raises(TooSlow, match="less than 1000 bytes per second while others waited"):
                await slow
        large.close()

    asyncio.run(main())


def test_requests_beyond_the_room_wait_in_their_order() -> None:
    async def main() -> None:
        large = LargeRequests(10)
        entered: list[str] = []
        leave = {name: asyncio.Event() for name in "abcd"}

        async def take(name: str, size: int) -> None:
            async with large.room(size):
                entered.append(name)
                await leave[name].wait()

        tasks = {
            name: asyncio.create_task(take(name, size)) for name, size in zip("abcd", (15, 10, 10, 5), strict=True)
        }
        await asyncio.sleep(0.01)
        assert entered == ["a"]  # d would fit, and does not overtake
        tasks["b"].cancel()
        leave["a"].set()
        await asyncio.sleep(0.01)
        assert entered == ["a", "c", "d"]
        leave["c"].set()
        leave["d"].set()
        await asyncio.gather(tasks["c"], tasks["d"])
        async with large.room(20):  # all of it is free again
            pass
        large.close()

    asyncio.run(main())


@pytest.mark.parametrize(("rows", "where"), [(10, "MainThread"), (100_000, "osa-serve-parsing_0")])
def test_answers_of_many_rows_are_written_elsewhere(rows: int, where: str) -> None:
    def write(_: InferenceRequest, answer: InferenceResponse) -> tuple[str, int]:
        return threading.current_thread().name, len(answer.outputs["y"])

    async def main() -> None:
        large = LargeRequests(10)
        answer = InferenceResponse("m", "1", "", {"y": np.zeros(rows, np.float32)})
        assert await large.write(write, InferenceRequest("m", "", {}), answer) == (where, rows)
        large.close()

    asyncio.run(main())
