"""The ai.osa functions by themselves: in ONNX Runtime and in onnx's evaluator, against the float64 reference."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import onnx.inliner
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from attention_models import attention_model, functions_of
from exponents import normal, relative_error, scale_for
from osa_runtime.exporters import FunctionChoice, build_functions
from osa_runtime.exporters.functions.flat import flat_functions
from osa_runtime.onnx_files import bodies, with_inner
from osa_runtime.ops import orthogonal_attention, reference
from osa_runtime.ops.coefficients import CHEBYSHEV_EXP_REACH
from osa_runtime.ops.scaling import most_squarings

CHOICES = {
    "auto taylor": FunctionChoice(),
    "auto taylor masked": FunctionChoice(masked=True),
    "dense pade": FunctionChoice(form="dense", approximant="pade"),
    "lowrank taylor": FunctionChoice(form="lowrank"),
    "lowrank pade masked": FunctionChoice(form="lowrank", approximant="pade", masked=True),
    "dense taylor fixed": FunctionChoice(form="dense", squarings=6),
    "lowrank pade fixed": FunctionChoice(form="lowrank", approximant="pade", squarings=6),
}


def feeds(tokens: int, factor: float, masked: bool, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    q, k, v = (normal(2, 3, tokens, 8, seed=seed).to(dtype) for seed in (1, 2, 3))
    given = {
        "q": (q * factor).to(dtype),
        "k": k,
        "v": v[..., :5].contiguous(),
        "scale": torch.tensor([0.02, 0.05, -0.03]),
    }
    given["scale"] = given["scale"].to(dtype)
    if masked:
        given["mask"] = torch.arange(tokens)[None, None] < torch.tensor([tokens, (tokens + 1) // 2])[:, None, None]
    return given


@functools.lru_cache(maxsize=4)
def session_of(model: bytes) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


def run(model: onnx.ModelProto, given: dict[str, torch.Tensor]) -> torch.Tensor:
    session = session_of(model.SerializeToString())
    return torch.from_numpy(session.run(None, {name: x.numpy() for name, x in given.items()})[0])


def evaluate(model: onnx.ModelProto, given: dict[str, torch.Tensor]) -> torch.Tensor:
    found = ReferenceEvaluator(model).run(None, {name: x.numpy() for name, x in given.items()})[0]
    return torch.from_numpy(np.asarray(found))


def expected(given: dict[str, torch.Tensor]) -> torch.Tensor:
    return reference.orthogonal_attention(given["q"], given["k"], given["v"], given["scale"], given.get("mask"))


@pytest.mark.parametrize("name", CHOICES)
def test_onnx_runtime_agrees_with_the_reference(name: str) -> None:
    choice = CHOICES[name]
    model = attention_model(choice)
    onnx.checker.check_model(model, full_check=True)
    for tokens, factor in ((1, 1.0), (3, 1.0), (16, 0.01), (17, 1.0), (60, 1.0)):
        given = feeds(tokens, factor, choice.masked)
        assert float(relative_error(run(model, given), expected(given)).max()) < 2e-6


@pytest.mark.parametrize("name", CHOICES)
def test_the_evaluator_of_onnx_agrees_too(name: str) -> None:
    """It runs no trip of a Loop without a condition, so this also shows that every Loop has one."""
    model = attention_model(CHOICES[name])
    for tokens in (3, 60):
        given = feeds(tokens, 1.0, CHOICES[name].masked)
        assert float(relative_error(evaluate(model, given), expected(given)).max()) < 2e-6


@pytest.mark.parametrize("opset", [18, 19, 20, 21, 22, 23])
def test_every_opset(opset: int) -> None:
    model = attention_model(FunctionChoice(), opset)
    onnx.checker.check_model(model, full_check=True)
    given = feeds(40, 1.0, False)
    assert float(relative_error(run(model, given), expected(given)).max()) < 2e-6


@pytest.mark.parametrize("form", ["dense", "lowrank"])
@pytest.mark.parametrize("norm", [50.0, 500.0])
def test_large_norms(form: str, norm: float) -> None:
    given = feeds(60, 1.0, False)
    given["q"] *= (scale_for(given["q"], given["k"], norm) / given["scale"]).float()[..., None, None]
    error = relative_error(run(attention_model(FunctionChoice(form=form)), given), expected(given))
    assert float(error.max()) < (1e-5 if norm <= 50 else 1e-4)


def test_as_few_squarings_as_reach_the_norm() -> None:
    """Two tokens have one pair of values ±iσ, and the bound of the norm is σ itself."""
    model = attention_model(FunctionChoice(form="dense", counted=True))
    model.graph.node[0].output.append("squarings")
    model.graph.output.append(helper.make_tensor_value_info("squarings", TensorProto.INT64, []))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    k, v, scale = np.array([[[[0], [1]]]], np.float32), np.ones((1, 1, 2, 1), np.float32), np.ones(1, np.float32)
    for least in range(most_squarings(False)):
        for share, squarings in ((0.999, least), (1.001, least + 1 if least < 19 else 0)):  # 2¹⁹ is the largest norm
            q = np.array([[[[share * CHEBYSHEV_EXP_REACH * 2.0**least], [0]]]], np.float32)
            assert session.run(["squarings"], {"q": q, "k": k, "v": v, "scale": scale}) == [squarings]


@pytest.mark.parametrize("distance", [1e-2, 1e-5])
@pytest.mark.parametrize(
    "choice",
    [FunctionChoice(form="lowrank"), FunctionChoice(form="dense"), FunctionChoice(form="lowrank", squarings=8)],
    ids=["lowrank", "dense", "lowrank fixed"],
)
def test_cancellation_costs_no_digits(choice: FunctionChoice, distance: float) -> None:
    given = feeds(60, 1.0, False)
    given["k"] = given["q"] + distance * given["k"]
    given["q"] *= (scale_for(given["q"], given["k"], 2.0) / given["scale"]).float()[..., None, None]
    exact = expected(given)
    eager = orthogonal_attention(given["q"], given["k"], given["v"], given["scale"], form=choice.form)
    assert float(relative_error(run(attention_model(choice), given), exact).max()) < 2e-6
    assert float(relative_error(eager, exact).max()) < 2e-6


@pytest.mark.parametrize("form", ["dense", "lowrank"])
def test_fixed_squarings_give_nan_beyond_their_range_and_only_there(form: str) -> None:
    model = attention_model(FunctionChoice(form=form, squarings=3))
    given = feeds(40, 1.0, False)
    given["q"][1] *= 100
    out = run(model, given)
    assert bool(out[0].isfinite().all())
    assert bool(out[1].isnan().all())


def test_fixed_squarings_leave_no_control_flow() -> None:
    for form in ("dense", "lowrank"):
        functions = build_functions(FunctionChoice(form=form, approximant="pade", squarings=4))
        assert not {node.op_type for f in functions for node in f.node} & {"Loop", "If", "Scan"}


@pytest.mark.parametrize("form", ["dense", "lowrank"])
@pytest.mark.parametrize("where", ["q", "k"])
def test_nan_poisons_its_entry_alone(form: str, where: str) -> None:
    given = feeds(40, 1.0, False)
    given[where][1, 2, 3, 4] = float("nan")
    out = run(attention_model(FunctionChoice(form=form)), given)
    assert bool(out[1, 2].isnan().all())
    assert bool(out[0].isfinite().all())
    assert bool(out[1, :2].isfinite().all())


def test_half_precision_keeps_its_core_in_float32() -> None:
    given = feeds(60, 1.0, False, torch.float16)
    out = run(attention_model(FunctionChoice(), dtype=TensorProto.FLOAT16), given)
    assert out.dtype == torch.float16
    assert float(relative_error(out, expected(given)).max()) < 2**-11


def test_functions_are_documented_and_only_what_is_needed_is_defined() -> None:
    functions = build_functions(FunctionChoice(form="dense"))
    assert all(f.doc_string for f in functions)
    assert not any("Gram" in f.name or "LowRank" in f.name for f in functions)
    assert len({f.name for f in functions}) == len(functions)


def test_skew_exponential_can_be_called_by_hand() -> None:
    s = normal(1, 1, 6, 6)
    s = s - s.mT
    node = helper.make_node("SkewExponential", ["s"], ["a"], domain="ai.osa")
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 1, 6, 6]) for n in ("s", "a")]
    model = helper.make_model(
        helper.make_graph([node], "g", info[:1], info[1:]),
        functions=build_functions(FunctionChoice(form="dense")),
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("ai.osa", 1)],
        ir_version=10,
    )
    torch.testing.assert_close(run(model, {"s": s}).double(), reference.skew_exponential(s), rtol=0, atol=3e-6)


def test_a_graph_without_branches_needs_a_form() -> None:
    with pytest.raises(ValueError, match="choose form"):
        FunctionChoice(form="auto", squarings=3)


@pytest.mark.parametrize("approximant", ["taylor", "pade"])
def test_no_product_in_float64_takes_a_bare_transposition(approximant: str) -> None:
    """ONNX Runtime before 1.26 fuses the two, also through a factor that is turned itself, and has no kernel for it."""
    model = attention_model(FunctionChoice(form="auto", approximant=approximant))
    inlined = onnx.shape_inference.infer_shapes(onnx.inliner.inline_local_functions(model))
    nodes = list(with_inner(inlined.graph.node))
    graphs = [inlined.graph, *(graph for node in nodes for graph in bodies(node))]
    made = {name: node for node in nodes for name in node.output}
    types = {value.name: value.type.tensor_type.elem_type for graph in graphs for value in graph.value_info}

    def is_turned(name: str) -> bool:
        node = made.get(name)
        if node is None or node.op_type not in ("Transpose", "Mul", "Div", "Neg", "Cast"):
            return False
        return node.op_type == "Transpose" or all(is_turned(x) for x in node.input)

    products = [node for node in nodes if node.op_type == "MatMul" and types[node.output[0]] == TensorProto.DOUBLE]
    assert len(products) > 12
    assert [node.name for node in products if any(is_turned(name) for name in node.input)] == []


FLATTENED = {
    "layered": FunctionChoice(layered=True, any_type=False, joined=True, counted=True),
    "layered masked": FunctionChoice(layered=True, masked=True, counted=True),
    "short": FunctionChoice(form="lowrank", fallback=True, short=True, any_type=False),
    "float32 alone": FunctionChoice(form="lowrank", squarings=4, core="float32"),
}


@pytest.mark.parametrize("name", CHOICES | FLATTENED)
def test_flat_functions_hold_nothing_twice_and_call_only_what_they_share(name: str) -> None:
    flat = flat_functions((CHOICES | FLATTENED)[name])
    names = [function.name for function in flat]
    for index, function in enumerate(flat):
        nodes = list(with_inner(function.node))
        assert {node.op_type for node in nodes if node.domain} <= {*names[:index]}
        constants = [n.attribute[0].t for n in function.node if n.op_type == "Constant"]
        values = [(tensor.data_type, *tensor.dims, numpy_helper.to_array(tensor).tobytes()) for tensor in constants]
        assert len(set(values)) == len(values)  # a branch that returns a constant has it for itself
        same = [
            (node.op_type, *node.input, str(node.attribute)) for node in function.node if node.op_type != "Constant"
        ]
        assert len(set(same)) == len(same)
        assert "CastLike" not in {node.op_type for node in nodes if not (CHOICES | FLATTENED)[name].any_type}
        assert function.doc_string


@pytest.mark.parametrize("name", CHOICES | FLATTENED)
def test_flat_functions_compute_what_the_nested_ones_do(name: str) -> None:
    choice = (CHOICES | FLATTENED)[name]
    for factor, tokens in ((1.0, 40), (0.01, 25), (40.0, 20)):
        given, flat = feeds(tokens, factor, choice.masked), attention_model(choice)
        flat.graph.node[0].output.extend(["squarings"] * choice.counted)
        nested = onnx.ModelProto()
        nested.CopyFrom(flat)
        del nested.functions[:]
        nested.functions.extend(functions_of(choice))
        torch.testing.assert_close(run(flat, given), run(nested, given), rtol=0, atol=3e-6, equal_nan=True)
