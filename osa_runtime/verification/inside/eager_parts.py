"""The parts of an eager model, seen through hooks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from osa_runtime.exporters.eager import Eager, moved_state
from osa_runtime.nn import IsometricMLP
from osa_runtime.nn.projection import ProjectedAttention
from osa_runtime.ops import attention
from osa_runtime.ops.interception import intercept
from osa_runtime.parity.tolerances import moved
from osa_runtime.verification.inside.model_parts import Array, Calls, Core, Glue, ModelParts

Inputs = tuple[Array, ...]


class EagerParts(ModelParts):
    """The parts of an eager model. Units are found by running ``feeds`` once.

    The insides of our attention layers and MLPs are not units: an export folds scales into their weights.
    """

    def __init__(self, party: Eager, feeds: Mapping[str, Array]) -> None:
        self.party = party
        self.units = tuple(self._find_units(feeds))
        self.attentions = tuple(name for name, _ in self._calls(feeds, keep=False))
        # Calls of a unit with several, and calls outside any unit, cannot be distinguished by name.
        if len(set(self.attentions)) != len(self.attentions) or not set(self.attentions) <= set(self.units):
            self.attentions = ()

    def outputs_of(self, units: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        return {name: out for name, (_, out) in self.calls_of(units, feeds).items()}

    def inputs_of(self, units: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        return {name: inputs[0] for name, (inputs, _) in self.calls_of(units, feeds).items()}

    def calls_of(self, units: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, tuple[Inputs, Array]]:
        """The inputs and the output of each of these units in one run."""
        taken: dict[str, Inputs] = {}
        found: dict[str, tuple[Inputs, Array]] = {}

        # Copies, before and after: code further on may work in place.
        def take(name: str, args: tuple[Any, ...]) -> None:
            taken[name] = tuple(x.numpy().copy() for x in args if isinstance(x, Tensor))

        def record(name: str, _: tuple[Any, ...], out: Any) -> None:
            found[name] = (taken[name], out.numpy().copy())

        with self._before(units, take):
            self._run_hooked(units, record, feeds)
        return found

    def call(self, unit: str, inputs: Sequence[Array], feeds: Mapping[str, Array] | None = None) -> Array:  # noqa: ARG002
        with torch.no_grad(), self.party.attention():
            out: Tensor = self.party.module.get_submodule(unit)(*self.party.tensors(inputs))
        return out.numpy()

    def moved_call(self, unit: str, inputs: Sequence[Array], amount: float, seed: int) -> Array:
        """The unit alone after its weights and inputs changed at random by up to ``amount`` of themselves."""
        module, generator = self.party.module.get_submodule(unit), np.random.default_rng(seed)
        changed = tuple(self.party.tensors([moved(x, amount, generator) for x in inputs]))
        with torch.no_grad(), self.party.attention():
            out: Tensor = torch.func.functional_call(module, moved_state(module, amount, seed, False), changed)
        return out.numpy()

    def between(self, calls: Calls, feeds: Mapping[str, Array]) -> Glue:
        """One run in which these units compute nothing, but return what they returned before."""
        inputs: dict[str, Array] = {}

        def take(name: str, args: tuple[Any, ...]) -> None:
            inputs[name] = args[0].numpy().copy()

        with contextlib.ExitStack() as stack, self._before(list(calls), take):
            for name, (_, out) in calls.items():
                module = self.party.module.get_submodule(name)
                module.forward = _giving(self.party.tensors([out])[0])
                stack.callback(delattr, module, "forward")
            outputs = self.party.run(feeds)
        return Glue(inputs, tuple(outputs[name] for name in self.party.outputs))

    def cores_of(self, attentions: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Core]:
        return {name: core for name, core in self._calls(feeds, keep=True, only=attentions) if core is not None}

    def apply_attention(self, attention: str, core: Core, v: Array) -> Array:
        layer = self.party.module.get_submodule(attention)
        options = {name: getattr(layer, name, "auto") for name in ("form", "squarings")}
        q, k, values, scale = self.party.tensors([core.q, core.k, v, core.scale])
        mask = None if core.mask is None else torch.from_numpy(core.mask)
        from osa_runtime.ops import orthogonal_attention

        with torch.no_grad(), self.party.attention():
            out = orthogonal_attention(
                q, k, values, scale, mask, approximant=getattr(layer, "approximant", "taylor"), **options
            )
        return out.numpy()

    def _find_units(self, feeds: Mapping[str, Array]) -> Iterator[str]:
        candidates = [name for name, module in self.party.module.named_modules() if name and _is_open(module)]
        closed = [f"{name}." for name in candidates if _is_closed(self.party.module.get_submodule(name))]
        candidates = [name for name in candidates if not name.startswith(tuple(closed))]
        seen: dict[str, Tensor] = {}
        repeated: set[str] = set()

        def record(name: str, args: tuple[Any, ...], out: Any) -> None:
            single = isinstance(out, Tensor) and bool(args) and isinstance(args[0], Tensor)
            if name in seen or not single:
                repeated.add(name)
            elif not any(out is earlier for earlier in seen.values()):  # not that of a container
                seen[name] = out

        self._run_hooked(candidates, record, feeds)
        return (name for name in seen if name not in repeated)

    @contextlib.contextmanager
    def _before(self, units: Sequence[str], take: Callable[[str, tuple[Any, ...]], None]) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for name in units:
                module = self.party.module.get_submodule(name)
                # Before the hooks that the module already has: their changes belong to the part.
                hook = module.register_forward_pre_hook(lambda _, args, name=name: take(name, args), prepend=True)
                stack.callback(hook.remove)
            yield

    def _run_hooked(
        self, units: Sequence[str], record: Callable[[str, tuple[Any, ...], Any], None], feeds: Mapping[str, Array]
    ) -> None:
        with contextlib.ExitStack() as stack:
            for name in units:
                module = self.party.module.get_submodule(name)
                hook = module.register_forward_hook(lambda _, args, out, name=name: record(name, args, out))
                stack.callback(hook.remove)
            self.party.run(feeds)

    def _calls(
        self, feeds: Mapping[str, Array], *, keep: bool, only: Sequence[str] | None = None
    ) -> list[tuple[str, Core | None]]:
        """Every call of orthogonal attention in one run, with the innermost unit that made it."""
        where: list[str] = [""]
        calls: list[tuple[str, Core | None]] = []

        def record(*arguments: Any) -> Tensor:
            out = attention._apply(*arguments)
            wanted = keep and (only is None or where[-1] in only)
            calls.append((where[-1], _core(arguments, out) if wanted else None))
            return out

        with contextlib.ExitStack() as stack:
            for name in self.units:
                module = self.party.module.get_submodule(name)
                before = module.register_forward_pre_hook(lambda *_, name=name: where.append(name))
                after = module.register_forward_hook(lambda *_: where.pop() and None)
                stack.callback(before.remove)
                stack.callback(after.remove)
            with intercept(record), torch.no_grad():
                self.party.module(*self.party.tensors([feeds[name] for name in self.party.inputs]))
        return calls


def _giving(out: Tensor) -> Callable[..., Tensor]:
    return lambda *_, **__: out.clone()


def _core(arguments: tuple[Any, ...], out: Tensor) -> Core:
    q, k, v, scale, mask = arguments[:5]
    factor = scale if isinstance(scale, Tensor) else torch.as_tensor(scale, dtype=q.dtype)
    return Core(q.numpy(), k.numpy(), v.numpy(), factor.numpy(), None if mask is None else mask.numpy(), out.numpy())


def _is_open(module: nn.Module) -> bool:
    """True unless the module is an Identity, or a list of modules, which is never called."""
    return not isinstance(module, (nn.Identity, nn.ModuleList, nn.ModuleDict))


def _is_closed(module: nn.Module) -> bool:
    return isinstance(module, (ProjectedAttention, IsometricMLP))
