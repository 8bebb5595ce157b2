"""Errors while torch captures a module, with the name of the layer that it cannot capture."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

import torch
from torch import nn

from osa_runtime.errors import ExportError, OsaError


@contextlib.contextmanager
def errors_naming_layers(module: nn.Module, retrace: Callable[[], torch.export.ExportedProgram]) -> Iterator[None]:
    """Turn an error of the capture into an ExportError with the layer's name.

    While torch traces, it is the layer that was entered and not left. When a traced node cannot be translated,
    it is the layer of that node, which ``retrace`` finds by capturing the program again.
    """
    entered: list[str] = []
    handles = [_watch(layer, path, entered) for path, layer in module.named_modules() if path]
    try:
        yield
    except OsaError:
        raise
    except Exception as error:
        causes = list(_causes(error))
        layer = entered[-1] if entered else _translated_layer(causes, retrace)
        where = f" in the layer '{layer}'" if layer else ""
        raise ExportError(f"torch cannot capture the model{where}: {reason(causes[-1])}") from error
    finally:
        for handle in handles:
            handle()


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
