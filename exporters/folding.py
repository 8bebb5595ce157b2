"""A copy of the module with everything folded into its weights that can be, and errors of its capture by layer.

What is folded costs nothing at inference:

- spectral conditioning: W + λI becomes the weight;
- the gain of the MLP's activation becomes part of its second matrix;
- the standardisation of a ViT's pixels becomes part of the matrix and bias of its patches.

α/√d stays an input of the operator, where it costs nothing. In the rows of W_Q and W_K it would round each weight anew:
an error that all tokens share and that adds up in S, a sum over them (three times eager's error at 1024 tokens).
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch import Tensor, nn

from osa_runtime.errors import ExportError, OsaError
from osa_runtime.exporters.settings import ExportSettings
from osa_runtime.models.embedding import StandardisedLinear
from osa_runtime.nn import IsometricMLP, OrthogonalSelfAttention
from osa_runtime.nn.projection import PackedProjection


def prepared(module: nn.Module, settings: ExportSettings) -> nn.Module:
    """An evaluation copy in the exported type, folded, with the settings applied to its OSA layers."""
    ready = copy.deepcopy(module).eval().requires_grad_(False)
    owners = Counter(child for layer in ready.modules() for child in layer._modules.values() if child is not None)
    for layer in ready.modules():
        if _is_plain(layer, PackedProjection):
            _fold_conditioning(cast(PackedProjection, layer))
    for layer in ready.modules():
        if _is_plain(layer, IsometricMLP) and _is_own(layer.contract, nn.Linear, owners) and layer.leaky:
            _fold_gain(cast(IsometricMLP, layer))
        for name, child in layer._modules.items():
            if _is_plain(child, StandardisedLinear):
                layer._modules[name] = cast(StandardisedLinear, child).folded()
        if isinstance(layer, OrthogonalSelfAttention):
            _apply_settings(layer, settings)
    return in_type(ready, settings)


def _is_plain(layer: object, kind: type[nn.Module]) -> bool:
    """True if the module has exactly this type and no hooks; a subclass may use its weights differently."""
    return (
        type(layer) is kind
        and not layer._forward_hooks
        and not layer._forward_pre_hooks
        and "forward" not in vars(layer)
    )


def _is_own(part: object, kind: type[nn.Module], owners: Counter[nn.Module]) -> bool:
    """True if only one layer uses this part; a shared part cannot absorb what belongs to one layer."""
    return isinstance(part, nn.Module) and _is_plain(part, kind) and owners[part] == 1


def in_type(module: nn.Module, settings: ExportSettings) -> nn.Module:
    return module.half() if settings.dtype == "fp16" else module


def _fixed(weight: Tensor) -> nn.Parameter:
    """A separate parameter: layers that share one must not fold into it twice."""
    return nn.Parameter(weight, requires_grad=False)


def _fold_conditioning(layer: PackedProjection) -> None:
    layer.weight = _fixed(layer.effective_weight().clone())
    layer.conditioned = False
    layer.correction = torch.zeros(0)


def _fold_gain(layer: IsometricMLP) -> None:
    layer.contract.weight = _fixed(layer.contract.weight * layer.gain)
    layer.gain = 1.0


def _apply_settings(layer: OrthogonalSelfAttention, settings: ExportSettings) -> None:
    layer.evaluate(settings.applied_to(layer.evaluation()))


@contextlib.contextmanager
def errors_naming_layers(module: nn.Module, retrace: Callable[[], torch.export.ExportedProgram]) -> Iterator[None]:
    """Turn an error of the capture into an ExportError with the layer's name.

    While torch traces, it is the layer that was entered and not left. When a traced node cannot be translated,
    it is the layer of that node, which ``retrace`` finds by capturing the program again.
    """
    entered: list[str] = []
    whole = {part for layer in module.modules() for part in _parts_without_hooks(layer)}
    handles = [_watch(layer, path, entered) for path, layer in module.named_modules() if path and layer not in whole]
    try:
        yield
    except OsaError:
        raise
    except Exception as error:
        causes = list(_causes(error))
        for ours in (cause for cause in causes if isinstance(cause, OsaError)):
            raise ours from error
        layer = entered[-1] if entered else _translated_layer(causes, retrace)
        where = f" in the layer '{layer}'" if layer else ""
        raise ExportError(f"torch cannot capture the model{where}: {reason(causes[-1])}") from error
    finally:
        for handle in handles:
            handle()


def _parts_without_hooks(layer: nn.Module) -> Iterator[nn.Module]:
    """The projections of an attention layer: it may run as a whole, but not around hooks. They cannot fail alone."""
    if isinstance(layer, OrthogonalSelfAttention):
        yield from (part for part in layer.children() if type(part) in (PackedProjection, nn.Linear))


def _watch(layer: nn.Module, path: str, entered: list[str]) -> Callable[[], None]:
    before = layer.register_forward_pre_hook(lambda *_: entered.append(path))
    after = layer.register_forward_hook(lambda *_: entered.pop() and None)

    def remove() -> None:
        before.remove()
        after.remove()

    return remove


def _causes(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__


def reason(error: BaseException) -> str:
    """The first paragraph, up to the first source file; the rest is torch's advice to its own developers."""
    text = re.split(r"\n\n|:?\s*\n\s*File \"", re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip())[0]
    return f"{' '.join(text.split())[:400]} ({type(error).__name__})"


def _translated_layer(causes: list[BaseException], retrace: Callable[[], torch.export.ExportedProgram]) -> str | None:
    name = next((m[1] for e in causes if (m := re.match(r"Error when translating node %(\w+)", str(e)))), None)
    if name is None:
        return None
    try:
        nodes = retrace().graph.nodes
    except Exception:  # noqa: BLE001 - the first error is the one to report, whatever happens in the second capture
        return None
    stacks = [list(node.meta.get("nn_module_stack", {}).values()) for node in nodes if node.name == name]
    return str(stacks[0][-1][0]) if stacks and stacks[0] else None
