"""Exported graphs in runtimes other than ours: right or NaN in OpenVINO and AOTInductor, loadable by old ONNX Runtimes.

OpenVINO computes float64 as float32 and says nothing; a graph must notice that.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import onnx.reference
import onnx_ir as ir
import onnxruntime
import openvino
import pytest
import torch
from hypothesis import assume, given, settings
from torch import Tensor

import osa_runtime
from attention_models import attention_model
from exponents import normal, relative_error, scale_for
from osa_runtime.exporters import FunctionChoice
from osa_runtime.exporters.functions.portable import keep_nan
from osa_runtime.nn import OrthogonalSelfAttention
from osa_runtime.ops.graph_control import branch
from osa_runtime.ops.scaling import _doubled_phi1_in_graph
from osa_runtime.parity.tolerances import FLOAT32_ALONE_SHARE
from structured_attention import Problem, is_right_or_nan, problems

pytestmark = pytest.mark.slow
CHOICES = {
    "auto": FunctionChoice(any_type=False),
    "lowrank": FunctionChoice(any_type=False, form="lowrank"),
    "dense": FunctionChoice(any_type=False, form="dense"),
    "pade": FunctionChoice(any_type=False, approximant="pade"),
    "lowrank fixed": FunctionChoice(any_type=False, form="lowrank", squarings=4),
    "lowrank fixed pade": FunctionChoice(any_type=False, form="lowrank", approximant="pade", squarings=4),
    "dense fixed": FunctionChoice(any_type=False, form="dense", squarings=4),
    "lowrank fixed float32": FunctionChoice(any_type=False, form="lowrank", squarings=4, core="float32"),
    "dense fixed float32": FunctionChoice(any_type=False, form="dense", squarings=4, core="float32"),
}
# OpenVINO 2026.4 returns uninitialised memory from Loop and If where sizes are dynamic.
STRAIGHT = [name for name in CHOICES if "fixed" in name]
ALONE = [name for name in CHOICES if "float32" in name]

SMALLEST_FOR_TRACT = 1e-31  # It takes numbers below 1e-38 for 0, so that smaller values lose digits (docs/export.md).

Run = Callable[[Problem], Tensor]


def inlined(choice: FunctionChoice) -> onnx.ModelProto:
    return onnx.inliner.inline_local_functions(attention_model(choice))


@pytest.fixture(scope="module")
def in_openvino() -> dict[str, Run]:
    return {name: _runner(CHOICES[name]) for name in STRAIGHT}


def _runner(choice: FunctionChoice) -> Run:
    core = openvino.Core()
    exact = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": "1"}
    compiled = core.compile_model(core.read_model(inlined(choice).SerializeToString()), "CPU", exact)

    def run(problem: Problem) -> Tensor:
        feeds = {name: getattr(problem, name)[None, None].numpy() for name in ("q", "k", "v")}
        results = compiled(feeds | {"scale": np.array([problem.scale], np.float32)})
        return torch.from_numpy(results[compiled.output(0)][0, 0].copy())

    return run


def test_openvino_is_right_or_nan(in_openvino: dict[str, Run]) -> None:
    @settings(max_examples=120)
    @given(problem=problems())
    def judge(problem: Problem) -> None:
        for name, run in in_openvino.items():
            assert is_right_or_nan(run(problem), problem, share_of(name)), name

    judge()


def test_tract_is_right_or_nan(tmp_path: Path) -> None:
    """It takes x·0 for 0, NaN or not, and the larger of NaN and a number for the number."""
    sessions = {}
    for name in STRAIGHT:
        path = tmp_path / f"{name}.onnx"
        onnx.save(inlined(CHOICES[name]), path)
        sessions[name] = osa_runtime.load(path, runtime="tract", threads=1)

    @settings(max_examples=60, deadline=None)
    @given(problem=problems())
    def judge(problem: Problem) -> None:
        assume(float(problem.v.abs().max()) >= SMALLEST_FOR_TRACT)
        feeds = {name: getattr(problem, name)[None, None].numpy() for name in ("q", "k", "v")}
        for name, session in sessions.items():
            (found,) = session.run(feeds | {"scale": np.array([problem.scale], np.float32)}).values()
            assert is_right_or_nan(torch.from_numpy(found[0, 0]), problem, share_of(name)), name

    judge()


@pytest.mark.parametrize("size", [0.0, 1e-36, 1e-28, 1e-20, 1e20, 1e37])
def test_openvino_answers_values_of_any_size(size: float, in_openvino: dict[str, Run]) -> None:
    """Tiny keys and tiny values have a product below float32, which OpenVINO takes for float64."""
    q, k, v = (normal(5, 2, seed=seed) * factor for seed, factor in ((1, 1e11), (2, 1e-12), (3, size)))
    problem = Problem(q, k, v, 1.0)
    for name, run in in_openvino.items():
        found = run(problem)
        assert bool(found.isfinite().all()), name
        assert is_right_or_nan(found, problem, share_of(name)), name


def share_of(name: str) -> float:
    return FLOAT32_ALONE_SHARE if name in ALONE else 1.0


@pytest.fixture(scope="module")
def in_onnx_runtime() -> dict[str, Run]:
    return {name: _onnx_runner(CHOICES[name]) for name in ALONE}


def _onnx_runner(choice: FunctionChoice) -> Run:
    model = attention_model(choice).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])

    def run(problem: Problem) -> Tensor:
        feeds = {name: getattr(problem, name)[None, None].numpy() for name in ("q", "k", "v")}
        return torch.from_numpy(session.run(None, feeds | {"scale": np.array([problem.scale], np.float32)})[0][0, 0])

    return run


def test_float32_alone_is_right_or_nan(in_onnx_runtime: dict[str, Run]) -> None:
    @settings(max_examples=200)
    @given(problem=problems())
    def judge(problem: Problem) -> None:
        for name, run in in_onnx_runtime.items():
            assert is_right_or_nan(run(problem), problem, share_of(name)), name

    judge()


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize(("tokens", "width", "norm"), [(17, 16, 8.0), (100, 16, 8.0), (120, 64, 3.0)])
def test_float32_alone_answers_ordinary_attention(
    name: str, tokens: int, width: int, norm: float, in_onnx_runtime: dict[str, Run]
) -> None:
    q, k, v = (normal(tokens, width, seed=seed) for seed in (1, 2, 3))
    problem = Problem(q, k, v, float(scale_for(q, k, norm).float()))
    found = in_onnx_runtime[name](problem)
    assert bool(found.isfinite().all())
    assert is_right_or_nan(found, problem)


@pytest.mark.parametrize("name", ALONE)
def test_float32_alone_has_no_float64(name: str) -> None:
    graph = onnx.shape_inference.infer_shapes(inlined(CHOICES[name])).graph
    types = {info.name: info.type.tensor_type.elem_type for info in graph.value_info}
    assert all(output in types for node in graph.node[:-1] for output in node.output)
    assert onnx.TensorProto.DOUBLE not in types.values()
    constants = [
        attribute.t.data_type for node in graph.node for attribute in node.attribute if attribute.HasField("t")
    ]
    assert onnx.TensorProto.DOUBLE not in constants


@pytest.mark.parametrize("name", CHOICES)
def test_spellings_that_some_runtimes_lack(name: str) -> None:
    """Constants in short spellings, Slice with a step, Round, and a power with an exponent of another type."""
    nodes = list(_nodes(inlined(CHOICES[name]).graph))
    assert {a.name for node in nodes if node.op_type == "Constant" for a in node.attribute} == {"value"}
    assert {"Slice", "Round", "Mod"} & {node.op_type for node in nodes} == set()


@pytest.mark.parametrize("tokens", [17, 100])
def test_fixed_squarings_leave_a_straight_program(tokens: int) -> None:
    """No branch and no loop in a torch.export program, whatever the length."""
    layer = OrthogonalSelfAttention(16, 2, squarings=4).eval().requires_grad_(False)
    axes = {0: torch.export.Dim("batch")} | ({} if tokens == 17 else {1: torch.export.Dim("tokens")})
    program = torch.export.export(layer, (normal(2, tokens, 16, seed=1),), dynamic_shapes={"x": axes})
    targets = {node.target for node in program.graph.nodes if node.op == "call_function"}
    assert [t for t in targets if isinstance(t, torch._ops.HigherOrderOperator)] == []
    x = normal(3, tokens if tokens == 17 else 33, 16, seed=2)
    assert float(relative_error(program.module()(x), copy.deepcopy(layer).double()(x.double())).max()) < 2e-6
    beyond = 60 * x
    assert bool(program.module()(beyond).isnan().all())


@pytest.mark.parametrize("name", STRAIGHT)
@pytest.mark.parametrize("tokens", [16, 17, 60])
@pytest.mark.parametrize("norm", [0.01, 0.9, 2.5])
def test_openvino_answers_ordinary_attention(name: str, tokens: int, norm: float, in_openvino: dict[str, Run]) -> None:
    q, k, v = (normal(tokens, 8, seed=seed) for seed in (1, 2, 3))
    problem = Problem(q, k, v, float(scale_for(q, k, norm).float()))
    found = in_openvino[name](problem)
    assert bool(found.isfinite().all())
    assert is_right_or_nan(found, problem)


@pytest.mark.parametrize("name", [name for name in CHOICES if name not in ALONE])
def test_no_transposition_meets_a_product_in_float64(name: str) -> None:
    """ONNX Runtime before 1.26 would fuse the two, and lacks a kernel for the result."""
    graph = onnx.shape_inference.infer_shapes(inlined(CHOICES[name])).graph
    nodes = list(_nodes(graph))
    types = {info.name: info.type.tensor_type.elem_type for g in _graphs(graph) for info in g.value_info}
    makers = {output: node for node in nodes for output in node.output}
    products = [node for node in nodes if node.op_type == "MatMul" and types[node.output[0]] == onnx.TensorProto.DOUBLE]
    assert products
    assert [node.name for node in products for x in node.input if _maker_beyond_casts(x, makers) == "Transpose"] == []


@pytest.mark.parametrize("scale", [1.0, -1.0])
def test_the_factor_between_them_is_never_one(scale: float) -> None:
    """ONNX Runtime drops a constant factor of 1, and then they meet."""
    model = inlined(CHOICES["lowrank fixed"])
    turned = {node.output[0] for node in model.graph.node if node.op_type == "Transpose"}
    factors = [node.input[1] for node in model.graph.node if node.op_type == "Mul" and node.input[0] in turned]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(factors))
    x = np.random.default_rng(0).standard_normal((1, 1, 9, 2)).astype(np.float32)
    feeds = {"q": x, "k": x[:, :, ::-1], "v": x, "scale": np.array([scale], np.float32)}
    found = onnx.reference.ReferenceEvaluator(model).run(list(dict.fromkeys(factors)), feeds)
    assert len(factors) > 2
    assert all((value != 1).all() for value in found)


ELEMENTWISE = ("Relu", "Elu", "Selu", "Celu", "HardSigmoid", "Sigmoid", "Tanh", "Exp", "LeakyRelu")
NAN_CASES = {
    **{name: (name, ["x"], {}) for name in ELEMENTWISE},
    "LeakyRelu without a slope": ("LeakyRelu", ["x"], {"alpha": 0.0}),
    "Clip": ("Clip", ["x", "zero"], {}),
    "Clip to a range": ("Clip", ["x", "zero", "one"], {}),
    "Max": ("Max", ["zero", "x"], {}),
    "Max first": ("Max", ["x", "zero"], {}),
    "Min": ("Min", ["x", "z"], {}),
    **{name: (name, ["x", "axes"], {"keepdims": 0}) for name in ("ReduceMax", "ReduceMin", "ReduceLogSumExp")},
    "MaxPool": ("MaxPool", ["x"], {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 0, 1, 1]}),
    "GlobalMaxPool": ("GlobalMaxPool", ["x"], {}),
}
CONSTANTS = {"zero": np.float32(0), "one": np.float32(1), "axes": np.array([1, 3])}


@pytest.mark.parametrize("name", NAN_CASES)
def test_nan_stays_nan(name: str, tmp_path: Path) -> None:
    """Without the guard each of these returns a number in some runtime; expected is onnx's definition, with NaN."""
    helper, (operator, inputs, attributes) = onnx.helper, NAN_CASES[name]
    random = np.random.default_rng(0)
    given = {name: random.standard_normal((2, 3, 4, 4)).astype(np.float32) for name in ("x", "z")}
    feeds = {name: given[name] for name in inputs if name in given}
    shape = {"GlobalMaxPool": [2, 3, 1, 1], "MaxPool": [2, 3, 2, 2]}.get(
        operator, [2, 4] if "axes" in inputs else [2, 3, 4, 4]
    )
    info = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 3, 4, 4]) for name in feeds]
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", *shape[1:]])
    constants = [onnx.numpy_helper.from_array(np.asarray(CONSTANTS[n]), n) for n in inputs if n in CONSTANTS]
    node = helper.make_node(operator, inputs, ["y"], name="it", **attributes)
    graph = helper.make_graph([node], "g", info, [result], constants)
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))
    plain = onnx.reference.ReferenceEvaluator(ir.to_proto(model)).run(None, feeds)[0]
    keep_nan(model)
    onnx.save(ir.to_proto(model), tmp_path / "model.onnx")
    onnx.checker.check_model(tmp_path / "model.onnx", full_check=True)
    broken = {name: x.copy() for name, x in feeds.items()}
    broken[inputs[-1] if inputs[-1] in feeds else "x"][1, 1, 2, 0] = np.nan
    reached = {"GlobalMaxPool": (1, 1), "MaxPool": (1, 1, 1, 0)}.get(
        operator, (1, 2) if "axes" in inputs else (1, 1, 2, 0)
    )
    for runtime in (None, "openvino", "tract", "reference"):
        with osa_runtime.load(tmp_path / "model.onnx", runtime=runtime) as session:
            np.testing.assert_allclose(session.run(feeds)["y"], plain, rtol=1e-4, atol=1e-6, err_msg=str(runtime))
            expected = plain.copy()
            expected[reached] = np.nan
            np.testing.assert_allclose(session.run(broken)["y"], expected, rtol=1e-4, atol=1e-6, err_msg=str(runtime))


