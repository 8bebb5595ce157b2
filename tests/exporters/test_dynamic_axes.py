"""``dynamic_shapes`` in every spelling of torch.export: which axes the manifest names, and that they are dynamic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from osa_runtime import load
from osa_runtime.errors import ExportError, InputError, OsaError
from osa_runtime.exporters import export
from osa_runtime.exporters.dynamic_axes import as_torch_takes, read_shapes, spelled_out
from osa_runtime.exporters.examples import describe_examples
from osa_runtime.nn import OrthogonalSelfAttention

FORMATS = ["onnx", "torchscript", "pt2"]
BATCH, TOKENS = Dim("batch", max=64), Dim("tokens", min=2, max=32)
DYNAMIC = ("x: float32[batch, tokens, 8]", "mask: bool[batch, tokens]")


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = OrthogonalSelfAttention(8, 2, alpha=0.3, form="dense")

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.layer(x, mask)


@pytest.fixture
def module() -> nn.Module:
    torch.manual_seed(0)
    return Masked()


def example(batch: int = 2, tokens: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch, tokens, 8, generator=generator), torch.ones(batch, tokens, dtype=torch.bool)


def exported(module: nn.Module, out: Path, shapes: Any, args: Any = None, **options: Any) -> tuple[str, ...]:
    """The inputs of the manifest; every size that it names must work."""
    args = example() if args is None else args
    artifact = export(module, args, out, dynamic_shapes=shapes, **options)
    sizes = {"batch": 3, "tokens": 7}
    specs = artifact.manifest.inputs
    feeds = {}
    for spec, x in zip(specs, args if isinstance(args, tuple) else (args,), strict=True):
        shape = [sizes.get(axis, 9) if isinstance(axis, str) else axis for axis in spec.shape]
        feeds[spec.name] = np.ones(shape, x.numpy().dtype)
    output = next(iter(load(out).run(feeds).values()))
    with torch.no_grad():
        expected = module(*map(torch.from_numpy, feeds.values()))
    np.testing.assert_allclose(output, expected.numpy(), rtol=1e-4, atol=1e-5)
    return tuple(map(str, specs))


SPELLINGS: dict[str, Any] = {
    "names": {"x": {0: "batch", 1: "tokens"}, "mask": {0: "batch", 1: "tokens"}},
    "Dim": {"x": {0: BATCH, 1: TOKENS}, "mask": {0: BATCH, 1: TOKENS}},
    "tuple by position": ({0: "batch", 1: "tokens"}, {0: "batch", 1: "tokens"}),
    "list by position": [{0: BATCH, 1: TOKENS}, {0: BATCH, 1: TOKENS}],
    "a tuple for each": ((BATCH, TOKENS, None), (BATCH, TOKENS)),
    "a list for each": {"x": [BATCH, TOKENS, 8], "mask": [BATCH, TOKENS]},
    "STATIC": ({0: "batch", 1: "tokens", 2: Dim.STATIC}, ["batch", "tokens"]),
    "a name and a Dim": ({0: "batch", 1: TOKENS}, {0: BATCH, 1: "tokens"}),
    "a name and AUTO": ({0: "batch", 1: "tokens"}, {0: Dim.AUTO, 1: Dim.AUTO}),
    "a Dim and DYNAMIC": ({0: BATCH, 1: TOKENS}, {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}),
}


def described(module: nn.Module, shapes: Any) -> tuple[str, ...]:
    return tuple(map(str, describe_examples(module, example(), None, shapes).input_specs()))


@pytest.mark.parametrize("shapes", SPELLINGS.values(), ids=SPELLINGS)
def test_every_spelling_says_the_same(module: nn.Module, shapes: Any) -> None:
    assert described(module, shapes) == DYNAMIC


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_a_list_by_position_in_every_format(module: nn.Module, tmp_path: Path, kind: str) -> None:
    shapes = [["batch", TOKENS, None], {0: BATCH, 1: "tokens"}]
    assert exported(module, tmp_path / "a", shapes, format=kind) == DYNAMIC


@pytest.mark.parametrize("hint", [Dim.AUTO, Dim.DYNAMIC, Dim.AUTO(max=64)], ids=str)
def test_equal_sizes_that_torch_ties_together_are_one_axis(module: nn.Module, hint: Any) -> None:
    found = described(module, ({0: hint, 1: hint}, {0: hint, 1: hint}))
    assert found == ("x: float32[batch, x_1, 8]", "mask: bool[batch, x_1]")


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_ranges_are_in_the_manifest_and_hold(module: nn.Module, tmp_path: Path, kind: str) -> None:
    shapes = ({0: Dim.DYNAMIC(max=16), 1: Dim("n", min=3, max=9)}, {0: Dim.AUTO, 1: "n"})
    artifact = export(module, example(), tmp_path / "a", dynamic_shapes=shapes, format=kind)
    assert artifact.manifest.axes == {"batch": {"max": 16}, "n": {"min": 3, "max": 9}}
    session = load(tmp_path / "a")
    for batch, tokens, message in ((17, 5, "expected at most 16"), (2, 2, "expected at least 3")):
        x, mask = example(batch, tokens)
        with pytest.raises(InputError, match=message):
            session.run({"x": x.numpy(), "mask": mask.numpy()})


class Fixing(nn.Module):
    """Its second axis can have one size only."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_an_automatic_axis_that_became_static_is_fixed_and_the_manifest_says_so(tmp_path: Path, kind: str) -> None:
    shapes = {"x": {0: Dim.AUTO, 1: Dim.AUTO}}
    assert exported(Fixing(), tmp_path / "a", shapes, torch.randn(4, 6), format=kind) == ("x: float32[batch, 6]",)


