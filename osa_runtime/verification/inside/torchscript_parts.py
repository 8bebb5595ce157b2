"""The parts of a TorchScript artifact, which keeps its modules: they can be called, and can record their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from osa_runtime.runtime.session import Session
from osa_runtime.runtime.torch_session import read_torchscript
from osa_runtime.steps import quiet
from osa_runtime.verification.inside.model_parts import Array, Calls, Core, Glue, ModelParts, Written
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
from osa_runtime.verification.inside.torch_arrays import check_known, ordered, running, to_array, to_tensor
from osa_runtime.verification.inside.whole_layer import WholeLayer


class TorchScriptParts(ModelParts):
    def __init__(self, path: Path, input_names: Sequence[str]) -> None:
        self._path, self._input_names = path, tuple(input_names)
        self._module, _ = read_torchscript(torch, path, "cpu")
        calls = ScriptCalls(self._module)
        self.units = calls.units()
        self._parts: dict[str, Any] = {name: calls.modules[name] for name in self.units}
        # Before the code changes, and before anything runs.
        called = [name for name in self.units if attention_call(calls.graph(name)) is not None]
        self._apply = {name: attention_function(self._parts[name]) for name in called}
        others = [name for name in self.units if name not in called and calls_attention(calls.graph(name))]
        self._layers = {name: ScriptedLayer(self._parts[name]) for name in others if _is_layer(self._parts[name])}
        self.attentions = tuple(name for name in self.units if name in self._apply or name in self._layers)
        recorder = Recorder(calls)
        for name in called:
            recorder.add_core(self._parts[name])
        recorder.add_cuts(self.units)

    @classmethod
    def of(cls, session: Session, _: int | None) -> Self:
        return cls(session.path, [spec.name for spec in session.inputs])

    def outputs_of(self, units: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        return self._values(OUTPUT, units, feeds)

    def inputs_of(self, units: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        return self._values(INPUT, units, feeds)

    def _values(self, what: str, units: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        check_known(units, self.units, self._path)
        parts = [self._parts[name] for name in units]
        with running(self._path, "the whole"), recording(parts, what):
            self._module(*ordered(feeds, self._input_names))
            return {name: to_array(recorded(self._parts[name], name, what, (1, 2))[0]) for name in units}

    def call(self, unit: str, inputs: Sequence[Array], feeds: Mapping[str, Array] | None = None) -> Array:  # noqa: ARG002
        check_known([unit], self.units, self._path)
        with running(self._path, unit):
            return to_array(self._parts[unit](*map(to_tensor, inputs)))

    def between(self, calls: Calls, feeds: Mapping[str, Array]) -> Glue:
        parts = [self._parts[name] for name in calls]
        with (
            running(self._path, "the operators between the parts"),
            recording(parts, INPUT),
            replacing(self._given(calls)),
        ):
            found = self._module(*ordered(feeds, self._input_names))
            taken = {name: list(map(to_array, recorded(self._parts[name], name, INPUT, (1, 2)))) for name in calls}
        outputs = (found,) if isinstance(found, torch.Tensor) else tuple(found)
        masks = {name: values[1] for name, values in taken.items() if len(values) > 1}
        return Glue({name: values[0] for name, values in taken.items()}, tuple(map(to_array, outputs)), masks)

    def _given(self, calls: Calls) -> dict[Any, tuple[torch.Tensor, torch.Tensor]]:
        return {self._parts[name]: (to_tensor(inputs[0]), to_tensor(out)) for name, (inputs, out) in calls.items()}

    def cores_of(self, attentions: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Core]:
        check_known(attentions, self.attentions, self._path)
        called = [self._parts[name] for name in attentions if name in self._apply]
        whole = [self._parts[name] for name in attentions if name in self._layers]
        with running(self._path, "the whole"), recording(called, CORE), recording(whole, INPUT):
            self._module(*ordered(feeds, self._input_names))
            return {name: self._core(name) for name in attentions}

    def apply_attention(self, attention: str, core: Core, v: Array) -> Array:
        check_known([attention], self.attentions, self._path)
        with running(self._path, f"exp(S)·v in {attention}"):
            if attention in self._layers:
                return self._layers[attention].applied(core, v)
            mask = None if core.mask is None else to_tensor(core.mask)
            q, k, values = map(to_tensor, (core.q, core.k, v))
            return to_array(self._apply[attention](self._parts[attention]._c, q, k, values, mask))

    def write_unit(self, unit: str, inputs: Sequence[Array], folder: Path, _: Mapping[str, Array]) -> Written:
        check_known([unit], self.units, self._path)
        # Read again: the loaded code has been changed to record values.
        fresh = read_torchscript(torch, self._path, "cpu")[0]
        with running(self._path, unit), quiet():
            dict(fresh.named_modules())[unit].save(str(folder / "unit.pt"))
        return Written("unit.pt", dict(zip(("x", "mask"), inputs, strict=False)))

    def write_between(self, end: str | int, calls: Calls, feeds: Mapping[str, Array], folder: Path) -> Written:
        """Write the whole model; every part returns its expected value, and the part at the end keeps its input."""
        kept = [] if isinstance(end, int) else [self._parts[end]]
        with (
            running(self._path, f"the operators before {end}"),
            quiet(),
            recording(kept, INPUT),
            replacing(self._given(calls)),
        ):
            self._module.save(str(folder / "unit.pt"))
        inputs = {name: feeds[name] for name in self._input_names}
        return Written("unit.pt", inputs, end) if isinstance(end, int) else Written("unit.pt", inputs, kept_by=end)

    def close(self) -> None:
        self._apply.clear()
        self._layers.clear()
        self._parts.clear()
        self._module = None

    def _core(self, name: str) -> Core:
        if name in self._layers:
            x, *mask = map(to_array, recorded(self._parts[name], name, INPUT, counts=(1, 2)))
            return self._layers[name].seen(x, mask[0] if mask else None)
        found = recorded(self._parts[name], name, CORE, counts=(5, 6))
        q, k, v, scale, out, *mask = map(to_array, found)
        return Core(q, k, v, scale, mask[0] if mask else None, out)


def _is_layer(part: Any) -> bool:
    """True for a layer of ours, by its weights."""
    names = {name for name, _ in part.named_parameters()}
    return names == {"alpha", "project.weight", "out.weight"} and part.project.correction.numel() == 0


class ScriptedLayer(WholeLayer):
    def __init__(self, part: Any) -> None:
        self._part = part

    def seen(self, x: Array, mask: Array | None) -> Core:
        heads = self._part.alpha.numel()
        width = self._part.out.weight.size(1) // heads
        scale = to_array(self._part.alpha.detach() / width**0.5)
        return self.core(x, to_array(self._part.project.weight.detach().mT), scale, mask)

    def run(
        self,
        x: Array,
        weight: Array,
        out: Array,
        scale: Array,  # noqa: ARG002  # it keeps its own
        mask: Array | None,
    ) -> tuple[Array, int | None, Array]:
        kept = {part: part.weight for part in (self._part.project, self._part.out)}
        tokens, packing, merging = (to_tensor(value).to(kept[self._part.out].dtype) for value in (x, weight.T, out.T))
        try:
            for part, value in zip(kept, (packing, merging), strict=True):
                part._c.setattr("weight", value)
            found = self._part(tokens, None if mask is None else to_tensor(mask))
        finally:
            for part, value in kept.items():
                part._c.setattr("weight", value)
        return to_array(found), None, to_array(torch.nn.functional.linear(tokens, packing))
