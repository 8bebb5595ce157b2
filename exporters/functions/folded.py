"""The whole layer as one function: folded into X·T where that is faster and no digits are lost, else by Q, K and V."""

# functions have the names that they have in the graph
from __future__ import annotations

import math

import onnx
from onnxscript import opset18 as op
from onnxscript import script

from osa_runtime.exporters.functions.choice import FunctionChoice, osa
from osa_runtime.ops.coefficients import (
    FARTHEST,
    FLOAT32_AMPLIFICATION,
    FOLDED_MARGIN,
    FOUR_LN2,
    LARGEST_MEAN_SCALING,
    LEAST_SQUARE,
    MEAN_SAMPLE,
    NEAR_REACH,
    SMALL_CORE,
    TINY_SQUARE,
)

FLOAT = onnx.TensorProto.FLOAT
LN2 = math.log(2.0)
DESCRIPTION = """exp(S)·V·W_O of all heads, from x (batch, N, D): orthogonal self-attention (arXiv 2602.05996).

weight: (D, heads·3d), the columns [W_Q W_K W_V] head by head; out: (heads·d, D); scale: (heads,). {mask}
"""
MASKED = "mask: boolean (batch, N), True for real tokens."
JOINED = """OrthogonalSelfAttention, then ·linear + bias, (D, K) and (K): X·(T·W) + b without an N×D result between.

W_O·W is a constant, which runtimes compute once."""


@script(osa, default_opset=op)
def FoldingPays(x, weight, out, scale):
    """True if T and X·T take fewer multiply-adds than queries, keys, values and their way through the core."""
    tokens = op.Cast(op.Shape(x, start=1, end=2), to=FLOAT)
    dim, columns = op.Split(op.Cast(op.Shape(weight), to=FLOAT), num_outputs=2)
    width = columns / op.Cast(op.Shape(scale), to=FLOAT) / 3.0
    cost = dim * (2.0 * dim + op.Cast(op.Shape(out, start=1), to=FLOAT) + 8.0 * width) * FOLDED_MARGIN
    return op.Squeeze(tokens * (2.0 * dim + 7.0 * width) >= cost)


@script(osa, default_opset=op)
def PackedByHead(weight, scale):
    """The columns [t·W_Q, W_K/t, W_V] of each head, (h, D, 3d); t is a power of two that makes the first two of a size.

    All of it is constant.
    """
    shape = op.Concat(op.Constant(value_ints=[0]), op.Shape(scale), op.Constant(value_ints=[-1]), axis=0)
    packed = op.Transpose(op.Reshape(weight, shape), perm=[1, 0, 2])
    queries, keys, values = op.Split(packed, axis=-1, num_outputs=3)
    q_size = op.ReduceSumSquare(queries, op.Constant(value_ints=[-2, -1]))
    k_size = op.ReduceSumSquare(keys, op.Constant(value_ints=[-2, -1]))
    usable = op.And(q_size > 0.0, k_size > 0.0)
    ratio = op.Where(usable, op.Log(k_size) - op.Log(q_size), op.Constant(value_float=0.0))
    t = op.Pow(op.Constant(value_float=2.0), op.Round(ratio / FOUR_LN2))
    return op.Concat(queries * t, keys / t, values, axis=-1)


@script(osa, default_opset=op)
def OnGrid(mean, deviation):
    """The mean, rounded to about half of the deviation (b, 1, 1)."""
    grid = op.Pow(op.Constant(value_float=2.0), op.Floor(op.Log(deviation) / LN2) - 1.0)
    return op.Where(deviation > 0.0, op.Round(mean / grid) * grid, mean)


@script(osa, default_opset=op)
def Centred(x):
    """X₀ = X − 1·μᵀ, the rough mean μ and the sum of X₀'s rows, each (b, 1, D), and their number (1)."""
    tokens = op.Shape(x, start=1, end=2)
    count = op.Cast(tokens, to=FLOAT)
    # a product: reductions along columns take five times as long
    each = op.Expand(op.Constant(value_float=1.0), op.Concat(op.Constant(value_ints=[1, 1]), tokens, axis=0))
    mean = op.MatMul(each, x) / count
    places = op.Range(0, MEAN_SAMPLE, 1) * tokens / MEAN_SAMPLE
    apart = op.Gather(x, places, axis=1) - mean
    deviation = op.Sqrt(op.ReduceMean(apart * apart, op.Constant(value_ints=[1, 2])))
    rough = osa.OnGrid(mean, deviation)
    x0 = x - rough
    return x0, rough, op.MatMul(each, x0), count


