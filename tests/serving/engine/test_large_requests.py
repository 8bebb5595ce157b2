"""Large requests are read one at a time, away from the event loop, and only so many wait."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from osa_runtime.serving.engine.large_requests import AHEAD, Parsing
from osa_runtime.serving.refusals import Unavailable


def test_the_event_loop_goes_on_while_one_is_read_after_the_other() -> None:
    async def main() -> None:
        parsing = Parsing(10)
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

        futures = [parsing.submit(10, read, number) for number in range(AHEAD)]
        assert not any(future.done() for future in futures)
        assert await asyncio.gather(*futures) == list(range(AHEAD))
        assert at_once == [1] * AHEAD
        parsing.close()

    asyncio.run(main())


def test_those_that_wait_are_limited_and_leave_their_place() -> None:
    async def main() -> None:
        parsing = Parsing(10)
        go = threading.Event()
        futures = [parsing.submit(10, go.wait) for _ in range(AHEAD)]
        with pytest.raises(Unavailable, match="wait to be read; try again later"):
            parsing.submit(1, go.wait)
        futures.pop().cancel()  # its client has left
        await asyncio.sleep(0)
        futures.append(parsing.submit(10, int))
        go.set()
        assert await asyncio.gather(*futures) == [True] * (AHEAD - 1) + [0]
        with pytest.raises(ZeroDivisionError):
            await parsing.submit(40, lambda: 1 / 0)
        assert await parsing.submit(40, int) == 0
        parsing.close()

    asyncio.run(main())


def test_requests_beyond_the_room_wait_in_their_order() -> None:
    async def main() -> None:
        parsing = Parsing(10)
        entered: list[str] = []
        leave = {name: asyncio.Event() for name in "abcd"}

        async def take(name: str, size: int) -> None:
            async with parsing.room(size):
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
        async with parsing.room(20):  # all of it is free again
            pass
        parsing.close()

    asyncio.run(main())