def test_openvino_keeps_products_with_8_bit_weights_in_float32(tmp_path: Path) -> None:
    """By default it rounds their other operand to 8 bits, and answers are off by some per cent."""
    helper, random = onnx.helper, np.random.default_rng(0)
    constants = {"w": random.integers(-127, 128, (64, 64), np.int8), "scale": np.float32(0.01), "zero": np.int8(0)}
    tensors = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scale", "zero"], ["wide"]),
        helper.make_node("MatMul", ["x", "wide"], ["y"]),
    ]
    info = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 64]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), tmp_path / "m.onnx")
    x = random.standard_normal((5, 64)).astype(np.float32)
    with osa_runtime.load(tmp_path / "m.onnx", runtime="openvino") as session:
        np.testing.assert_allclose(session.run({"x": x})["y"], x @ (0.01 * constants["w"]), rtol=1e-4, atol=1e-4)


def test_whole_numbers_need_no_guard() -> None:
    """Clip and Max of sizes: IsNaN takes no whole numbers."""
    helper = onnx.helper
    info = [helper.make_tensor_value_info(name, onnx.TensorProto.INT64, ["n"]) for name in ("x", "y")]
    one = onnx.numpy_helper.from_array(np.array(1), "one")
    graph = helper.make_graph([helper.make_node("Max", ["x", "one"], ["y"])], "g", info[:1], info[1:], [one])
    model = ir.from_proto(helper.make_model(graph))
    keep_nan(model)
    assert [node.op_type for node in model.graph] == ["Max"]