@script(osa, default_opset=op)
def CentredOfReal(x, mask):
    """X₀ = X − 1·μᵀ with padded rows at zero, μ and the sum of X₀'s rows, (b, 1, D), and their number (b, 1, 1)."""
    real = op.Unsqueeze(mask, op.Constant(value_ints=[-1]))
    rows = op.Constant(value_ints=[1])
    each = op.Cast(op.Unsqueeze(mask, rows), to=FLOAT)
    count = op.ReduceSum(each, op.Constant(value_ints=[2]))
    zero = op.Constant(value_float=0.0)
    mean = op.MatMul(each, op.Where(real, x, zero)) / op.Max(count, op.Constant(value_float=1.0))
    places = op.Range(0, MEAN_SAMPLE, 1) * op.Shape(x, start=1, end=2) / MEAN_SAMPLE
    here = op.Gather(real, places, axis=1)
    apart = op.Where(here, op.Gather(x, places, axis=1) - mean, zero)
    squares = op.ReduceSum(op.ReduceMean(apart * apart, op.Constant(value_ints=[2])), rows)
    found = op.ReduceSum(op.Cast(here, to=FLOAT), rows)
    rough = osa.OnGrid(mean, op.Sqrt(squares / op.Max(found, op.Constant(value_float=1.0))))
    x0 = op.Where(real, x - rough, zero)
    return x0, rough, op.MatMul(each, x0), count


@script(osa, default_opset=op)
def Turned(rows):
    """Rows times J/c: [a b] becomes [−b a]."""
    upper, lower = op.Split(rows, axis=-1, num_outputs=2)
    return op.Concat(op.Neg(lower), upper, axis=-1)


@script(osa, default_opset=op)
def MeanScaling(m, f, count, c):
    """Zᵀ = [f̂; Jf̂] (b, h, 2, m), Λ = [1/τ − 1, τ − 1] (b, h, 1, 2), τ (b, h, 1, 1), c·GZ and its products with Zᵀ."""
    tiny = op.Constant(value_float=TINY_SQUARE)
    square = op.ReduceSumSquare(f, op.Constant(value_ints=[-1]))
    along = f / op.Max(op.Sqrt(square), tiny)
    turned = osa.Turned(along)
    z_rows = op.Concat(along, op.Neg(turned), axis=-2)
    gz = op.MatMul(m, op.Transpose(op.Concat(turned, along, axis=-2), perm=[0, 1, 3, 2]))
    inner = op.MatMul(z_rows, gz)
    last, end, matrix = op.Constant(value_ints=[1, 1]), op.Constant(value_ints=[2, 2]), op.Constant(value_ints=[-2, -1])
    spread = op.Slice(inner, last, end, matrix)
    ratio = (op.Log(op.Max(count * square * op.Abs(c), tiny)) - op.Log(op.Max(op.Abs(spread), tiny))) / (4.0 * LN2)
    tau = op.Pow(op.Constant(value_float=2.0), op.Clip(ratio, 0.0, LARGEST_MEAN_SCALING))
    return z_rows, op.Concat(1.0 / tau - 1.0, tau - 1.0, axis=-1), tau, gz, inner


