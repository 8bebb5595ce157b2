"""The functions of modules, each call fed alone with what eager's module takes, and compared with what it returns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import FunctionProto, NodeProto, helper, numpy_helper
from torch import Tensor, no_grad
from torch.utils import _pytree as pytree

from osa_runtime.errors import OsaError
from osa_runtime.exporters.eager import Eager
from osa_runtime.exporters.module_calls import input_names, output_names
from osa_runtime.onnx_files import read_onnx
from osa_runtime.onnx_functions import expanded, module_functions
from osa_runtime.parity.certificate import Check, UnitResult
from osa_runtime.parity.comparison import Tolerance
from osa_runtime.parity.feeds import Case
from osa_runtime.verification.inside.model_parts import Array
from osa_runtime.verification.inside.onnx_parts import OnnxParts
from osa_runtime.verification.unit_checks import UNIT_DEPTH, judged


@dataclass(frozen=True)
class EagerCall:
    """The arguments and the result of one call of a module, copied before anything works on them in place."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any


class FunctionCalls:
    """The calls of all functions of modules in an ONNX model, also of those inside others."""

    def __init__(self, path: Path, parts: OnnxParts) -> None:
        self._model, self._folder, self._parts = read_onnx(path), path.parent, parts
        self.functions = module_functions(self._model)

    def check(self, eager: Eager, oracle: Eager, case: Case, tolerance: Callable[[int], Tolerance]) -> list[UnitResult]:
        """Check every call on one case, in the precision of eager and against float64."""
        found: list[UnitResult] = []
        for key, function in self.functions.items():
            flat = expanded(self._model, keep=(key,))
            weights = {tensor.name: tensor for tensor in flat.graph.initializer}
            nodes = [node for node in flat.graph.node if (node.domain, node.op_type) == key]
            taken = _eager_calls(eager, [_path(node) for node in nodes], case.feeds)
            session: Any = None
            # Where a shared module is called without its result being used, calls cannot be told apart.
            nodes = [node for node in nodes if len(taken[_path(node)]) == sum(_path(n) == _path(node) for n in nodes)]
            calls = [(node, taken[_path(node)].pop(0)) for node in nodes]
            for node, call in calls:
                name = f"{_path(node) or 'the model'} ({function.name})"
                layer = oracle.module.get_submodule(_path(node))
                depth = max(UNIT_DEPTH, sum(parameter.dim() >= 2 for parameter in layer.parameters()))
                expected, truth = _leaves(call.out), _leaves(_exact(oracle, _path(node), call))
                wanted = {name: expected[name] for name in function.output if name in expected}
                try:
                    given = self._given(node, function, call, layer, weights, case.feeds)
                    session = session or self._parts.start(_alone(function, given, wanted, flat))
                    actual = dict(zip(wanted, self._parts.answers(session, given, None), strict=True))
                except OsaError as error:
                    found.append(UnitResult(name, None, None, 0.0, False, str(error), case=case.name))
                    continue
                for out in wanted:
                    label = name if len(wanted) == 1 else f"{name}, {out}"
                    found.append(judged(label, actual[out], expected[out], truth[out], case, tolerance(depth)))
        return found

    def _given(
        self,
        node: NodeProto,
        function: FunctionProto,
        call: EagerCall,
        layer: Any,
        weights: Mapping[str, onnx.TensorProto],
        feeds: Mapping[str, Array],
    ) -> dict[str, Array]:
        """The inputs of the function: weights of the file, tensors of eager, the rest from a run of the artifact."""
        names = input_names(layer, call.args, call.kwargs)
        leaves = dict(zip(names, pytree.tree_leaves((call.args, call.kwargs)), strict=True))
        given, rest = dict[str, Array](), dict[str, str]()
        for formal, name in zip(function.input, node.input, strict=True):
            if name in weights:
                given[formal] = numpy_helper.to_array(weights[name], str(self._folder))
            elif isinstance(leaves.get(formal), Tensor):
                given[formal] = leaves[formal].numpy()
            else:
                rest[formal] = name
        return given | dict(zip(rest, self._parts.values(list(rest.values()), feeds), strict=True))


def functions_check(results: Sequence[UnitResult]) -> Check:
    """The check "functions" of a certificate."""
    wrong = [result for result in results if not result.passed]
    if wrong:
        shown = "; ".join(f"{one.unit}: {one.reason}" for one in wrong[:3])
        return Check("functions", False, f"{len(wrong)} of {len(results)} results of functions are wrong: {shown}")
    worst = max(results, key=lambda one: (one.alone or 0.0) / max(one.tolerance, 1e-300))
    text = f"{worst.unit}: {worst.alone:.1e} (eager {worst.eager:.1e}, limit {worst.tolerance:.1e})"
    return Check("functions", True, f"each call fed alone, {len(results)} results; the furthest from float64 is {text}")


def _path(node: NodeProto) -> str:
    return node.name.rpartition("/")[0]


def _leaves(out: Any) -> dict[str, Array]:
    pairs = zip(output_names(out), pytree.tree_leaves(out), strict=True)
    return {name: leaf.numpy() for name, leaf in pairs if isinstance(leaf, Tensor)}


def _eager_calls(eager: Eager, paths: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, list[EagerCall]]:
    """The calls of the modules at these paths in one run, in their order."""
    found: dict[str, list[EagerCall]] = {path: [] for path in paths}
    waiting: list[tuple[Any, Any]] = []

    def enter(_: Any, args: Any, kwargs: Any) -> None:
        waiting.append(_copied((args, kwargs)))

    with contextlib.ExitStack() as stack:
        for path, calls in found.items():
            layer = eager.module.get_submodule(path)
            stack.callback(layer.register_forward_pre_hook(enter, prepend=True, with_kwargs=True).remove)
            record = _recorder(calls, waiting)
            stack.callback(layer.register_forward_hook(record).remove)
        eager.run(feeds)
    return found


def _recorder(calls: list[EagerCall], waiting: list[tuple[Any, Any]]) -> Callable[..., None]:
    def record(_: Any, __: Any, out: Any) -> None:
        calls.append(EagerCall(*waiting.pop(), _copied(out)))

    return record


def _copied(tree: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.clone(), tree)


def _exact(oracle: Eager, path: str, call: EagerCall) -> Any:
    """The module's result in float64 on the same arguments."""
    args, kwargs = pytree.tree_map_only(Tensor, lambda x: oracle.tensors([x.numpy()])[0], (call.args, call.kwargs))
    with no_grad(), oracle.attention():
        return oracle.module.get_submodule(path)(*args, **kwargs)


def _alone(
    function: FunctionProto, given: Mapping[str, Array], wanted: Mapping[str, Array], model: onnx.ModelProto
) -> onnx.ModelProto:
    """A model that is one call of the function; its weights are inputs, so that it serves all calls."""
    inputs, outputs = (
        [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), None) for k, v in arrays.items()]
        for arrays in (given, wanted)
    )
    node = helper.make_node(function.name, function.input, function.output, domain=function.domain)
    graph = helper.make_graph([node], function.name, inputs, outputs)
    return helper.make_model(
        graph, functions=model.functions, opset_imports=model.opset_import, ir_version=model.ir_version
    )
