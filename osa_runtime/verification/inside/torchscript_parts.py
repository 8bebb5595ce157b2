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
    recorded,
    recording,
    replacing,
)
from osa_runtime.verification.inside.torch_arrays import check_known, ordered, running, to_array, to_tensor


class TorchScriptParts(ModelParts):
    def __init__(self, path: Path, input_names: Sequence[str]) -> None:
        self._path, self._input_names = path, tuple(input_names)
        self._module, _ = read_torchscript(torch, path, "cpu")
        calls = ScriptCalls(self._module)
        self.units = calls.units()
        self.attentions = tuple(name for name in self.units if attention_call(calls.graph(name)) is not None)
        self._parts: dict[str, Any] = {name: calls.modules[name] for name in self.units}
        # Before the code changes, and before anything runs.
        self._apply = {name: attention_function(self._parts[name]) for name in self.attentions}
        recorder = Recorder(calls)
        for name in self.attentions:
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
        with running(self._path, "the whole"), recording([self._parts[name] for name in attentions], CORE):
            self._module(*ordered(feeds, self._input_names))
            return {name: self._core(name) for name in attentions}

    def apply_attention(self, attention: str, core: Core, v: Array) -> Array:
        check_known([attention], self.attentions, self._path)
        mask = None if core.mask is None else to_tensor(core.mask)
        with running(self._path, f"exp(S)·v in {attention}"):
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
        self._parts.clear()
        self._module = None

    def _core(self, name: str) -> Core:
        found = recorded(self._parts[name], name, CORE, counts=(5, 6))
        q, k, v, scale, out, *mask = map(to_array, found)
        return Core(q, k, v, scale, mask[0] if mask else None, out)