@script(osa, default_opset=op)
def FoldedCore(gram, mean, rest, count, packed, scale):
    """M = GJ and W of the scaled F̃ = F·R, its mean f, what leads back from F̃ to F, and β (b, h, 1, 1)."""
    columns = op.Shape(packed, start=-1)
    m_d = op.Concat(columns / 3 * 2, columns / 3, axis=0)
    queries_keys, values = op.Split(packed, m_d, axis=-1)
    c = op.Unsqueeze(scale, op.Constant(value_ints=[-2, -1]))
    rows = op.Transpose(queries_keys, perm=[0, 2, 1])
    # one product for all heads, whose rows are turned while they are constants; C is symmetric
    by_rows = op.MatMul(
        op.Reshape(rows, op.Concat(op.Constant(value_ints=[-1]), op.Shape(gram, start=-1), axis=0)), gram
    )
    mapped = op.Reshape(by_rows, op.Concat(op.Constant(value_ints=[0]), op.Shape(rows), axis=0))
    m_plain = op.MatMul(mapped, c * osa.Turned(queries_keys))
    w = op.MatMul(mapped, values)
    flat = op.Reshape(op.Transpose(packed, perm=[1, 0, 2]), op.Constant(value_ints=[0, -1]))
    sums = op.MatMul(op.Concat(mean, rest, axis=1), flat)
    by_head = op.Concat(op.Constant(value_ints=[0, 0]), op.Shape(scale), op.Constant(value_ints=[-1]), axis=0)
    f_row, s_row = op.Split(op.Transpose(op.Reshape(sums, by_head), perm=[0, 2, 1, 3]), axis=-2, num_outputs=2)
    f_plain, f_values = op.Split(f_row, m_d, axis=-1)
    s_plain, s_values = op.Split(s_row, m_d, axis=-1)
    number = op.Reshape(count, op.Constant(value_ints=[-1, 1, 1, 1]))
    z_rows, stretch, tau, gz, inner = osa.MeanScaling(m_plain, f_plain, number, c)
    z = op.Transpose(z_rows, perm=[0, 1, 3, 2])
    z_stretched = z * stretch
    f = f_plain / tau
    s = s_plain + op.MatMul(op.MatMul(s_plain, z) * stretch, z_rows)
    low = gz * stretch + 0.5 * op.MatMul(z_stretched, inner * stretch)
    left = op.Concat(z_rows, f, axis=-2)
    right = op.Concat(op.Transpose(low, perm=[0, 1, 3, 2]), c * (s + 0.5 * number * f), axis=-2)
    both = op.Transpose(op.Concat(left, right, axis=-2), perm=[0, 1, 3, 2])
    m = m_plain + op.MatMul(both, osa.Turned(op.Concat(right, left, axis=-2)))
    added = op.Concat(op.MatMul(z_rows, w), s_values + number * f_values, f_values, axis=-2)
    f_column = op.Transpose(f, perm=[0, 1, 3, 2])
    s_column = op.Transpose(s, perm=[0, 1, 3, 2])
    w_scaled = w + op.MatMul(op.Concat(z_stretched, f_column, s_column, axis=-1), added)
    q_weights, k_weights = op.Split(op.Unsqueeze(queries_keys, op.Constant(value_ints=[0])), axis=-1, num_outputs=2)
    length = op.Max(osa.SpectralEstimate(q_weights), osa.SpectralEstimate(k_weights))
    estimate = osa.SpectralEstimate(op.Unsqueeze(gram, op.Constant(value_ints=[1])))
    size = op.Max(estimate, op.Constant(value_float=LEAST_SQUARE))
    squares = op.Unsqueeze(op.ReduceSumSquare(mean, op.Constant(value_ints=[-1])), op.Constant(value_ints=[1]))
    beta = length * length * op.Abs(c) * (size * tau * tau + op.Sqrt(number * size * squares))
    return m, w_scaled, f, z, z_stretched, beta


@script(osa, default_opset=op)
def IsInFoldedDoubt(m, w, norm, beta):
    """1 where float32 loses digits or range, else 0; written so that NaN is in doubt. (b, h, 1, 1)"""
    size = osa.SpectralEstimate(m)
    w_size = op.ReduceSumSquare(w, op.Constant(value_ints=[-2, -1]))
    amplified = op.Max(size * size * size, beta * op.Max(size * size, op.Constant(value_float=SMALL_CORE)))
    sound = amplified / op.Max(norm, op.Constant(value_float=1.0)) + w_size * 0.0 <= FLOAT32_AMPLIFICATION
    tiny = op.And(w_size < TINY_SQUARE, size > 0.0)
    return op.Where(op.And(sound, op.Not(tiny)), op.Constant(value_float=0.0), op.Constant(value_float=1.0))


@script(osa, default_opset=op)
def Merged(x):
    """(b, h, n, d) → (b, n, h·d)."""
    return op.Reshape(op.Transpose(x, perm=[0, 2, 1, 3]), op.Constant(value_ints=[0, 0, -1]))


@script(osa, default_opset=op)
def FoldedMap(y, f, z, z_stretched, mean, packed, out):
    """T (b, D, D), and the row (b, 1, D) that the mean token becomes, from Y = J·φ₁(M)·W of each head."""
    columns = op.Shape(packed, start=-1)
    m = columns / 3 * 2
    queries_keys, values = op.Split(packed, op.Concat(m, columns - m, axis=0), axis=-1)
    row = op.MatMul(op.Unsqueeze(mean, op.Constant(value_ints=[1])), values) + op.MatMul(f, y)
    z_rows = op.Transpose(z, perm=[0, 1, 3, 2])
    unscaled = y + op.MatMul(z_stretched, op.MatMul(z_rows, y))
    folded = values + op.MatMul(queries_keys, unscaled)
    return op.MatMul(osa.Merged(folded), out), op.MatMul(osa.Merged(row), out)