def _maker_beyond_casts(name: str, makers: dict[str, onnx.NodeProto]) -> str | None:
    while name in makers and makers[name].op_type == "Cast":
        name = makers[name].input[0]
    return makers[name].op_type if name in makers else None


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for part in _graphs(graph):
        yield from part.node


class _Doubling(torch.nn.Module):
    """A loop of a number of turns that is an input, between other operations, in a branch."""

    def forward(self, e: Tensor, y: Tensor, turns: Tensor) -> Tensor:
        def work(e: Tensor, y: Tensor, turns: Tensor) -> Tensor:
            return torch.matmul(*_doubled_phi1_in_graph(0.5 * e.double(), y.double() + 1, turns)).float()

        def other(e: Tensor, y: Tensor, turns: Tensor) -> Tensor:  # the operands of both
            return 3 * y

        return branch(turns < 100, work, other, (e, y, turns))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch, about its own code
def test_a_compiled_loop_without_turns(tmp_path: Path) -> None:
    e, y = 0.1 * normal(2, 6, 6, seed=1), normal(2, 6, 3, seed=2)
    with torch.no_grad():
        program = torch.export.export(_Doubling(), (e, y, torch.tensor(2)))
        quickly = {"aot_inductor.compile_wrapper_opt_level": "O0"}
        package = str(tmp_path / "compiled.pt2")
        torch._inductor.aoti_compile_and_package(program, package_path=package, inductor_configs=quickly)
        compiled = torch._inductor.aoti_load_package(package)
        for turns in (0, 1, 3):
            expected_e, expected_y = 0.5 * e.double(), y.double() + 1
            for _ in range(turns):
                expected_e, expected_y = (
                    2 * expected_e + expected_e @ expected_e,
                    2 * expected_y + expected_e @ expected_y,
                )
            assert float(relative_error(compiled(e, y, torch.tensor(turns)), expected_e @ expected_y).max()) < 1e-6


