"""Which settings the calls of ``orthogonal_attention`` in a module have, found by running it once in eager."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from osa_runtime.errors import InputError
from osa_runtime.exporters.settings import ExportSettings
from osa_runtime.ops import attention
from osa_runtime.ops.interception import intercept
from osa_runtime.ops.scaling import largest_norm, reach


@dataclass(frozen=True)
class Call:
    form: str
    approximant: str
    squarings: str | int

    def largest_norm(self) -> float:
        """The largest ‖S‖ that this call can represent, in whichever form it takes."""
        forms = ("dense", "lowrank") if self.form == "auto" else (self.form,)
        squarings = self.squarings if isinstance(self.squarings, int) else -1
        return min(largest_norm(reach(self.approximant, form, False), squarings, False) for form in forms)


def traced_settings(module: nn.Module, inputs: Sequence[Tensor], settings: ExportSettings) -> dict[str, Any]:
    """The common settings of all calls, for the formats whose graph is traced from the module itself."""
    calls = _record(module, inputs)
    _check_asked_for(calls, settings)
    if not calls:
        return {}
    values = {field.name: {getattr(call, field.name) for call in calls} for field in fields(Call)}
    common = {name: found.pop() if len(found) == 1 else "mixed" for name, found in values.items()}
    return common | {"largest_norm": min(call.largest_norm() for call in calls)}


def _record(module: nn.Module, inputs: Sequence[Tensor]) -> set[Call]:
    calls: set[Call] = set()

    def record(*arguments: Any) -> Tensor:
        calls.add(Call(*arguments[5:]))
        return attention._apply(*arguments)

    with intercept(record), torch.no_grad():
        module(*inputs)
    return calls


def _check_asked_for(calls: set[Call], settings: ExportSettings) -> None:
    """The settings are applied to layers; a call in the user's own code is out of their reach here."""
    asked = Call(settings.form, settings.approximant, settings.squarings)  # type: ignore[arg-type]  # None: as it is
    for call in sorted(calls, key=lambda call: str(astuple(call))):
        for field in fields(Call):
            wanted, found = getattr(asked, field.name), getattr(call, field.name)
            if wanted is not None and wanted != found:
                raise InputError(
                    f"{field.name}={wanted!r}, but a direct call of orthogonal_attention in your module has {found} "
                    f"and cannot be changed for this format ({settings.format}); set it in the call."
                )
