"""Clients of every kind at once: honest, malformed, oversized, slow, impatient and gone. Run it alone for a long test:

python tests/mixed_load.py HOST:PORT MODEL SECONDS CLIENTS
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter


class MixedLoad:
    """``counts`` has what happened by kind of client; ``mistakes`` what must not happen."""

    def __init__(self, address: str, model: str, images: Any, logits: Any, body_limit: int) -> None:
        host, _, port = address.rpartition(":")
        self._where = (host, int(port))
        self._path = f"/v2/models/{model}/infer"
        self._images, self._logits, self._limit = images, logits, body_limit
        self.counts: Counter[str] = Counter()
        self.mistakes: list[str] = []

    async def run(self, seconds: float, clients: int) -> None:
        end = asyncio.get_running_loop().time() + seconds
        await asyncio.gather(*(self._client(random.Random(seed), end) for seed in range(clients)))

    async def _client(self, chance: random.Random, end: float) -> None:
        kinds: list[tuple[Callable[[random.Random, Reader, Writer], Awaitable[None]], int]] = [
            (self._honest, 60), (self._binary, 60), (self._malformed, 20), (self._oversized, 2), (self._slow, 2),
            (self._impatient, 8), (self._half, 8),
        ]  # fmt: skip
        chosen, weights = zip(*kinds, strict=True)
        while asyncio.get_running_loop().time() < end:
            reader, writer = await asyncio.open_connection(*self._where)
            for _ in range(chance.randrange(1, 8)):
                kind = chance.choices(chosen, weights)[0]
                await asyncio.wait_for(kind(chance, reader, writer), 60)
                self.counts[kind.__name__.strip("_")] += 1
                if kind not in (self._honest, self._binary, self._malformed):
                    break
            writer.close()

    def _request(self, body: bytes, extra: str = "", announced: int | None = None) -> bytes:
        size = len(body) if announced is None else announced
        return f"POST {self._path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {size}\r\n{extra}\r\n".encode() + body

    async def _answer(self, reader: Reader) -> tuple[int, dict[str, str], bytes]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        return int(head[0].split()[1]), headers, await reader.readexactly(int(headers["content-length"]))

    def _expect(self, what: str, right: bool, content: bytes) -> None:
        if not right:
            self.mistakes.append(f"{what}: {content[:300]!r}")

    async def _honest(self, chance: random.Random, reader: Reader, writer: Writer) -> None:
        number = chance.randrange(len(self._images))
        image = self._images[number : number + 1]
        tensor = {"name": "images", "datatype": "FP32", "shape": list(image.shape), "data": image.ravel().tolist()}
        writer.write(self._request(json.dumps({"inputs": [tensor]}).encode()))
        status, _, content = await self._answer(reader)
        self._expect(
            "honest", status == 200 and self._right(number, json.loads(content)["outputs"][0]["data"]), content
        )

    async def _binary(self, chance: random.Random, reader: Reader, writer: Writer) -> None:
        number = chance.randrange(len(self._images))
        image = self._images[number : number + 1]
        tensor = {"name": "images", "datatype": "FP32", "shape": list(image.shape)}
        tensor["parameters"] = {"binary_data_size": image.nbytes}
        header = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        extra = f"inference-header-content-length: {len(header)}\r\n"
        writer.write(self._request(header + image.tobytes(), extra))
        status, headers, content = await self._answer(reader)
        values = content[int(headers.get("inference-header-content-length", 0)) :]
        right = status == 200 and self._right(number, np.frombuffer(values, "<f4"))
        self._expect("binary", right, content)

    def _right(self, number: int, values: Any) -> bool:
        return np.allclose(np.array(values), self._logits[number], rtol=1e-3, atol=1e-3)

    async def _malformed(self, chance: random.Random, reader: Reader, writer: Writer) -> None:
        tensor: dict[str, Any] = {"name": "images", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0.5] * 64}
        wrong: list[Any] = [
            b"{", b"[]", b"\xff" * 50, b'{"inputs":' + b"[" * 2000, {"inputs": []}, {"inputs": [tensor, tensor]},
            {"inputs": [tensor | {"shape": [2**40, 256]}]}, {"inputs": [tensor | {"data": [None]}]},
            {"inputs": [tensor | {"datatype": "FP64"}]}, {"inputs": [tensor | {"name": "x"}]},
            {"inputs": [tensor | {"shape": [1, 1, 4, 16]}]}, {"inputs": [tensor], "outputs": [{"name": "no"}]},
        ]  # fmt: skip
        body = chance.choice(wrong)
        writer.write(self._request(body if isinstance(body, bytes) else json.dumps(body).encode()))
        status, _, content = await self._answer(reader)
        self._expect("malformed", 400 <= status < 500 and bool(json.loads(content)["error"]), content)

    async def _oversized(self, chance: random.Random, reader: Reader, writer: Writer) -> None:
        writer.write(self._request(b" " * 65536, announced=self._limit + 1))
        status, _, content = await self._answer(reader)
        self._expect("oversized", status == 413, content)

    async def _slow(self, chance: random.Random, reader: Reader, writer: Writer) -> None:
        whole = self._request(b'{"inputs": 1}')
        for start in range(0, len(whole), 40):
            writer.write(whole[start : start + 40])
            await asyncio.sleep(chance.uniform(0, 0.05))
        status, _, content = await self._answer(reader)
        self._expect("slow", status == 400, content)

    async def _impatient(self, chance: random.Random, reader: Reader, writer: Writer) -> None:
        """Asks and leaves without the answer."""
        image = self._images[:1]
        tensor = {"name": "images", "datatype": "FP32", "shape": list(image.shape), "data": image.ravel().tolist()}
        writer.write(self._request(json.dumps({"inputs": [tensor]}).encode()))
        await writer.drain()

    async def _half(self, chance: random.Random, reader: Reader, writer: Writer) -> None:
        """Leaves in the middle of a request."""
        writer.write(self._request(b"{" * 200, announced=500))
        await writer.drain()


def main(address: str, model: str, seconds: float, clients: int) -> None:
    from osa_runtime import load

    images = np.random.default_rng(0).standard_normal((32, 1, 8, 8)).astype(np.float32)
    logits = load(model, threads=1).run({"images": images})["logits"]
    work = MixedLoad(address, model.rstrip("/").rpartition("/")[2], images, logits, 64 << 20)
    asyncio.run(work.run(seconds, clients))
    sys.stdout.write(f"{dict(work.counts)}\n{len(work.mistakes)} mistakes {work.mistakes[:3]}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
