"""What becomes of the nodes between the marks of a call: a function that answers the same, and reads only what it must.

The graphs are written by hand: x has the shape (batch, tokens, 4), and the call takes m, perhaps also n = sin(x).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from osa_runtime.exporters.module_bodies import LARGEST_CONSTANT, Marks, ModuleBody, drop_mark
from osa_runtime.exporters.module_calls import ENTER, MARKS

HEAD = """<ir_version: 10, opset_import: ["" : 18, "osa.marks": 1]>
g (float[batch, tokens, 4] x) => (float[batch, tokens, 4] y) <float[4] w = {1, 2, 3, 4}, float[4] v = {5, 6, 7, 8},
  int64[1] one = {1}, int64[1] four = {4}, int64[1] zero = {0}, float[batch, tokens, 4] m, float[batch, tokens, 4] n,
  float[batch, tokens, 4] a, int64[1] size, int64[1] longer, int64[2] both, int64 number,
  float[batch, tokens, 4] outer> {
  outer = Sin (x)
  size = Shape <start: int = 1, end: int = 2> (x)
  axes = Constant <value_ints = [0]> ()
  number = Squeeze (size, axes)
  longer = Add (size, one)
  both = Shape <start: int = 0, end: int = 2> (x)
"""
ENTERS = """m = osa.marks.Enter <call: int = 0, index: int = 0> (x)
n = osa.marks.Enter <call: int = 0, index: int = 1> (outer)
"""
EXIT = "out = osa.marks.Exit <call: int = 0, index: int = 0> (a) "


@dataclass
class Case:
    """A body, its end, and what is expected: operators, positions entered, inputs (weights by hint), outputs."""

    body: str
    operators: list[str]
    inputs: list[str | None]
    end: str = EXIT + "y = Neg (out)"
    entered: tuple[int, ...] = (0,)
    outputs: int = 1


CASES = {
    "a weight is an input for each use": Case(
        "b = Mul (m, w) a = Mul (b, w)", ["Mul", "Mul"], ["m", "weight", "weight"]
    ),
    "a weight of a stranger has no name": Case("a = Mul (m, v)", ["Mul"], ["m", None]),
    "a small whole number is a constant": Case(
        "a = Unsqueeze (m, zero) b = Squeeze (a, zero)",
        ["Constant", "Unsqueeze", "Squeeze"],
        ["m"],
        end=EXIT.replace("(a)", "(b)") + "y = Neg (out)",
    ),
    "a size is read from the call's own tensor": Case(
        "f = Cast <to: int = 1> (size) a = Mul (m, f)", ["Shape", "Cast", "Mul"], ["m"]
    ),
    "a size without an axis of its own": Case(
        "f = Cast <to: int = 1> (number) a = Mul (m, f)", ["Shape", "Squeeze", "Cast", "Mul"], ["m"]
    ),
    "two sizes are not one": Case(
        "f = Cast <to: int = 1> (both) sum = ReduceSum <keepdims: int = 0> (f) a = Mul (m, sum)", ["Mul"], ["m", None]
    ),
    "one read of a size serves all": Case(
        "f = Cast <to: int = 1> (size) b = Mul (m, f) g = Cast <to: int = 1> (size) a = Add (b, g)",
        ["Shape", "Cast", "Mul", "Cast", "Add"],
        ["m"],
    ),
    "what is computed from sizes is computed again": Case(
        "half = Mul (size, four) f = Cast <to: int = 1> (half) a = Mul (m, f)",
        ["Shape", "Constant", "Mul", "Cast", "Mul"],
        ["m"],
    ),
    "what is computed from weights is computed again": Case(
        "sum = Add (w, v) a = Mul (m, sum)", ["Add", "Mul"], ["m", "weight", None]
    ),
    "a tensor of the parent is an input": Case("b = Mul (m, w) a = Add (b, x)", ["Mul", "Add"], ["m", None, "weight"]),
    "a tensor that is taken and not read is none": Case("a = Exp (n)", ["Exp"], ["n"], entered=(1,)),
    "the order of those taken stays": Case("a = Sub (n, m)", ["Sub"], ["m", "n"], entered=(0, 1)),
    "a value kept for the parent is an output": Case(
        "b = Exp (m) a = Cos (b)", ["Exp", "Cos"], ["m"], end=EXIT + "y = Add (out, b)", outputs=2
    ),
    "an input passed on": Case("", ["Identity"], ["m"], end=EXIT.replace("(a)", "(m)") + "y = Neg (out)"),
    "a weight passed on": Case(
        "", ["Identity"], ["weight"], end=EXIT.replace("(a)", "(w)") + "y = Mul (out, m)", entered=()
    ),
    "a result returned twice": Case(
        "a = Exp (m)",
        ["Exp", "Identity", "Identity"],
        ["m"],
        end=EXIT + EXIT.replace("out", "also").replace("index: int = 0", "index: int = 1") + "y = Sub (out, also)",
        outputs=2,
    ),
    "what the results do not need stays outside": Case(
        "a = Exp (m) b = Cos (m)", ["Exp"], ["m"], end=EXIT + "y = Add (out, b)"
    ),
    "a branch reads a weight and a tensor of the parent": Case(
        "s = ReduceSum <keepdims: int = 0> (m) zero_f = Constant <value = float {0.0}> () c = Greater (s, zero_f)"
        "a = If (c) <then_branch = t () => (float[batch, tokens, 4] p) {p = Mul (m, w)}, "
        "else_branch = e () => (float[batch, tokens, 4] q) {q = Sub (outer, m)}>",
        ["ReduceSum", "Greater", "If"],
        ["m", None, None, "weight"],
    ),
}


def model_of(case: Case) -> ir.Model:
    model = ir.from_onnx_text(HEAD + ENTERS + case.body + "\n" + case.end + "\n}")
    model.graph.initializers["w"].name = "part.weight"
    return model


def answers(model: ir.Model) -> list[np.ndarray]:
    model.graph.sort()
    model.opset_imports.pop(MARKS, None)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto)
    random = np.random.default_rng(0)
    run = ReferenceEvaluator(proto).run
    return [run(None, {"x": sign * random.random((2, 3, 4)).astype(np.float32)})[0] for sign in (1, -1)]


def without_marks(case: Case) -> ir.Model:
    model = model_of(case)
    for node in list(model.graph):
        if node.domain == MARKS:
            drop_mark(node)
    return model


def moved(case: Case) -> tuple[ir.Model, ir.Function, ModuleBody]:
    model = model_of(case)
    marks = Marks()
    for node in model.graph:
        if node.domain == MARKS:
            places = marks.enter if node.op_type == ENTER else marks.exit
            places[node.attributes["index"].as_int()] = node
    body = ModuleBody(model.graph, marks, ["other", "part"])
    graph = body.view().clone()
    graph.opset_imports[""] = 18
    function = ir.Function("own", "Part", graph=graph, attributes=())
    for index, value in enumerate(function.inputs):
        value.name = f"input_{index}"
    model.functions[function.identifier()], model.opset_imports["own"] = function, 1
    body.replace(function)
    return model, function, body


@pytest.mark.parametrize("name", CASES)
def test_the_body_answers_alone(name: str) -> None:
    case = CASES[name]
    model, function, body = moved(case)
    assert [node.op_type for node in function] == case.operators
    assert tuple(body.entered) == case.entered
    names = ["mn"[index] for index in body.entered] + [None] * len(body.captured)
    assert [*names, *(inner.name if inner.name == "weight" else None for inner, _ in body.weights)] == case.inputs
    assert len(function.outputs) == case.outputs
    assert not any(node.domain == MARKS for node in model.graph.all_nodes())
    assert [node.op_type for node in model.graph].count("Part") == 1
    for found, wanted in zip(answers(model), answers(without_marks(case)), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("count", "constant"), [(LARGEST_CONSTANT // 8, True), (LARGEST_CONSTANT // 8 + 1, False)])
def test_a_large_table_of_whole_numbers_is_a_weight(count: int, constant: bool) -> None:
    model = model_of(Case("b = Cast <to: int = 1> (zero) s = Gather (m, zero) a = Mul (m, w)", [], []))
    model.graph.initializers["zero"].const_value = ir.tensor(np.zeros(count, np.int64))
    gather = next(node for node in model.graph if node.op_type == "Gather")
    last = next(node for node in model.graph if node.op_type == "Exit")
    last.replace_input_with(0, gather.outputs[0])
    enters = [node for node in model.graph if node.op_type == ENTER]
    body = ModuleBody(model.graph, Marks(dict(enumerate(enters)), {0: last}), ["part"])
    assert [node.op_type for node in body.nodes] == (["Constant", "Gather"] if constant else ["Gather"])
    assert len(body.weights) == (not constant)


def test_a_longer_size_is_not_taken_for_another() -> None:
    """The call takes one token more than x has: its own axis is tokens + 1, and only that is read from it."""
    text = "f = Cast <to: int = 1> (longer) g = Cast <to: int = 1> (size) b = Mul (m, f) a = Add (b, g)"
    model = ir.from_onnx_text(
        HEAD
        + "long = Concat <axis: int = 1> (x, x)\n"
        + text.join((ENTERS.replace("(x)", "(long)"), EXIT + "y = Neg (out) }"))
    )
    marks = {
        node.op_type: node for node in model.graph if node.domain == MARKS and node.attributes["index"].as_int() == 0
    }
    marks["Enter"].outputs[0].shape = ir.Shape(["batch", "tokens + 1", 4])
    body = ModuleBody(model.graph, Marks({0: marks["Enter"]}, {0: marks["Exit"]}), ["part"])
    shape = next(node for node in body.nodes if node.op_type == "Shape")
    assert (shape.inputs[0], shape.attributes["start"].as_int()) == (marks["Enter"].outputs[0], 1)
    assert [value.name for value in body.captured] == ["g"]