@pytest.mark.slow
def test_an_automatic_axis_of_size_one_is_fixed(tmp_path: Path) -> None:
    shapes = {"x": {0: Dim.AUTO, 1: Dim.AUTO}}
    assert exported(Fixing(), tmp_path / "b", shapes, torch.randn(1, 6)) == ("x: float32[1, 6]",)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("dim", [Dim.DYNAMIC, "width"], ids=str)
def test_a_declared_axis_that_became_static_is_an_error(tmp_path: Path, kind: str, dim: Any) -> None:
    with pytest.raises(OsaError) as caught:
        export(Fixing(), (torch.randn(4, 6),), tmp_path / "a", dynamic_shapes={"x": {1: dim}}, format=kind)
    assert isinstance(caught.value, (InputError, ExportError))
    assert not (tmp_path / "a").exists()


class Apart(nn.Module):
    """Two inputs whose rows need not be equal."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, y]).sum(0)


@pytest.mark.slow
def test_sizes_that_are_free_keep_names_of_their_own(tmp_path: Path) -> None:
    args = (torch.randn(4, 3), torch.randn(4, 3))
    shapes = ((Dim.AUTO, Dim.AUTO), (Dim.AUTO, None))
    assert exported(Apart(), tmp_path / "a", shapes, args) == ("x: float32[batch, 3]", "y: float32[y_0, 3]")


@pytest.mark.slow
def test_a_made_up_name_is_not_one_that_is_taken(tmp_path: Path) -> None:
    args = (torch.randn(4, 3), torch.randn(4, 3))
    shapes = ({0: Dim.AUTO}, {0: "batch"})
    assert exported(Apart(), tmp_path / "a", shapes, args) == ("x: float32[batch_, 3]", "y: float32[batch, 3]")


class Second(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, 1] - x[:, 0]


@pytest.mark.slow
def test_the_smallest_size_of_an_automatic_axis_is_found(tmp_path: Path) -> None:
    artifact = export(Second(), torch.randn(4, 3), tmp_path / "a", dynamic_shapes=((Dim.AUTO, Dim.AUTO),))
    assert artifact.manifest.axes == {"x_1": {"min": 2}}
    assert load(tmp_path / "a").run({"x": np.ones((1, 2), np.float32)})["output"].shape == (1,)


@pytest.mark.slow
def test_a_single_tensor_is_an_example(tmp_path: Path) -> None:
    for number, shapes in enumerate(({"x": {0: "batch"}}, {0: "batch"}, ({0: "batch"},), [["batch", None]], None)):
        found = exported(Fixing(), tmp_path / str(number), shapes, torch.randn(4, 6))
        assert found == ("x: float32[batch, 6]" if shapes is not None else "x: float32[4, 6]",)


def test_names_of_the_inputs_or_of_the_parameters(module: nn.Module) -> None:
    axes = {0: "batch", 1: "tokens"}
    for names in (("x", "mask"), ("sequence", "real")):
        interface = describe_examples(module, example(), ["sequence", "real"], dict.fromkeys(names, axes))
        assert interface.axes[0].keys() == interface.axes[1].keys() == {0, 1}


class Many(nn.Module):
    def forward(self, *inputs: Tensor) -> Tensor:
        return inputs[0] + inputs[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "shapes",
    [(({0: "batch"}, {0: "batch"}),), {"inputs": ({0: "batch"}, {0: "batch"})}, ({0: "batch"}, {0: "batch"})],
    ids=["as torch has it", "by name", "flat"],
)
def test_a_forward_that_takes_any_number(tmp_path: Path, shapes: Any) -> None:
    args = (torch.randn(4, 3), torch.randn(4, 3))
    found = exported(Many(), tmp_path / "a", shapes, args, input_names=["a", "b"])
    assert found == ("a: float32[batch, 3]", "b: float32[batch, 3]")


@pytest.mark.slow
class Rest(nn.Module):
    def forward(self, first: Tensor, *rest: Tensor) -> Tensor:
        return first + sum(rest)


ROWS = {0: Dim("batch")}
NESTED: dict[str, tuple[Any, list[int]]] = {
    "by position": ((ROWS, (ROWS, ROWS)), [1, 1, 1]),
    "by name": ({"first": ROWS, "rest": (ROWS, ROWS)}, [1, 1, 1]),
    "by input": ({"x": ROWS, "y": ROWS, "z": ROWS}, [1, 1, 1]),
    "a tuple for each": ((["batch", None], (("batch", None), ("batch", 3))), [1, 1, 1]),
    "some fixed": ((ROWS, (None, ROWS)), [1, 0, 1]),
    "all of the rest fixed": ((ROWS, None), [1, 0, 0]),
    "a single one": ((ROWS, (ROWS,)), [1, 1]),
    "a single one, flat": ((ROWS, ("batch", None)), [1, 1]),
    "none": (({0: "batch"},), [1]),
}


@pytest.mark.parametrize("case", NESTED)
def test_a_forward_that_takes_any_number_behind_others(case: str) -> None:
    shapes, expected = NESTED[case]
    names, args = ["x", "y", "z"][: len(expected)], [torch.randn(4, 3) for _ in expected]
    found = read_shapes(Rest(), names, args, shapes)
    assert [len(axes) for axes in found] == expected
    taken = as_torch_takes(Rest(), found)
    assert len(taken) == min(2, len(expected))
    assert len(expected) == 1 or taken[1] == found[1:]


def test_the_number_of_the_rest_must_fit() -> None:
    with pytest.raises(InputError, match=r"has 2 entries for the 3 inputs \['x', 'y', 'z'\]"):
        read_shapes(Rest(), ["x", "y", "z"], [torch.randn(4, 3)] * 3, (ROWS, (ROWS,)))


def test_a_collection_knows_the_rest_by_identity() -> None:
    args, shapes = [torch.randn(4, 3) for _ in range(3)], torch.export.ShapesCollection()
    for x in args:
        shapes[x] = ROWS
    found = read_shapes(Rest(), ["x", "y", "z"], args, spelled_out(Rest(), args, shapes))
    assert [list(axes) for axes in found] == [[0], [0], [0]]


def test_a_range_holds_for_every_mention_of_its_name(module: nn.Module) -> None:
    for first, second in ((BATCH, "batch"), ("batch", BATCH), (BATCH, Dim("batch"))):
        found = read_shapes(module, ["x", "mask"], example(), ({0: first}, {0: second}))
        assert [axes[0].max for axes in found] == [64, 64]


@pytest.mark.slow
def test_inputs_by_name(module: nn.Module, tmp_path: Path) -> None:
    x, mask = example()
    shapes = {"x": {0: "batch"}, "mask": {0: "batch"}}
    artifact = export(module, (), tmp_path / "a", kwargs={"mask": mask, "x": x}, dynamic_shapes=shapes)
    assert [str(spec) for spec in artifact.manifest.inputs] == ["x: float32[batch, 5, 8]", "mask: bool[batch, 5]"]
    with pytest.raises(InputError, match="do not fit the module's forward"):
        export(module, x, tmp_path / "b", kwargs={"y": mask})


@pytest.mark.slow
def test_shapes_collection(module: nn.Module, tmp_path: Path) -> None:
    args = example()
    shapes = torch.export.ShapesCollection()
    shapes[args[0]] = {0: BATCH, 1: TOKENS}
    shapes[args[1]] = (BATCH, TOKENS)
    assert exported(module, tmp_path / "a", shapes, args) == DYNAMIC
    with pytest.raises(InputError, match="does not fit the example inputs"):
        export(module, example(), tmp_path / "b", dynamic_shapes=shapes)


@pytest.mark.slow
def test_additional_inputs(module: nn.Module, tmp_path: Path) -> None:
    shapes = torch.export.AdditionalInputs()
    shapes.add(example(3, 5))
    assert exported(module, tmp_path / "a", shapes) == ("x: float32[batch, 5, 8]", "mask: bool[batch, 5]")


WRONG: dict[str, tuple[Any, str]] = {
    "no mapping": ("batch", "dynamic_shapes='batch': expected {input: {axis: name}}"),
    "too few": (({0: "batch"},), "has 1 entries for the 2 inputs"),
    "unknown input": ({"y": {0: "batch"}}, r"names the inputs \['y'\]"),
    "other size": ({"x": {0: 3}}, "fixes axis 0 of x at 3, but its example has 2"),
    "axis": ({"x": {3: "batch"}}, "has the axis 3 .*, but x has 3 axes"),
    "negative axis": ({"x": {-1: "batch"}}, "has the axis -1"),
    "rank": (({0: "batch"}, ("batch",)), "of mask has 1 dimensions, but its example has 2"),
    "space": ({"x": {0: "my batch"}}, "a name without spaces"),
    "a float": ({"x": {0: 2.0}}, "has 0: 2.0; expected"),
    "a bool": ({"x": {0: True}}, "has 0: True; expected"),
    "two ranges": (({0: BATCH}, {0: Dim("batch", max=8)}), "two ranges for batch"),
    "out of range": (({0: Dim("batch", min=3)}, {0: Dim("batch", min=3)}), "size 2 on its axis 0, outside the range"),
    "derived": (({0: "batch", 1: 2 * Dim("half")}, None), r"derives axis 1 from another \(2\*half\)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(module: nn.Module, tmp_path: Path, case: str) -> None:
    shapes, message = WRONG[case]
    with pytest.raises(InputError, match=message):
        export(module, example(), tmp_path / "a", dynamic_shapes=shapes)
    assert not (tmp_path / "a").exists()
