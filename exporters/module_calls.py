"""Calls of modules, marked in a captured graph: nodes that no optimiser moves anything across.

``Enter`` stands at each tensor that a call takes, ``Exit`` at each that it returns. The optimiser merges nodes, folds
constants and reads sizes from the inputs of the graph, but knows nothing about these two; what lies between
them remains the module's own, whatever happens around it.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from osa_runtime.errors import ExportError, InputError
from osa_runtime.exporters.settings import class_name

MARKS, ENTER, EXIT = "osa.marks", "Enter", "Exit"


@dataclass
class ModuleCall:
    """One call of a module: the names of its tensors, and the tensors themselves until it returns.

    A module that is shared has several ``paths``.
    """

    kind: type[nn.Module]
    paths: tuple[str, ...]
    inputs: list[str]
    taken: list[tuple[Tensor, int]] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


@dataclass
class ModuleCalls:
    """The calls of modules of these classes in one trace, by number; a subclass counts as its own class.

    ``order`` holds the numbers in the order in which calls returned: inner ones first. Without ``marking``,
    calls are counted only.
    """

    classes: tuple[type[nn.Module], ...] = ()
    marking: bool = True
    calls: dict[int, ModuleCall] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)

    @contextlib.contextmanager
    def watching(self, module: nn.Module) -> Iterator[None]:
        """Watch a trace; calls of an earlier one, of which nothing is left, are forgotten."""
        self.calls, self.order = {}, []
        running: list[int] = []
        paths: dict[nn.Module, tuple[str, ...]] = {}
        for path, layer in module.named_modules(remove_duplicate=False):
            paths[layer] = (*paths.get(layer, ()), path)
        with contextlib.ExitStack() as stack:
            for layer in (layer for layer in paths if isinstance(layer, self.classes)):
                # Outside all hooks that the module has: what they change belongs to the call.
                enter = self._enter(paths[layer], layer, running)
                before = layer.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
                after = layer.register_forward_hook(self._exit(running))
                stack.callback(before.remove)
                stack.callback(after.remove)
            yield
        self._check()

    def _enter(self, paths: tuple[str, ...], layer: nn.Module, running: list[int]) -> Any:
        # torch passes a proxy, of a class that it makes for each call, in place of the layer.
        def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            number = len(self.calls)
            running.append(number)
            leaves, shape = pytree.tree_flatten((args, kwargs))
            call = self.calls[number] = ModuleCall(type(layer), paths, input_names(layer, args, kwargs))
            values = [self._mark(ENTER, leaf, number, i) for i, leaf in enumerate(leaves)]
            call.taken = [(x, x._version) for x in values if isinstance(x, Tensor)]
            return pytree.tree_unflatten(values, shape)

        return enter

    def _exit(self, running: list[int]) -> Any:
        def leave(_: nn.Module, __: Any, out: Any) -> Any:
            number = running.pop()
            call = self.calls[number]
            self.order.append(number)
            if any(x._version != version for x, version in call.taken):
                raise ExportError(
                    f"The module '{call.paths[0]}' ({call.kind.__name__}) changes its input in place; no function can. "
                    "Leave the class out of functions, or let forward() work on a copy."
                )
            leaves, shape = pytree.tree_flatten(out)
            call.outputs = output_names(out)
            values = [self._mark(EXIT, leaf, number, i) for i, leaf in enumerate(leaves)]
            if not any(isinstance(value, Tensor) for value in values):
                raise ExportError(
                    f"The module '{call.paths[0]}' ({call.kind.__name__}) returns {type(out).__name__}, in which torch "
                    "sees no tensor; a function returns tensors, or tuples, lists and dicts of them."
                )
            return pytree.tree_unflatten(values, shape)

        return leave

    def _mark(self, kind: str, x: Any, call: int, index: int) -> Any:
        if not (isinstance(x, Tensor) and self.marking):
            return x
        attributes: dict[str, Any] = {"call": call, "index": index}
        return torch.onnx.ops.symbolic(f"{MARKS}::{kind}", (x,), attributes, dtype=x.dtype, shape=x.shape, version=1)

    def _check(self) -> None:
        called = {call.kind for call in self.calls.values()}
        for wanted in self.classes:
            if not any(issubclass(kind, wanted) for kind in called):
                raise ExportError(
                    f"The model has a {wanted.__name__}, but does not call it as a module, so there is no function to "
                    "make: its owner may read its weights instead. Name the class of the owner."
                )


def classes_named(module: nn.Module, names: Sequence[str]) -> tuple[type[nn.Module], ...]:
    """The classes of the module's parts, and those above them, that are named package.module:Class.

    A class may be named by any module that has it, as torch.nn:Linear.
    """
    present = dict.fromkeys(kind for part in module.modules() for kind in type(part).__mro__)
    wanted = []
    for name in names:
        package, _, attribute = name.partition(":")
        imported = getattr(sys.modules.get(package), attribute, None) if attribute else None
        named = [kind for kind in present if class_name(kind) == name or kind is imported]
        if not named:
            there = ", ".join(dict.fromkeys(class_name(type(part)) for part in module.modules()))
            raise InputError(f"There is no module of the class {name} to make a function of. The model has {there}.")
        wanted += named
    for kind in wanted:
        if not issubclass(kind, nn.Module):
            raise InputError(f"{class_name(kind)} is not a class of modules, and cannot become a function.")
    return tuple(kind for kind in present if kind in wanted)


def input_names(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """The parameters of ``forward`` that tensors are, or are part of: x, mask, states_0."""
    parameters = inspect.signature(layer.forward).parameters.values()
    names = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    names += [f"args_{i}" for i in range(len(names), len(args))]
    return _leaf_names(dict(zip(names, args, strict=False)) | kwargs, "")


def output_names(out: Any) -> list[str]:
    return _leaf_names(out, "out")


def _leaf_names(tree: Any, base: str) -> list[str]:
    leaves, _ = pytree.tree_flatten_with_path(tree)
    return [re.sub(r"\W+", "_", base + pytree.keystr(where)).strip("_") for where, _ in leaves]
