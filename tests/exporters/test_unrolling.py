"""A Loop written out is the Loop: the same answers, whatever it carries, and nothing that nobody reads."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser
from onnx.reference import ReferenceEvaluator

from osa_runtime.exporters.unrolling import unroll_loop

# a becomes b as it is, b becomes 2a + b + k, and c, which the function does not return, is halved.
CARRYING = """
<domain: "test", opset_import: ["" : 18]> F (x, y, n) => (last, before) {
  k = Constant <value = float {3.0}> ()
  half = Constant <value = float {0.5}> ()
  go = Constant <value = bool {1}> ()
  a0 = Identity (x)
  before, b, unread = Loop (n, go, a0, y, x) <body = step (int64 i, bool on, float a, float b, float c)
    => (bool on_step, float b, float b_next, float c_next) {
      on_step = Identity (on)
      on_step_step = Add (a, a)
      sum = Add (on_step_step, b)
      b_next = Add (sum, k)
      c_next = Mul (c, half)
    }>
  last = Sub (b, y)
}
"""


def function(text: str = CARRYING) -> onnx.FunctionProto:
    return parser.parse_function(text)


def answers(one: onnx.FunctionProto, trips: int) -> list[np.ndarray]:
    kinds = {"x": TensorProto.FLOAT, "y": TensorProto.FLOAT, "n": TensorProto.INT64}
    inputs = [helper.make_tensor_value_info(name, kind, []) for name, kind in kinds.items()]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in one.output]
    graph = helper.make_graph([helper.make_node("F", one.input, one.output, domain="test")], "g", inputs, outputs)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("test", 1)]
    model = helper.make_model(graph, functions=[one], opset_imports=opsets, ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return ReferenceEvaluator(model).run(None, {"x": np.float32(2), "y": np.float32(5), "n": np.int64(trips)})


@pytest.mark.parametrize("trips", [0, 1, 2, 5])
def test_the_answers_are_those_of_the_loop(trips: int) -> None:
    before = function()
    unrolled = unroll_loop(before, trips)
    assert before == function(), "the original stays as it is"
    np.testing.assert_array_equal(answers(unrolled, trips), answers(before, trips))


def test_what_nobody_reads_is_left_out() -> None:
    nodes = [node.op_type for node in unroll_loop(function(), 2).node]
    assert nodes == ["Constant", "Identity", *2 * ["Add", "Add", "Add"], "Identity", "Identity", "Sub"]


def test_there_must_be_one_loop() -> None:
    one = function()
    one.node.append(one.node[4])
    with pytest.raises(AssertionError, match="F has 2 loops, expected one"):
        unroll_loop(one, 1)
    del one.node[:]
    with pytest.raises(AssertionError, match="F has 0 loops, expected one"):
        unroll_loop(one, 1)


def test_a_body_that_counts_its_trips_cannot_be_written_out() -> None:
    one = function(CARRYING.replace("b_next = Add (sum, k)", "now = Cast <to = 1> (i) b_next = Add (sum, now)"))
    with pytest.raises(AssertionError, match=r"F reads \['i'\], which are no more"):
        unroll_loop(one, 2)
