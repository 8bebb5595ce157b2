"""Modules as ONNX functions: which calls become nodes of which function, and that the answers stay the same."""

from __future__ import annotations

import runpy
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn

from osa_runtime.errors import ExportError, InputError
from osa_runtime.exporters import export
from osa_runtime.exporters.module_calls import classes_named
from osa_runtime.onnx_functions import expanded

pytestmark = pytest.mark.slow

WIDTH = 4


class Scale(nn.Module):
    """A constant that may differ between instances, a weight, and perhaps sizes."""

    def __init__(self, factor: float = 2.0, *, reshaping: bool = False) -> None:
        super().__init__()
        self.factor, self.reshaping = factor, reshaping
        self.weight = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        out = x * self.weight * self.factor
        return out.reshape(x.shape[0], -1).reshape(x.shape) * x.shape[1] if self.reshaping else out


class Pair(nn.Module):
    """Several results, one of which passes an input on and one of which is nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, *, other: Tensor | None = None) -> dict[str, Any]:
        mixed = self.mix(x) if other is None else self.mix(x) + other
        return {"mixed": mixed, "same": x, "nothing": None}


class Tree(nn.Module):
    """Children one after another; a child may occur twice, which shares its weights."""

    def __init__(self, children: Sequence[nn.Module], *, skip: bool = False) -> None:
        super().__init__()
        self.parts = nn.ModuleList(children)
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        out = x
        for part in self.parts:
            result = part(out, other=x) if isinstance(part, Pair) else part(out)
            out = result["mixed"] + result["same"] if isinstance(part, Pair) else result
        return torch.tanh(out + x if self.skip else out)


class Model(nn.Module):
    """A token in front, so that no part has the length of the input."""

    def __init__(self, tree: nn.Module) -> None:
        super().__init__()
        self.tree, self.token = tree, nn.Parameter(torch.randn(1, 1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.tree(torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)) + 1


def random_tree(random: np.random.Generator, depth: int) -> nn.Module:
    kinds = ["scale", "pair", "linear", "tree", "tree"] if depth else ["scale", "pair", "linear"]
    match random.choice(kinds):
        case "scale":
            return Scale(float(random.choice([0.5, 2.0])), reshaping=bool(random.integers(2)))
        case "pair":
            return Pair()
        case "linear":
            return nn.Linear(WIDTH, WIDTH, bias=bool(random.integers(2)))
    children = [random_tree(random, depth - 1) for _ in range(random.integers(1, 4))]
    children += [children[0]] if random.integers(2) else []
    return Tree(children, skip=bool(random.integers(2)))


def exported(module: nn.Module, out: Path, functions: Sequence[type | str], **options: Any) -> onnx.ModelProto:
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", min=2, max=64)}
    known = {"dynamic_shapes": {"x": axes}, "input_names": ["x"]}
    artifact = export(module.eval(), torch.randn(2, 3, WIDTH), out, functions=functions, **(known | options))
    return onnx.load(artifact.model_path)


def answer(model: onnx.ModelProto, x: Any) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"]).run(None, {"x": x})[0]


def calls(model: onnx.ModelProto) -> Counter[str]:
    """The calls of functions, in the graph and in functions."""
    own = {function.name for function in model.functions}
    return Counter(n.op_type for body in [model.graph, *model.functions] for n in body.node if n.op_type in own)


def inputs(model: onnx.ModelProto) -> dict[str, list[str]]:
    return {function.name: list(function.input) for function in model.functions}


def assert_same_when_expanded(model: onnx.ModelProto) -> None:
    """Compare bit for bit with the bodies in the graph, by our own expansion and by onnx's."""
    flat = expanded(model)
    assert not flat.functions
    onnx.checker.check_model(flat, full_check=True)
    x = np.random.default_rng(0).standard_normal((3, 5, WIDTH)).astype(np.float32)
    for other in (flat, onnx.inliner.inline_local_functions(model)):
        np.testing.assert_array_equal(answer(model, x), answer(other, x))


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 60))])
def test_random_trees_answer_the_same_with_and_without_functions(seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    module = Model(Tree([random_tree(random, 2), random_tree(random, 2)], skip=True))
    classes = [Tree, *(kind for kind in (Scale, Pair, nn.Linear) if any(isinstance(m, kind) for m in module.modules()))]
    kept = exported(module, tmp_path / "kept", classes)
    assert "Tree" in {node.op_type.split("_")[0] for node in kept.graph.node}
    assert all("Reshape" not in inputs for inputs in inputs(kept).values()), "sizes are read from own tensors"
    assert_same_when_expanded(kept)


def test_equal_bodies_share_a_function_and_others_do_not(tmp_path: Path) -> None:
    shared = Scale()
    parts = [shared, shared, Scale(), Scale(0.5), Scale(reshaping=True), Scale(reshaping=True), nn.Linear(WIDTH, WIDTH)]
    kept = exported(Model(Tree(parts)), tmp_path / "kept", [Scale], checked=False)
    # A factor that calls disagree on is an input, as a weight is.
    assert inputs(kept) == {"Scale": ["x", "weight", "/Mul_2.constant_1"], "Scale_2": ["x", "weight"]}
    assert calls(kept) == {"Scale": 4, "Scale_2": 2}
    assert_same_when_expanded(kept)


class Turning(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, *, turned: bool = False) -> Tensor:
        return self.linear(x).flip(1) if turned else self.linear(x)


class Caller(nn.Module):
    """One module, called twice in one way and once in another."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Turning()

    def forward(self, x: Tensor) -> Tensor:
        return self.part(self.part(self.part(x)), turned=True)


def test_calls_of_one_module_in_several_ways_have_names_of_their_own(tmp_path: Path) -> None:
    kept = exported(Caller(), tmp_path / "kept", [Turning])
    assert calls(kept) == {"Turning": 2, "Turning_2": 1}
    assert len({node.name for node in kept.graph.node}) == len(kept.graph.node)
    assert_same_when_expanded(kept)


class Awkward(nn.Module):
    """A value that the parent reads without being given it, a branch, a buffer, and a size of another name."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("shift", torch.arange(float(WIDTH)))
        self.kept: Tensor | None = None

    def forward(self, x: Tensor, sizes: tuple[int, ...], flags: None = None) -> list[Tensor]:
        self.kept = torch.sin(x) + self.shift
        y = self.linear(self.kept) / sizes[0]
        chosen = torch.cond(y.sum() > 0, lambda y, x: (y + x).cos() * 2, lambda y, x: y - x, (y, x))
        return [chosen, y, y]


class Parent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Awkward(), Awkward()

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = self.first(x, (x.shape[1], 2), flags=None)
        d, *_ = self.second(a + b + c, (x.shape[1], 2))
        assert self.first.kept is not None
        return d * self.first.kept


def test_what_a_module_keeps_branches_and_tuples_stay_right(tmp_path: Path) -> None:
    kept = exported(Parent(), tmp_path / "kept", [Awkward])
    weights = ["linear/MatMul.weight", "linear.bias"]
    assert inputs(kept) == {"Awkward": ["x", "shift", *weights], "Awkward_2": ["x", "/Add.constant_1", *weights]}
    assert [len(function.output) for function in kept.functions] == [4, 1], "one of them returns what it keeps, too"
    assert [node.op_type for node in kept.graph.node if node.domain] == ["Awkward", "Awkward_2"]
    assert_same_when_expanded(kept)


def test_inlining_is_as_if_there_were_no_classes(tmp_path: Path) -> None:
    module = Model(Tree([Scale(), Pair()]))
    with pytest.warns(UserWarning, match="target='openvino' takes no functions"):
        asked = exported(module, tmp_path / "asked", [Tree], target="openvino", checked=False)
    plain = exported(module, tmp_path / "plain", "inline", target="openvino", checked=False)
    assert asked == plain
    assert not asked.functions


def test_other_settings_of_the_export_apply_to_functions(tmp_path: Path) -> None:
    module, options = Model(Tree([Scale(reshaping=True), Pair()])), {"dtype": "fp16", "opset": 23}
    kept = exported(module, tmp_path / "kept", [Tree, Scale], external_data=True, **options)
    assert calls(kept) == {"Tree": 1, "Scale": 1}
    assert [entry.version for function in kept.functions for entry in function.opset_import if not entry.domain] == [
        23,
        23,
    ]
    assert (tmp_path / "kept" / "model.onnx.data").is_file()


class InPlace(Scale):
    def forward(self, x: Tensor) -> Tensor:
        return x.add_(self.weight)


class Reader(nn.Module):
    """A module that uses a part without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Scale()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.part.weight


class Wordy(Scale):
    def forward(self, x: Tensor) -> Any:
        return type("Answer", (), {"x": super().forward(x)})()


class Reading(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = Wordy()

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x).x


def test_a_class_may_be_named_by_any_module_that_has_it() -> None:
    module = nn.Sequential(nn.Linear(2, 2))
    for name in ("torch.nn:Linear", "torch.nn.modules.linear:Linear", "torch.nn.modules:Linear"):
        assert classes_named(module, [name]) == (nn.Linear,)
    for name in ("torch.nn:Conv2d", "torch.nn", "torch.nn:", ":Linear", "nowhere:Linear", "torch.nn:init"):
        with pytest.raises(InputError, match=f"no module of the class {name} "):
            classes_named(module, [name])


@pytest.mark.parametrize(
    ("module", "functions", "error", "message"),
    [
        (Tree([InPlace()]), [InPlace], ExportError, r"'parts.0' \(InPlace\) changes its input in place"),
        (Reader(), [Scale], ExportError, "has a Scale, but does not call it"),
        (Reading(), [Wordy], ExportError, r"'part' \(Wordy\) returns Answer, in which torch sees no tensor"),
        (
            Tree([Scale()]),
            [nn.Conv2d],
            InputError,
            r"no module of the class torch.nn.modules.conv:Conv2d .* has .*Scale",
        ),
        (Tree([Scale()]), [object], InputError, "builtins:object is not a class of modules"),
        (Tree([Scale()]), Scale, InputError, "expected keep, inline, or a list of classes"),
        (Tree([Scale()]), "Scale", InputError, "expected one of keep, inline. For modules as functions, pass a list"),
    ],
)
def test_refusals(module: nn.Module, functions: Any, error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        exported(module, tmp_path / "kept", functions)
    assert not (tmp_path / "kept").exists()


def test_other_formats_have_no_functions(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"A function of .*:Scale is for format='onnx' only, not for pt2"):
        exported(Tree([Scale()]), tmp_path / "kept", [Scale], format="pt2")


def test_the_example_shows_one_node_per_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[2] / "examples" / "transformer_functions.py"
    runpy.run_path(str(example))["main"](tmp_path)
    printed = capsys.readouterr().out
    assert printed.count("torch.TransformerEncoderLayer\n") == 4
    assert "torch.MultiheadAttention: 59 nodes, inputs query, key, value, in_proj_weight, in_proj_bias" in printed
