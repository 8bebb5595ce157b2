"""The evaluation settings of a module's calls of ``orthogonal_attention``, found by running it once in eager."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, astuple
from typing import Any

import torch
from torch import Tensor, nn

from osa_runtime.errors import InputError
from osa_runtime.exponential import ExponentialMethod
from osa_runtime.exporters.settings import ExportSettings
from osa_runtime.manifest import AttentionSettings
from osa_runtime.ops import attention
from osa_runtime.ops.interception import intercept
from osa_runtime.ops.scaling import largest_norm, reach


def traced_settings(module: nn.Module, inputs: Sequence[Tensor], settings: ExportSettings) -> AttentionSettings | None:
    """The entry of the manifest, for the formats whose graph is traced from the module itself."""
    calls = _record(module, inputs)
    _check_asked_for(calls, settings)
    return manifest_entry(calls)


def manifest_entry(calls: Collection[ExponentialMethod]) -> AttentionSettings | None:
    """The common evaluation of all calls, field by field, or "mixed"; and the largest ‖S‖ that all can represent."""
    if not calls:
        return None
    values: dict[str, set[Any]] = {name: {asdict(call)[name] for call in calls} for name in asdict(ExponentialMethod())}
    common = {name: found.pop() if len(found) == 1 else "mixed" for name, found in values.items()}
    return AttentionSettings(**common, largest_norm=min(_largest_norm(call) for call in calls))


def _largest_norm(call: ExponentialMethod) -> float:
    """The largest ‖S‖ that this call can represent, in whichever form it takes."""
    forms = ("dense", "lowrank") if call.form == "auto" else (call.form,)
    squarings = call.squarings if isinstance(call.squarings, int) else -1
    return min(largest_norm(reach(call.approximant, form, False), squarings, False) for form in forms)


def _record(module: nn.Module, inputs: Sequence[Tensor]) -> set[ExponentialMethod]:
    calls: set[ExponentialMethod] = set()

    def record(*arguments: Any) -> Tensor:
        calls.add(arguments[5])
        return attention._apply(*arguments)

    with intercept(record), torch.no_grad():
        module(*inputs)
    return calls


def _check_asked_for(calls: set[ExponentialMethod], settings: ExportSettings) -> None:
    """Refuse settings that could not be applied: they reach layers, but not a call in the user's own code."""
    for call in sorted(calls, key=lambda call: str(astuple(call))):
        for name, wanted in asdict(settings.applied_to(call)).items():
            found = getattr(call, name)
            if wanted != found:
                raise InputError(
                    f"{name}={wanted!r}, but a direct call of orthogonal_attention in your module has {found} "
                    f"and cannot be changed for this format ({settings.format}); set it in the call."
                )