@script(osa, default_opset=op)
def QueriesKeysValues(x, weight, scale):
    """Q, K and V, each (b, h, N, d)."""
    shape = op.Concat(op.Constant(value_ints=[0, 0]), op.Shape(scale), op.Constant(value_ints=[-1]), axis=0)
    rows = op.Transpose(op.Reshape(op.MatMul(x, weight), shape), perm=[0, 2, 1, 3])
    q, k, v = op.Split(rows, axis=-1, num_outputs=3)
    return q, k, v


@script(osa, default_opset=op)
def ShiftedSelfAttention(x, weight, out, shift, scale):
    """The layer with a row added to each token, which costs nothing where the mean's row is added anyway."""
    packed = osa.PackedByHead(weight, scale)
    nothing = op.Constant(value_float=0.0)
    if osa.FoldingPays(x, weight, out, scale):
        x0, mean, rest, count = osa.Centred(x)
        gram = op.MatMul(op.Transpose(x0, perm=[0, 2, 1]), x0)
        m, w, f, z, z_stretched, beta = osa.FoldedCore(gram, mean, rest, count, packed, scale)
        m2 = op.MatMul(m, m)
        norm = osa.CoreNorm(m2)
        near = op.Where(norm <= NEAR_REACH, op.Constant(value_float=0.0), op.Constant(value_float=1.0))
        far = op.Where(norm <= FARTHEST, near, op.Constant(value_float=2.0))
        method = op.ReduceMax(op.Max(far, 2.0 * osa.IsInFoldedDoubt(m, w, norm, beta)), keepdims=0)
    else:
        x0, mean, m, w, f, z = nothing, nothing, nothing, nothing, nothing, nothing
        z_stretched, m2, norm = nothing, nothing, nothing
        method = op.Constant(value_float=2.0)
    if method > 1.5:
        q, k, v = osa.QueriesKeysValues(x, weight, scale)
        mixed, squarings = osa.OrthogonalAttention(q, k, v, scale)
        result = op.MatMul(osa.Merged(mixed), out) + shift
    else:
        y = osa.FoldedSolution(method, m, m2, norm, w, op.Unsqueeze(scale, op.Constant(value_ints=[-2, -1])))
        folded, row = osa.FoldedMap(y, f, z, z_stretched, mean, packed, out)
        result = op.MatMul(x0, folded) + (row + shift)
        squarings = op.Constant(value_int=0)
    return result, squarings


@script(osa, default_opset=op)
def Unmasked(x, weight, out, scale):
    result, squarings = osa.ShiftedSelfAttention(x, weight, out, op.Constant(value_float=0.0), scale)
    return result, squarings


@script(osa, default_opset=op)
def ThenLinear(x, weight, out, scale, linear, bias):
    result, squarings = osa.ShiftedSelfAttention(x, weight, op.MatMul(out, linear), bias, scale)
    return result, squarings


@script(osa, default_opset=op)
def FoldedSolution(method, m, m2, norm, w, c):
    """J·φ₁(M)·W in float32: near, or in steps."""
    one = op.Constant(value_float=1.0)
    if method > 0.5:
        step_q, step_k = osa.SteppedSolution(m, m2, norm, w, one, c)
        y = op.Concat(step_q, step_k, axis=-2)
    else:
        near_q, near_k = osa.NearSolution(m, m2, w, one, c)
        y = op.Concat(near_q, near_k, axis=-2)
    return y


@script(osa, default_opset=op)
def WithPadding(result, x, mask, weight, out, scale):
    """The result with padded rows as exp(S), the identity on them, leaves them: their values, through W_O."""
    places = op.Transpose(op.NonZero(op.Not(mask)))
    columns = op.Shape(weight, start=1) / op.Shape(scale) / 3
    packed = osa.PackedByHead(weight, scale)
    _queries_keys, values = op.Split(packed, op.Concat(columns * 2, columns, axis=0), axis=-1)
    merged = op.Reshape(op.Transpose(values, perm=[1, 0, 2]), op.Constant(value_ints=[0, -1]))
    rows = op.MatMul(op.MatMul(op.GatherND(x, places), merged), out)
    return op.ScatterND(result, places, rows)


