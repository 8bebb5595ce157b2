"""Two ends of a channel between processes: questions, answers, faults, and an end that has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from multiprocessing import Pipe
from typing import Any

from osa_runtime.serving.engine.siblings import Answer, Channel


async def answer(what: str, argument: Any) -> Any:
    if what == "fail":
        raise ValueError("no such thing")
    if what == "never":
        await asyncio.Event().wait()
    return argument


def connected(scenario: Callable[[Channel, Channel], Awaitable[None]]) -> None:
    async def main() -> None:
        one, other = map(Channel, Pipe())
        one.listen(answer)
        other.listen(answer)
        await asyncio.wait_for(scenario(one, other), 10)

    asyncio.run(main())


def test_both_ends_ask_at_the_same_time() -> None:
    async def scenario(one: Channel, other: Channel) -> None:
        answers = await asyncio.gather(one.ask("echo", 1), other.ask("echo", 2), one.ask("fail"))
        assert [(a.value, a.problem) for a in answers] == [(1, None), (2, None), (None, "no such thing")]

    connected(scenario)


def test_nobody_waits_for_a_process_that_has_ended() -> None:
    async def scenario(one: Channel, other: Channel) -> None:
        waiting = asyncio.ensure_future(one.ask("never"))
        await asyncio.sleep(0.05)
        other.close()
        assert (await waiting).problem == "the process has ended"
        one.close()
        asked_too_late: Answer = await one.ask("echo", 1)
        assert asked_too_late.problem == "the process has ended"

    connected(scenario)


def test_last_words_are_heard() -> None:
    heard: list[Any] = []

    async def hear(what: str, argument: Any) -> None:
        heard.append((what, argument))

    async def main() -> None:
        mine, theirs = Pipe()
        theirs_channel, my_channel = Channel(theirs), Channel(mine)
        my_channel.listen(hear)
        theirs_channel.tell("ready", {"http": "127.0.0.1:8000"})
        theirs.close()
        my_channel.close()  # before the event loop has read anything
        await asyncio.sleep(0)
        assert heard == [("ready", {"http": "127.0.0.1:8000"})]

    asyncio.run(main())
