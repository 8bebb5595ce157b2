"""Graphs of ONNX that are wrong, most of them so that they are right on ordinary inputs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from sabotage import broken_onnx, change_trips, change_weight, insert, reroute_input, signed
from sabotaged import BLOCK, EMBEDDED, Bases, Breaking, Sabotage

from osa_runtime.artifact import MANIFEST_FILE

INLINED, EXTERNAL = {"functions": "inline"}, {"external_data": True}


def at(value: str, text: str) -> Breaking:
    return graph(lambda model: insert(model, value, text))


def graph(breaking: Callable[[onnx.ModelProto], None]) -> Breaking:
    return lambda source, out: broken_onnx(source, out, breaking)


def weight(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Breaking:
    return graph(lambda model: change_weight(model, name, change))


def mask(text: str) -> Breaking:
    return graph(lambda model: reroute_input(model, "mask", text))


def one_ulp(array: np.ndarray) -> np.ndarray:
    array.flat[3] = np.nextafter(array.flat[3], np.float32(np.inf))
    return array


def without(array: np.ndarray) -> np.ndarray:
    return np.zeros_like(array)


def swap_heads(array: np.ndarray) -> np.ndarray:
    """The columns of [Q K V] of the two heads, in the (dim, 3·dim) matrix of the exported product."""
    return np.concatenate(np.split(array, 2, 1)[::-1], 1)


def replaced_id(array: np.ndarray) -> np.ndarray:
    array[7] = array[3]
    return array


def attribute(node: str, name: str, value: Any) -> Breaking:
    def breaking(model: onnx.ModelProto) -> None:
        found = next(one for one in model.graph.node if one.name == node)
        kept = [one for one in found.attribute if one.name != name]
        del found.attribute[:]
        found.attribute.extend([*kept, helper.make_attribute(name, value)])

    return graph(breaking)


def operator(node: str, kind: str, inputs: Callable[[list[str]], list[str]] = list) -> Breaking:
    def breaking(model: onnx.ModelProto) -> None:
        found = next(one for one in model.graph.node if one.name == node)
        found.op_type = kind
        found.input[:] = inputs(list(found.input))

    return graph(breaking)


def fewer_steps(model: onnx.ModelProto) -> None:
    """No more than four steps, however many the norm asks for: right at ordinary norms."""
    change_trips(model, 8, "Min", 4)


def odd_batches(model: onnx.ModelProto) -> None:
    """Another branch for odd batch sizes."""
    insert(
        model,
        "logits",
        "rows = Shape <start = 0, end = 1> (x) two = Constant <value_ints = [2]> () rest = Mod (rows, two) "
        "flag = Cast <to = 9> (rest) odd = Squeeze (flag) y = Identity (x)",
    )
    last = next(node for node in model.graph.node if "logits" in node.output)
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(kind, ["logits/before"], [f"logits/{name}"])],
            name,
            [],
            [helper.make_tensor_value_info(f"logits/{name}", onnx.TensorProto.FLOAT, None)],
        )
        for name, kind in (("then", "Neg"), ("else", "Identity"))
    }
    last.CopyFrom(helper.make_node("If", ["logits/odd"], ["logits"], **branches))


def skip_layer(model: onnx.ModelProto) -> None:
    first = next(node for node in model.graph.node if node.name == "stack.blocks.1.attention.project/MatMul")
    first.input[0] = "stack.blocks.0.attention.out/MatMul"


def scaled_head(model: onnx.ModelProto) -> None:
    node = next(node for node in model.graph.node if node.name == "stack.blocks.1.attention/OrthogonalAttention")
    old = next(tensor for tensor in model.graph.initializer if tensor.name == node.input[3])
    scale = np.broadcast_to(onnx.numpy_helper.to_array(old), (2,)) * np.array([1.0, 1.5])
    model.graph.initializer.append(onnx.numpy_helper.from_array(scale.astype(np.float32), "scaled"))
    node.input[3] = "scaled"


def swapped_weights(model: onnx.ModelProto) -> None:
    """Two of one shape, by their names alone."""
    names = [f"stack.blocks.{block}.attention.out/MatMul.weight" for block in (0, 1)]
    first, second = (next(t for t in model.graph.initializer if t.name == name) for name in names)
    first.name, second.name = second.name, first.name


def foreign_function(model: onnx.ModelProto) -> None:
    """One of the same name in another domain, which does nothing."""
    node = next(node for node in model.graph.node if node.name == f"{BLOCK}.attention/OrthogonalAttention")
    own = next(one for one in model.functions if one.name == node.op_type)
    other = model.functions.add()
    other.CopyFrom(own)
    other.domain = node.domain = "ai.osa.next"
    del other.node[:]
    other.node.append(helper.make_node("Identity", [other.input[2]], [other.output[0]]))
    for name in other.output[1:]:
        other.node.append(helper.make_node("Constant", [], [name], value_int=0))
    model.opset_import.append(helper.make_opsetid("ai.osa.next", 1))


def coefficient(model: onnx.ModelProto) -> None:
    """A constant of the exponential, by a millionth."""
    for function in model.functions:
        for node in function.node:
            for one in node.attribute if node.op_type == "Constant" else ():
                value = numpy_helper.to_array(one.t)
                if value.dtype == np.float32 and value.size == 1 and 1e-3 < abs(float(value)) < 0.9:
                    one.t.CopyFrom(numpy_helper.from_array(value * np.float32(1 + 2**-20), one.t.name))
                    return
    raise AssertionError("no function has such a constant")


def stale_data(source: Path, out: Path) -> Path:
    """The weights of an earlier export of another seed next to a new graph."""
    bases = Bases(source.parent)
    shutil.copytree(source, out)
    other = bases.artifact("other", external_data=True)
    for path in other.iterdir():
        if path.name not in (MANIFEST_FILE, "model.onnx"):
            shutil.copy(path, out)
    return signed(out)


def exchanged_offsets(source: Path, out: Path) -> Path:
    """Two weights of one shape in a file of their own, by their places in it alone."""
    shutil.copytree(source, out)
    model = onnx.load(out / "model.onnx", load_external_data=False)
    kept = {
        t.name: next(e for e in t.external_data if e.key == "offset")
        for t in model.graph.initializer
        if t.external_data
    }
    first, second = (kept[f"stack.blocks.{block}.attention.project/MatMul.weight"] for block in (0, 1))
    first.value, second.value = second.value, first.value
    (out / "model.onnx").write_bytes(model.SerializeToString())
    return signed(out)


def foreign_bias(model: onnx.ModelProto) -> None:
    """A layer reads the bias of another one; both are in the file."""
    node = next(one for one in model.graph.node if one.name == "stack.blocks.0.mlp.contract/Add")
    node.input[:] = [name.replace("blocks.0.mlp.contract.bias", "blocks.1.mlp.contract.bias") for name in node.input]


def more_files(source: Path, out: Path) -> Path:
    shutil.copytree(source, out)
    (out / "operators.so").write_bytes(b"whatever")
    return signed(out)


def default_of_function(model: onnx.ModelProto) -> None:
    function = next(one for one in model.functions if one.name == "OrthogonalAttention")
    function.attribute_proto.append(helper.make_attribute("extra", 1.0))


NEGATE = "n = Neg (x) y = Where (c, n, x)"
LARGE = "a = Abs (images) m = ReduceMax <keepdims = 0> (a) t = Constant <value_float = 20.0> () c = Greater (m, t) "
ROWS = "s = Shape <start = 0, end = 1> (x) t = Constant <value_ints = [8]> () c = Greater (s, t) "
DIGITS = (
    "l = ReduceMin <keepdims = 0> (images) e = Equal (images, l) f = Cast <to = 1> (e) "
    "m = ReduceMean <keepdims = 0> (f) t = Constant <value_float = 0.1> () c = Greater (m, t) "
)
MIDDLE = (
    "s = Shape <start = 1, end = 2> (tokens) a = Constant <value_ints = [64]> () b = Constant <value_ints = [512]> () "
    "g = Greater (s, a) h = Less (s, b) c = And (g, h) "
)
MAGIC = (
    "o = Constant <value_ints = [-1]> () i = Constant <value_int = 0> () f = Reshape (images, o) e = Gather (f, i) "
    "t = Constant <value_float = 0.123456> () c = Equal (e, t) "
)
HUGE = LARGE.replace("20.0", "1e30")
TINY = (
    "a = Abs (x) t = Constant <value_float = 1e-37> () c = Less (a, t) z = Constant <value_float = 0.0> () "
    "y = Where (c, z, x)"
)
CLASSES = "p = Constant <value_ints = [0, 1, 2, 8, 4, 5, 6, 7, 3, 9]> () y = Gather <axis = 1> (x, p)"
NOISE = "r = RandomNormalLike <seed = 1.0> (x) t = Constant <value_float = 1e-9> () s = Mul (r, t) y = Add (x, s)"
CLIP = "a = Constant <value_float = -20.0> () b = Constant <value_float = 20.0> () y = Clip (x, a, b)"
NAN_TO_ZERO = "b = IsNaN (x) z = Constant <value_float = 0.0> () y = Where (b, z, x)"
HALF = "h = Cast <to = 10> (x) y = Cast <to = 1> (h)"
FIRST_PADDED = (
    "z = Constant <value_ints = [0]> () o = Constant <value_ints = [1]> () f = Slice (x, z, o, o) p = Not (f) "
    "y = Or (x, p)"
)
INTERIOR = (
    "i = Cast <to = 7> (x) o = Constant <value_int = 1> () a = Constant <value_ints = [1]> () s = CumSum (i, o) "
    "t = ReduceSum (i, a) z = Constant <value_int = 0> () g = Greater (s, z) h = Less (s, t) b = And (g, h) "
    "y = Or (x, b)"
)
LONG = "s = Shape <start = 1, end = 2> (x) t = Constant <value_ints = [24]> () c = Greater (s, t) y = Or (x, c)"
SHIFT = "p = Constant <value_float = 0.02> () y = Add (x, p)"

OF_ONNX = [
    Sabotage("logits negated for batches above 8", "vit", at("logits", ROWS + NEGATE), "logits"),
    Sabotage("logits negated for large inputs", "vit", at("logits", LARGE + NEGATE), "logits"),
    Sabotage("logits negated on real digits, right on noise", "vit", at("logits", DIGITS + NEGATE), "logits"),
    Sabotage("logits clipped at ±20", "vit", at("logits", CLIP), "logits"),
    Sabotage("NaN made 0 at the output", "vit", at("logits", NAN_TO_ZERO), "logits"),
    Sabotage("logits negated for 64 < N < 512", "long", at("logits", MIDDLE + NEGATE), "logits"),
    Sabotage("the other branch of an If for odd batches", "vit", graph(odd_batches), "logits"),
    Sabotage("squarings dropped only at high norms", "vit", graph(fewer_steps), "OrthogonalAttention|attention"),
    Sabotage("one weight off by 1 ulp", "vit", weight(f"{BLOCK}.mlp.expand/MatMul.weight", one_ulp), f"{BLOCK}.mlp"),
    Sabotage(
        "a transposed weight", "vit", weight(f"{BLOCK}.attention.out/MatMul.weight", np.transpose), f"{BLOCK}.attention"
    ),
    Sabotage(
        "heads swapped", "vit", weight(f"{BLOCK}.attention.project/MatMul.weight", swap_heads), f"{BLOCK}.attention"
    ),
    Sabotage("positions shifted by one", "vit", weight("Add.constant_1", lambda w: np.roll(w, 1, 1)), EMBEDDED),
    Sabotage(
        "another slope of the activation", "vit", attribute(f"{BLOCK}.mlp/LeakyRelu", "alpha", 0.49), f"{BLOCK}.mlp"
    ),
    Sabotage("a bias dropped", "vit", weight(f"{BLOCK}.mlp.contract.bias", without), f"{BLOCK}.mlp"),
    Sabotage("another scale of one head", "vit", graph(scaled_head), f"{BLOCK}.attention"),
    Sabotage("half precision in the middle", "vit", at(f"{BLOCK}.mlp/LeakyRelu", HALF), f"{BLOCK}.mlp"),
    Sabotage("the largest token for the mean", "vit", operator("ReduceMean", "ReduceMax"), f"{BLOCK}.mlp → head"),
    Sabotage("a layer skipped", "vit", graph(skip_layer), f"{BLOCK}.attention"),
    Sabotage("stale external weights", "vit", stale_data, "embed", EXTERNAL),
    Sabotage("the mask ignored when the first token is padded", "words", mask(FIRST_PADDED), "mask"),
    Sabotage("the mask ignored between real tokens", "words", mask(INTERIOR), "mask"),
    Sabotage("the mask ignored for N > 24", "words", mask(LONG), "mask"),
    Sabotage("one id's embedding replaced", "words", weight("embed.weight", replaced_id), "embed"),
    Sabotage(
        "a mean that ignores the mask", "words", operator("Where_2", "Where", lambda i: [i[0], i[2], i[2]]), "→ head"
    ),
    Sabotage(
        "residual sums of the wrong signal", "normed", operator(f"{BLOCK}/Add", "Add", lambda i: [i[1], i[1]]), BLOCK
    ),
    Sabotage(
        "another epsilon in a norm",
        "normed",
        attribute(f"{BLOCK}.mlp_norm/LayerNormalization", "epsilon", 1e-3),
        f"{BLOCK}.mlp_norm",
    ),
    Sabotage("a residual sum turned around", "normed", operator(f"{BLOCK}/Add_2", "Sub"), BLOCK),
    Sabotage("logits negated for batches above 8", "vit", at("logits", ROWS + NEGATE), "logits", INLINED),
    Sabotage(
        "an offset inside a layer", "vit", at(f"{BLOCK}.attention/Transpose", SHIFT), f"{BLOCK}.attention", INLINED
    ),
    Sabotage("the mask ignored when the first token is padded", "words", mask(FIRST_PADDED), "mask", INLINED),
    Sabotage("two weights of one shape swapped", "vit", graph(swapped_weights), "attention"),
    Sabotage("a function of the same name in another domain", "vit", graph(foreign_function), f"{BLOCK}.attention"),
    Sabotage("a coefficient of the exponential off by a millionth", "vit", graph(coefficient), "in the function"),
    Sabotage("logits negated for one value of one pixel", "vit", at("logits", MAGIC + NEGATE), "logits"),
    Sabotage("logits negated for inputs above 1e30", "vit", at("logits", HUGE + NEGATE), "logits"),
    Sabotage("subnormal values made 0", "vit", at(f"{BLOCK}.mlp/LeakyRelu", TINY), f"{BLOCK}.mlp"),
    Sabotage("two classes swapped", "vit", at("logits", CLASSES), "logits"),
    Sabotage("noise below every tolerance", "vit", at("logits", NOISE), "logits"),
    Sabotage("two places in external data exchanged", "vit", exchanged_offsets, "attention.project", EXTERNAL),
    Sabotage("the bias of another layer", "vit", graph(foreign_bias), "stack.blocks.0.mlp"),
    Sabotage("a file that no export writes", "vit", more_files, "operators.so"),
    Sabotage("a default of a function", "vit", graph(default_of_function), "OrthogonalAttention"),
    Sabotage(
        "another operator set",
        "vit",
        graph(lambda model: model.opset_import.append(helper.make_opsetid("com.microsoft", 1))),
        "operator sets",
    ),
    Sabotage(
        "metadata that no export writes",
        "vit",
        graph(lambda model: model.metadata_props.add(key="class_names", value="cat, dog")),
        "metadata_props",
    ),
]