@script(osa, default_opset=op)
def Masked(x, weight, out, scale, mask):
    packed = osa.PackedByHead(weight, scale)
    nothing = op.Constant(value_float=0.0)
    if osa.FoldingPays(x, weight, out, scale):
        x0, mean, rest, count = osa.Centred(x, mask)
        gram = op.MatMul(op.Transpose(x0, perm=[0, 2, 1]), x0)
        m, w, f, z, z_stretched, beta = osa.FoldedCore(gram, mean, rest, count, packed, scale)
        m2 = op.MatMul(m, m)
        norm = osa.CoreNorm(m2)
        near = op.Where(norm <= NEAR_REACH, op.Constant(value_float=0.0), op.Constant(value_float=1.0))
        far = op.Where(norm <= FARTHEST, near, op.Constant(value_float=2.0))
        method = op.ReduceMax(op.Max(far, 2.0 * osa.IsInFoldedDoubt(m, w, norm, beta)), keepdims=0)
    else:
        x0, mean, m, w, f, z = nothing, nothing, nothing, nothing, nothing, nothing
        z_stretched, m2, norm = nothing, nothing, nothing
        method = op.Constant(value_float=2.0)
    if method > 1.5:
        q, k, v = osa.QueriesKeysValues(x, weight, scale)
        mixed, squarings = osa.OrthogonalAttention(q, k, v, scale, op.Unsqueeze(mask, op.Constant(value_ints=[1])))
        result = op.MatMul(osa.Merged(mixed), out)
    else:
        y = osa.FoldedSolution(method, m, m2, norm, w, op.Unsqueeze(scale, op.Constant(value_ints=[-2, -1])))
        folded, row = osa.FoldedMap(y, f, z, z_stretched, mean, packed, out)
        result = osa.WithPadding(op.MatMul(x0, folded) + row, x, mask, weight, out, scale)
        squarings = op.Constant(value_int=0)
    return result, squarings


@script(osa, default_opset=op)
def UnmaskedOfAnyType(x, weight, out, scale):
    weight32, out32 = op.Cast(weight, to=FLOAT), op.Cast(out, to=FLOAT)
    result, squarings = osa.Float32SelfAttention(op.Cast(x, to=FLOAT), weight32, out32, op.Cast(scale, to=FLOAT))
    return op.CastLike(result, x), squarings


@script(osa, default_opset=op)
def MaskedOfAnyType(x, weight, out, scale, mask):
    weight32, out32 = op.Cast(weight, to=FLOAT), op.Cast(out, to=FLOAT)
    result, squarings = osa.Float32SelfAttention(op.Cast(x, to=FLOAT), weight32, out32, op.Cast(scale, to=FLOAT), mask)
    return op.CastLike(result, x), squarings


def folded_functions(choice: FunctionChoice) -> list[onnx.FunctionProto]:
    parts = (
        FoldingPays,
        PackedByHead,
        OnGrid,
        CentredOfReal if choice.masked else Centred,
        Turned,
        MeanScaling,
        FoldedCore,
        IsInFoldedDoubt,
        Merged,
        FoldedMap,
        FoldedSolution,
        QueriesKeysValues,
        WithPadding,
        *((Masked,) if choice.masked else (ShiftedSelfAttention, Unmasked)),
    )
    protos = [f.to_function_proto() for f in parts]
    protos[3].name = "Centred"
    core = protos[-1]
    if not choice.sized:
        _always_fold(core if choice.masked else protos[-2])
    if choice.any_type:
        core.name, core.doc_string = "Float32SelfAttention", "OrthogonalSelfAttention in float32."
        protos.append((MaskedOfAnyType if choice.masked else UnmaskedOfAnyType).to_function_proto())
    protos[-1].name = "OrthogonalSelfAttention"
    protos[-1].doc_string = DESCRIPTION.format(mask=MASKED if choice.masked else "")
    if choice.joined:
        protos.append(ThenLinear.to_function_proto())
        protos[-1].name, protos[-1].doc_string = "OrthogonalSelfAttentionLinear", JOINED
    return protos


def _always_fold(function: onnx.FunctionProto) -> None:
    """Put the nodes of the folded core in the place of the choice by sizes, where a fixed size has decided it."""
    choice = next(node for node in function.node if node.op_type == "If")
    taken = next(attribute.g for attribute in choice.attribute if attribute.name == "then_branch")
    inside = [*taken.node]
    for made, name in zip(taken.output, choice.output, strict=True):
        inside.append(onnx.helper.make_node("Identity", [made.name], [name]))
    nodes = [part for node in function.node for part in (inside if node is choice else [node])]
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes if node.op_type != "FoldingPays"]
    del function.node[:]
    function.node.extend(kept)