@pytest.mark.long  # the C++ compiler takes both cores for a minute
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch, about its own code
@pytest.mark.parametrize(
    ("tokens", "shapes", "squarings"),
    [
        pytest.param(17, {"x": {0: "batch"}}, "auto", id="dense"),
        pytest.param(100, {"x": {0: "batch", 1: "tokens"}}, "auto", id="any length"),
        pytest.param(100, {"x": {0: "batch", 1: "tokens"}}, 10, id="straight"),
    ],
)
def test_compiled_programs_are_right(
    tokens: int, shapes: dict[str, dict[int, str]], squarings: str | int, tmp_path: Path
) -> None:
    """AOTInductor, from no squaring at all to many."""
    torch.manual_seed(0)
    layer = OrthogonalSelfAttention(16, 2).eval()
    artifact = osa_runtime.export(
        layer,
        torch.randn(2, tokens, 16),
        tmp_path / "layer",
        format="pt2",
        dynamic_shapes=shapes,
        squarings=squarings,
    )
    program = torch.export.load(artifact.model_path)
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "compiled.pt2"))
    compiled = torch._inductor.aoti_load_package(package)
    exact = OrthogonalSelfAttention(16, 2).double()
    exact.load_state_dict(layer.state_dict())
    for size in (0.05, 0.5, 2.0, 8.0):
        for length in (tokens,) if tokens == 17 else (5, 33, 100, 300):
            x = size * normal(3, length, 16, seed=length)
            with torch.no_grad():
                assert float(relative_error(compiled(x), exact(x.double())).max()) < 5e-6, (size, length)
