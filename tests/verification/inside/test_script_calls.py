"""What is read from the code of a TorchScript module: which modules run once, and where it calls the attention."""

from __future__ import annotations

import io
from typing import Any  # TorchScript reads these annotations and does not support X | Y

import pytest
import torch
from torch import Tensor, nn

from osa_runtime.errors import RunError
from osa_runtime.nn import OrthogonalSelfAttention
from osa_runtime.ops import orthogonal_attention
from osa_runtime.verification.inside.script_calls import (
    CORE,
    INPUT,
    OUTPUT,
    Recorder,
    ScriptCalls,
    attention_call,
    attention_function,
    calls_attention,
    recorded,
    recording,
    replacing,
)


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.flag = True


class Chain(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.a(x)) + self.b(x)


class Twice(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(self.a(x))))


class Looping(Base):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(x.size(0)):
            x = self.a(x)
        return self.b(x)


class Choosing(Base):
    """a runs in either case, b in one only, and c in both, but twice in one."""

    def forward(self, x: Tensor) -> Tensor:
        if x.size(0) > 2:
            y = self.c(self.a(x))
        else:
            y = self.c(self.c(self.b(self.a(x))))
        return y


class Decided(Base):
    """An attribute that nothing changes decides: only the first branch is ever taken."""

    def forward(self, x: Tensor) -> Tensor:
        if self.flag:
            y = self.a(x)
        else:
            y = self.b(self.a(self.a(x)))
        return self.c(y)


class Checking(Base):
    def forward(self, x: Tensor) -> Tensor:
        if x.size(1) != 4:
            raise ValueError("no")
        return self.b(self.a(x))


class Method(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.twice(self.b(x))

    def twice(self, x: Tensor) -> Tensor:
        return self.a(self.a(x))


class Wrapping(nn.Module):
    """A container whose output is that of its last part but one, which the last one passes on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Identity())
        self.pair, self.pick = Pair(), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.pair(self.inner(x))
        return self.pick(left) + right


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, -x


UNITS: dict[type[nn.Module], tuple[str, ...]] = {
    Chain: ("a", "c", "b"),
    Twice: ("b", "c"),
    Looping: ("b",),
    Choosing: ("a",),
    Decided: ("a", "c"),
    Checking: ("a", "b"),
    Method: ("b",),
    Wrapping: ("inner.0", "inner.1", "pick"),
}


def scripted(module: nn.Module) -> torch.jit.ScriptModule:
    """As from a file: in the code that all modules of a class share, a change would last."""
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(module.eval().requires_grad_(False)), file)
    file.seek(0)
    loaded: torch.jit.ScriptModule = torch.jit.load(file)
    return loaded


@pytest.mark.parametrize("kind", UNITS)
def test_units_run_exactly_once_whatever_is_taken(kind: type[nn.Module]) -> None:
    assert ScriptCalls(scripted(kind())).units() == UNITS[kind]


def seen(module: nn.Module) -> tuple[torch.jit.ScriptModule, dict[str, Any]]:
    script = scripted(module)
    calls = ScriptCalls(script)
    units = calls.units()
    Recorder(calls).add_cuts(units)
    return script, {name: calls.modules[name] for name in units}


@pytest.mark.parametrize("kind", [Chain, Checking, Decided, Wrapping])
def test_values_are_those_of_the_run_and_can_be_replaced(kind: type[nn.Module]) -> None:
    module, x = kind(), torch.randn(3, 4)
    script, parts = seen(module)
    assert torch.equal(script(x), module(x))
    with recording(list(parts.values()), INPUT), recording(list(parts.values()), OUTPUT):
        script(x)
        for name, part in parts.items():
            (taken,), (out,) = (recorded(part, name, what) for what in (INPUT, OUTPUT))
            torch.testing.assert_close(out, module.get_submodule(name)(taken), rtol=0, atol=1e-6)
    first = next(iter(parts))
    with pytest.raises(RunError, match=f"{first} was expected to run once, but kept 0 tensors"):
        recorded(parts[first], first, INPUT)
    given = {parts[first]: (x + 1, x - 1)}
    with replacing(given):
        changed = script(x)
    assert not torch.equal(changed, module(x))
    assert torch.equal(script(x), module(x)), "afterwards it is as it was"


def test_a_replaced_output_is_what_the_next_part_reads() -> None:
    module, x = Checking(), torch.randn(3, 4)
    script, parts = seen(module)
    with replacing({parts["a"]: (x, 2 * x)}):
        assert torch.equal(script(x), module.b(2 * x))
    with replacing({parts["a"]: (x, x), parts["b"]: (3 * x, 5 * x)}):
        assert torch.equal(script(x), 5 * x)


def layer(**options: Any) -> OrthogonalSelfAttention:
    torch.manual_seed(0)
    made = OrthogonalSelfAttention(8, 2, alpha=0.3, form="dense", **options)
    made.alpha.data[1] = -0.1
    return made.eval().requires_grad_(False)


@pytest.mark.parametrize("masked", [False, True])
def test_the_core_of_a_layer_is_seen_and_applied_to_other_values(masked: bool) -> None:
    module, x = layer(), torch.randn(3, 7, 8)
    mask = torch.arange(7) < torch.tensor([[7], [4], [1]]) if masked else None
    script = scripted(module)
    apply = attention_function(script)
    Recorder(ScriptCalls(script)).add_core(script)
    with recording([script], CORE):
        script(x, mask)
        q, k, v, scale, out, *masks = recorded(script, "layer", CORE, (5, 6))
    assert len(masks) == masked
    for found, expected in zip((q, k, v), module.project(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(scale, module.alpha / 2)
    tokens = masks[0] if masked else None
    torch.testing.assert_close(out, orthogonal_attention(q, k, v, scale, tokens), rtol=0, atol=1e-6)
    other = torch.randn_like(v)
    for left, right in ((q, k), (2 * k, q)):
        expected = orthogonal_attention(left, right, other, scale, tokens)
        torch.testing.assert_close(apply(script._c, left, right, other, tokens), expected, rtol=0, atol=1e-5)


class Bare(nn.Module):
    """Calls of the operator itself: once, twice, in a branch, with a number as the scale, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(2))


class Once(Bare):
    def forward(self, q: Tensor, mask: Tensor | None = None) -> Tensor:
        return orthogonal_attention(q, q.roll(1, -1), q, self.alpha, mask)


class Again(Bare):
    def forward(self, q: Tensor) -> Tensor:
        q = orthogonal_attention(q, q.roll(1, -1), q, self.alpha)
        return orthogonal_attention(q, q.roll(1, -1), q, self.alpha)


class Within(Bare):
    def forward(self, q: Tensor) -> Tensor:
        if q.size(0) > 2:
            q = orthogonal_attention(q, q.roll(1, -1), q, self.alpha)
        return q


class Number(Bare):
    def forward(self, q: Tensor) -> Tensor:
        return orthogonal_attention(q, q.roll(1, -1), q, 0.1)


class Without(Bare):
    def forward(self, q: Tensor) -> Tensor:
        return q * self.alpha[0]


@pytest.mark.parametrize(
    ("kind", "calls", "shows"),
    [(Once, True, True), (Again, False, False), (Within, True, False), (Number, True, False), (Without, False, False)],
)
def test_one_call_with_a_tensor_as_its_scale_shows_its_core(kind: type[Bare], calls: bool, shows: bool) -> None:
    graph = scripted(kind())._c._get_method("forward").graph
    assert (calls_attention(graph), attention_call(graph) is not None) == (calls, shows)
