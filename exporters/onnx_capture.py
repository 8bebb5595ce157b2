"""From a module to an ONNX graph in which each call of orthogonal attention is one ``ai.osa`` node."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import onnx_ir as ir
import torch
from onnx_ir.passes.common import CommonSubexpressionEliminationPass
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import statically_known_true

from osa_runtime.errors import ExportError
from osa_runtime.exponential import ExponentialMethod
from osa_runtime.exporters.examples import Examples
from osa_runtime.exporters.folding import errors_naming_layers
from osa_runtime.exporters.functions import DOMAIN, VERSION, FunctionChoice
from osa_runtime.exporters.module_calls import ModuleCalls, classes_named
from osa_runtime.exporters.module_functions import move_into_functions
from osa_runtime.exporters.settings import ExportSettings
from osa_runtime.ops.coefficients import MOST_DENSE_TOKENS, SHORT
from osa_runtime.ops.folded import fewest_tokens, is_foldable
from osa_runtime.ops.interception import intercept
from osa_runtime.steps import quiet

NODE, LAYER_NODE = f"{DOMAIN}::OrthogonalAttention", f"{DOMAIN}::OrthogonalSelfAttention"


@dataclass
class Calls:
    """The settings of the calls of ``orthogonal_attention`` in one trace."""

    settings: ExportSettings
    force_mask: bool = False
    choices: set[FunctionChoice] = field(default_factory=set)
    modules: ModuleCalls = field(default_factory=ModuleCalls)

    def replacement(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float | Tensor,
        mask: Tensor | None,
        evaluation: ExponentialMethod,
    ) -> Tensor:
        asked = self.settings.applied_to(evaluation)
        if mask is None and self.force_mask:
            mask = torch.ones(q.shape[:-1], dtype=torch.bool, device=q.device)
        self.choices.add(
            FunctionChoice(
                form=_resolved_form(asked, q),
                approximant=asked.approximant,
                squarings=asked.squarings,
                masked=mask is not None,
                counted=not asked.is_fixed,
                core=self.settings.core,
                fallback=_falls_back(asked, q.shape[-2]),
                short=_is_short(asked, q.shape[-2], q.shape[-1]),
                any_type=any(x.dtype != torch.float32 for x in (q, k, v, scale) if isinstance(x, Tensor)),
            )
        )
        return _node(q, k, v, scale, mask)

    def layer(
        self,
        x: Tensor,
        weight: Tensor,
        out: Tensor,
        scale: Tensor,
        mask: Tensor | None,
        evaluation: ExponentialMethod,
    ) -> Tensor | None:
        """One node for the layer where it may be folded; None for one that keeps its projections as nodes.

        Inlined graphs are for runtimes other than ONNX Runtime, some of which mishandle its branches.
        """
        asked, tokens = self.settings.applied_to(evaluation), x.shape[1]
        static: object = tokens  # a symbol where the axis is dynamic
        if self.settings.functions == "inline" or not is_foldable(asked):
            return None
        if statically_known_true(tokens < fewest_tokens(x.shape[2], weight.shape[0] // (3 * scale.shape[0]))):
            return None
        if mask is None and self.force_mask:
            mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        self.choices.add(
            FunctionChoice(
                form="lowrank" if isinstance(static, int) else asked.form,
                masked=mask is not None,
                counted=True,
                any_type=any(one.dtype != torch.float32 for one in (x, weight, out, scale)),
                fallback=_falls_back(asked, static),
                short=_is_short(asked, static, weight.shape[0] // (3 * scale.shape[0])),
                layered=True,
                sized=not isinstance(static, int),
            )
        )
        inputs = (x, weight.mT, out.mT, scale) if mask is None else (x, weight.mT, out.mT, scale, mask)
        shape = (*x.shape[:2], out.shape[0])
        return torch.onnx.ops.symbolic(LAYER_NODE, inputs, dtype=x.dtype, shape=shape, version=VERSION)


def _resolved_form(asked: ExponentialMethod, q: Tensor) -> str:
    """The form of a call: auto is resolved where N is fixed, and where the graph may not branch."""
    if asked.form != "auto":
        return asked.form
    tokens: object = q.shape[-2]  # a symbol where the axis is dynamic
    if isinstance(tokens, int):
        return "dense" if tokens <= 2 * q.shape[-1] else "lowrank"
    return "lowrank" if asked.is_fixed else "auto"


def _falls_back(asked: ExponentialMethod, tokens: object) -> bool:
    """True if auto, resolved to the low-rank form by a fixed N, keeps the dense form for what that has no digits of."""
    affordable = isinstance(tokens, int) and tokens <= MOST_DENSE_TOKENS
    return affordable and asked.form == "auto" and not asked.is_fixed


def _is_short(asked: ExponentialMethod, tokens: object, width: int) -> bool:
    """True if the dense form is no slower than the low-rank one in float64."""
    return _falls_back(asked, tokens) and isinstance(tokens, int) and tokens <= SHORT * width


def _node(q: Tensor, k: Tensor, v: Tensor, scale: float | Tensor, mask: Tensor | None) -> Tensor:
    """A node for (batch, heads, N, d), which the functions expect; other ranks are reshaped."""
    # In float32 whatever the type of q, as in eager: half precision would round it.
    factor = scale if isinstance(scale, Tensor) else torch.full((), scale, dtype=torch.float32)
    if q.dim() == 4:
        inputs = (q, k, v, factor) if mask is None else (q, k, v, factor, mask)
        return torch.onnx.ops.symbolic(NODE, inputs, dtype=v.dtype, shape=v.shape, version=VERSION)
    lead = q.shape[:-2]
    flat_q, flat_k, flat_v = (x.reshape(-1, 1, *x.shape[-2:]) for x in (q, k, v))
    flat_factor = factor.expand(lead).reshape(-1, 1)
    flat_mask = None if mask is None else mask.expand(q.shape[:-1]).reshape(-1, 1, q.shape[-2])
    return _node(flat_q, flat_k, flat_v, flat_factor, flat_mask).reshape(v.shape)


def capture(module: nn.Module, examples: Examples, settings: ExportSettings) -> tuple[ir.Model, FunctionChoice | None]:
    """The optimised graph, and the choice of functions that its attention nodes need (None without any).

    Calls of the modules that were asked for are nodes of functions.
    """
    calls = Calls(settings)
    calls.modules.classes = classes_named(module, settings.function_classes)
    calls.modules.marking = settings.functions == "keep"
    model = _trace(module, examples, calls)
    if len({choice.masked for choice in calls.choices}) == 2:
        # All nodes share one definition, so calls without a mask get one in which every token is real.
        calls = Calls(settings, force_mask=True, modules=calls.modules)
        model = _trace(module, examples, calls)
    # Before inlining: nodes that it merges afterwards would be missing from the list of calls.
    CommonSubexpressionEliminationPass()(model)
    choice = _common(calls.choices)
    if choice is not None and choice.counted:
        _count_squarings(model)
    if calls.modules.marking and calls.modules.order:
        move_into_functions(model, calls.modules, module.state_dict())
    return model, choice


def _count_squarings(model: ir.Model) -> None:
    """Let each call return its number of squarings, so that it can be read in a runtime."""
    for node in model.graph:
        if node.domain == DOMAIN:
            node.resize_outputs(2)
            node.outputs[1].type, node.outputs[1].shape = ir.TensorType(ir.DataType.INT64), ir.Shape([])


def _common(choices: set[FunctionChoice]) -> FunctionChoice | None:
    """The evaluation that all calls share: of the forms, one that is valid wherever each of them is."""
    if not choices:
        return None
    _demand_one("approximant", {choice.approximant for choice in choices})
    _demand_one("squarings", {str(choice.squarings) for choice in choices})
    one = replace(
        min(choices, key=lambda choice: choice.form),
        any_type=any(choice.any_type for choice in choices),
        fallback=any(choice.fallback for choice in choices),
        short=all(choice.short or choice.form == "dense" for choice in choices),
        layered=any(choice.layered for choice in choices),
        sized=any(choice.layered and choice.sized for choice in choices),
    )
    if len({choice.form for choice in choices}) == 1:
        return one
    return replace(one, form="lowrank" if one.is_fixed else "auto")


def _demand_one(name: str, values: set[str]) -> None:
    if len(values) > 1:
        raise ExportError(
            f"The calls of orthogonal attention in the model have different {name}: {', '.join(sorted(values))}. "
            f"An ONNX model has one definition for all calls: make them equal with {name}=…"
        )


def _trace(module: nn.Module, examples: Examples, calls: Calls) -> ir.Model:
    def program() -> torch.export.ExportedProgram:
        return torch.export.export(module, examples.tensors, dynamic_shapes=examples.shapes(module))

    with (
        intercept(calls.replacement, calls.layer),
        torch.no_grad(),
        quiet(),
        errors_naming_layers(module, program),
        calls.modules.watching(module),
    ):
        captured = torch.onnx.export(
            module,
            examples.tensors,
            dynamo=True,
            opset_version=calls.settings.opset,
            input_names=examples.names,
            dynamic_shapes=examples.shapes(module),
            verbose=False,
        )
    assert captured is not None
    return captured.model
