"""The parts of pt2 and TorchScript artifacts: found, seen in a run, called alone, and equal to those of eager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from made_once import export_checkpoint
from osa_runtime.errors import ArtifactError, InputError, RunError
from osa_runtime.exporters import export
from osa_runtime.models import EncoderConfig, SkiplessEncoder, SkiplessViT, ViTConfig, save_checkpoint
from osa_runtime.nn import OrthogonalSelfAttention
from osa_runtime.ops import reference
from osa_runtime.parity import relative_tolerance
from osa_runtime.verification.inside.model_parts import Array, Core, ModelParts
from osa_runtime.verification.inside.pt2_parts import Pt2Parts
from osa_runtime.verification.inside.torchscript_parts import TorchScriptParts

pytestmark = pytest.mark.slow

PARTS = {"pt2": (Pt2Parts, "model.pt2"), "torchscript": (TorchScriptParts, "model.pt")}
SIZES = {"dim": 16, "depth": 1, "heads": 4, "alpha": 0.3}
NORMED = {"residual": True, "norm": True, "depth": 2}

# By name: the model, what its configuration adds or changes, the options of its export. Without norms a large α
# amplifies the rounding of the halves from layer to layer.
VARIANTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "vit": ("vit", {"depth": 2}, {}),
    "vit-residual-norm": ("vit", NORMED, {}),
    "vit-softmax": ("vit", {"attention": "softmax", "depth": 2}, {}),
    "vit-cls-conditioned-fp16": ("vit", {"pool": "cls", "conditioning": "spectral", "alpha": 0.1}, {"dtype": "fp16"}),
    "vit-static-pade": ("vit", {}, {"static": True, "approximant": "pade"}),
    "encoder": ("encoder", {}, {}),  # a block that chooses its form: the longest of all exports
    "encoder-token-softmax-norm": ("encoder", {"head": "token", "attention": "softmax", **NORMED}, {}),
    "encoder-polynomial": ("encoder", {"attention": "polynomial", **NORMED}, {}),
    "encoder-linear-gelu": ("encoder", {"attention": "polynomial", "power": 1, "activation": "gelu"}, {}),
    "encoder-lowrank-fp16": ("encoder", {"form": "lowrank", "alpha": 0.1}, {"dtype": "fp16"}),
    "encoder-static-squarings": ("encoder", {"squarings": 8}, {"static": True}),
    "encoder-static-folding": ("encoder", {}, {"static": True}),
}
USUAL = (
    "vit",
    "vit-cls-conditioned-fp16",
    "encoder",
    "encoder-token-softmax-norm",
    "encoder-static-folding",
)  # the others with ``make test-long``
PAIRS = [(variant, kind) for variant in VARIANTS for kind in PARTS]
ORTHOGONAL = [pair for pair in PAIRS if "attention" not in VARIANTS[pair[0]][1]]


@dataclass(frozen=True)
class Case:
    module: nn.Module
    model_parts: ModelParts
    kind: str
    variant: str

    @property
    def dtype(self) -> str:
        return VARIANTS[self.variant][2].get("dtype", "fp32")

    @property
    def tolerance(self) -> float:
        return relative_tolerance(self.kind, self.dtype, depth_of(self.variant))

    def feeds(self, batch: int = 3, tokens: int = 21) -> dict[str, Array]:
        """At the only sizes that there are where the export is static."""
        model, _, options = VARIANTS[self.variant]
        batch, tokens = (1, 64) if options.get("static") else (batch, tokens)
        generator = np.random.default_rng(batch)
        if model == "vit":
            images = generator.standard_normal((batch, 1, 8, 8))
            return {"images": images.astype(np.float16 if self.dtype == "fp16" else np.float32)}
        lengths = generator.integers(1, tokens + 1, (batch, 1))
        return {"tokens": generator.integers(0, 11, (batch, tokens)), "mask": np.arange(tokens) < lengths}

    def eager(self, feeds: dict[str, Array]) -> dict[str, tuple[list[Array], Array]]:
        """The inputs and the output of every module, from hooks."""
        seen: dict[str, tuple[list[Array], Array]] = {}
        hooks = [
            part.register_forward_hook(
                lambda _, args, out, name=name: seen.update({name: (_arrays(args), out.numpy())})
            )
            for name, part in self.module.named_modules()
            if name in self.model_parts.units
        ]
        with torch.no_grad():
            self.module(*map(torch.from_numpy, feeds.values()))
        for hook in hooks:
            hook.remove()
        return seen


def _arrays(args: tuple[Any, ...]) -> list[Array]:
    return [x.numpy() for x in args if x is not None]


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    variant, kind = request.param
    model, settings, options = VARIANTS[variant]
    home = tmp_path_factory.mktemp("artifacts")
    torch.manual_seed(0)
    if model == "vit":
        module: nn.Module = SkiplessViT(ViTConfig(classes=10, **(SIZES | settings)))
    else:
        module = SkiplessEncoder(EncoderConfig(classes=3, vocabulary=11, max_length=64, **(SIZES | settings)))
    save_checkpoint(module, home / "checkpoint")
    artifact = export_checkpoint(home / "checkpoint", home / "artifact", format=kind, **options)
    module = module.half() if options.get("dtype") == "fp16" else module
    names = [spec.name for spec in artifact.manifest.inputs]
    return Case(module.eval().requires_grad_(False), open_parts(home / "artifact", kind, names), kind, variant)


def open_parts(folder: Path, kind: str, names: list[str]) -> ModelParts:
    cls, file = PARTS[kind]
    return cls(folder / file, names)


def cases(pairs: list[tuple[str, str]]) -> Callable[..., Any]:
    parameters = [
        pytest.param(pair, id="-".join(pair), marks=() if pair[0] in USUAL else pytest.mark.long) for pair in pairs
    ]
    return pytest.mark.parametrize("case", parameters, indirect=True)


def assert_close(found: Array, expected: Array, tolerance: float) -> None:
    assert found.shape == expected.shape
    assert np.isfinite(expected).all()
    difference = np.abs(found.astype(np.float64) - expected.astype(np.float64)).max()
    assert difference <= tolerance * np.abs(expected.astype(np.float64)).max()


def defined(core: Core, v: Array) -> Array:
    mask = None if core.mask is None else torch.from_numpy(core.mask)
    q, k, values, scale = (torch.from_numpy(x) for x in (core.q, core.k, v, core.scale))
    return reference.orthogonal_attention(q, k, values, scale, mask).numpy()


def depth_of(variant: str) -> int:
    return VARIANTS[variant][1].get("depth", SIZES["depth"])


def expected_units(variant: str) -> list[str]:
    settings = VARIANTS[variant][1]
    parts = ["attention", "mlp"]
    if settings.get("norm"):
        parts = ["attention_norm", "attention", "mlp_norm", "mlp"]
    blocks = []
    for i in range(depth_of(variant)):
        blocks += [f"stack.blocks.{i}.{part}" for part in parts]
        blocks += [f"stack.blocks.{i}"] if settings.get("residual") else []
    return ["embed", *blocks, *(["stack.norm"] if settings.get("norm") else []), "head"]


@cases(PAIRS)
def test_units_are_in_the_order_of_execution(case: Case) -> None:
    assert list(case.model_parts.units) == expected_units(case.variant)
    orthogonal = (case.variant, case.kind) in ORTHOGONAL
    attentions = [f"stack.blocks.{i}.attention" for i in range(depth_of(case.variant))] if orthogonal else []
    assert list(case.model_parts.attentions) == attentions


@cases(PAIRS)
def test_outputs_of_units_are_those_of_eager(case: Case) -> None:
    for batch, tokens in ((3, 21), (1, 4), (5, 40)):
        feeds = case.feeds(batch, tokens)
        found, eager = case.model_parts.outputs_of(case.model_parts.units, feeds), case.eager(feeds)
        assert list(found) == list(case.model_parts.units)
        for name, value in found.items():
            assert value.dtype == eager[name][1].dtype
            assert_close(value, eager[name][1], case.tolerance)


@cases(PAIRS)
def test_units_called_alone_are_those_of_eager(case: Case) -> None:
    for batch, tokens in ((3, 21), (1, 4), (5, 40)):
        for name, (inputs, out) in case.eager(case.feeds(batch, tokens)).items():
            assert_close(case.model_parts.call(name, inputs), out, case.tolerance)


@cases(ORTHOGONAL)
def test_cores_obey_the_definition(case: Case) -> None:
    heads, width = SIZES["heads"], SIZES["dim"] // SIZES["heads"]
    for batch, tokens in ((3, 21), (1, 4), (2, 40)):
        feeds = case.feeds(batch, tokens)
        for core in case.model_parts.cores_of(case.model_parts.attentions, feeds).values():
            assert core.q.shape == core.k.shape == core.v.shape == core.out.shape
            assert core.q.shape[1] == heads
            assert core.q.shape[3] == width
            assert core.scale.shape == (heads,)
            assert (core.mask is None) == ("mask" not in feeds)
            assert_close(core.out, defined(core, core.v), case.tolerance)


@cases(ORTHOGONAL)
def test_attend_applies_the_exponential_to_other_values(case: Case) -> None:
    for batch, tokens in ((3, 21), (1, 4)):
        cores = case.model_parts.cores_of(case.model_parts.attentions, case.feeds(batch, tokens))
        for name, core in cores.items():
            v = np.random.default_rng(1).standard_normal(core.v.shape).astype(core.v.dtype)
            assert_close(case.model_parts.apply_attention(name, core, v), defined(core, v), case.tolerance)
            assert_close(case.model_parts.apply_attention(name, core, core.v), core.out, case.tolerance)


@cases([pair for pair in ORTHOGONAL if pair[0] == "encoder"])
def test_a_core_without_a_mask_has_only_real_tokens(case: Case) -> None:
    name = case.model_parts.attentions[-1]
    core = case.model_parts.cores_of([name], case.feeds())[name]
    bare = Core(core.q, core.k, core.v, core.scale, None, core.out)
    assert_close(case.model_parts.apply_attention(name, bare, core.v), defined(bare, core.v), case.tolerance)


@cases([(variant, kind) for variant in ("vit-residual-norm", "encoder") for kind in PARTS])
def test_a_unit_is_written_as_a_model_of_its_own(case: Case, tmp_path: Path) -> None:
    eager = case.eager(case.feeds())
    block = f"stack.blocks.{depth_of(case.variant) - 1}"
    for name in ("embed", f"{block}.attention", f"{block}.mlp", "head"):
        inputs, out = eager[name]
        written = case.model_parts.write_unit(name, inputs, tmp_path, {})
        assert [path.name for path in tmp_path.iterdir()] == [written.file]
        content = (tmp_path / written.file).read_bytes()
        assert str(tmp_path).encode() not in content
        assert b"/osa_runtime/verification" not in content
        assert_close(run_file(tmp_path / written.file, dict(written.inputs)), out, case.tolerance)


def run_file(path: Path, named: dict[str, Array]) -> Array:
    part = torch.jit.load(str(path)) if path.suffix == ".pt" else torch.export.load(path).module()
    found: Array = part(*map(torch.from_numpy, named.values())).numpy()
    return found


@cases([("vit", kind) for kind in PARTS])
def test_what_a_run_gives_does_not_change_later(case: Case) -> None:
    first = case.model_parts.outputs_of(["embed"], case.feeds(3))["embed"]
    kept = first.copy()
    case.model_parts.outputs_of(case.model_parts.units, case.feeds(5))
    assert np.array_equal(first, kept)
    assert np.array_equal(case.model_parts.outputs_of(["embed"], case.feeds(3))["embed"], kept)


@cases([("encoder", kind) for kind in PARTS])
def test_wrong_requests_are_refused(case: Case) -> None:
    feeds = case.feeds()
    with pytest.raises(InputError, match=r"no part called stack\.blocks\.7; it shows embed"):
        case.model_parts.outputs_of(["stack.blocks.7"], feeds)
    with pytest.raises(InputError, match="no part called head"):
        case.model_parts.cores_of(["head"], feeds)
    with pytest.raises(InputError, match=r"feeds are \['tokens'\]"):
        case.model_parts.outputs_of(["head"], {"tokens": feeds["tokens"]})
    with pytest.raises((InputError, RunError)):
        case.model_parts.call("head", [np.ones((2, 7), np.float32)])


@cases([("encoder", "pt2")])
def test_pt2_parts_check_the_shapes_that_they_are_given(case: Case) -> None:
    x, mask = np.ones((2, 5, 16), np.float32), np.ones((2, 4), np.bool_)
    with pytest.raises(InputError, match=r"Got torch\.bool of shape \(2, 4\), expected"):
        case.model_parts.call("stack.blocks.0.attention", [x, mask])
    with pytest.raises(InputError, match="takes a tensor and a mask, got 1"):
        case.model_parts.call("stack.blocks.0.attention", [x])


@cases([("vit-static-pade", "pt2")])
def test_a_run_at_a_size_that_was_not_exported_fails(case: Case) -> None:
    with pytest.raises(RunError, match="the whole of"):
        case.model_parts.outputs_of(["head"], {"images": np.ones((4, 1, 8, 8), np.float32)})


class Odd(nn.Module):
    """Modules that cannot be units: called twice, working in place, returning two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.twice, self.split = nn.Linear(8, 8), nn.Linear(8, 8), Split()
        self.inplace, self.attention = nn.ReLU(inplace=True), Unfolded(8, 2, alpha=0.7)
        self.chain = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        changed = self.inplace(x)
        left, right = self.split(self.twice(self.twice(changed)))
        return self.chain(self.attention(left + right))


class Split(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, 2 * x


class Unfolded(OrthogonalSelfAttention):
    """A subclass, into whose weights no scale is folded."""


@pytest.fixture(scope="module", params=list(PARTS))
def odd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, ModelParts]:
    torch.manual_seed(1)
    module, folder = Odd().eval().requires_grad_(False), tmp_path_factory.mktemp("odd") / "artifact"
    axes = {"x": {0: "batch", 1: "tokens"}}
    export(module, (torch.randn(2, 5, 8),), folder, format=request.param, dynamic_shapes=axes)
    return module, open_parts(folder, request.param, ["x"])


def test_units_without_a_clean_boundary_are_left_out(odd: tuple[nn.Module, ModelParts]) -> None:
    module, model_parts = odd
    assert set(model_parts.units) - {"inplace"} == {"before", "attention", "chain.0", "chain.1"}
    x = torch.randn(3, 7, 8)
    found = model_parts.outputs_of(model_parts.units, {"x": x.numpy()})
    assert_close(found["before"], module.before(x).numpy(), 1e-6)
    assert_close(found["chain.1"], module(x).numpy(), 1e-5)


def test_a_scale_that_is_not_folded_is_found(odd: tuple[nn.Module, ModelParts]) -> None:
    _, model_parts = odd
    assert model_parts.attentions == ("attention",)
    core = model_parts.cores_of(["attention"], {"x": np.ones((3, 7, 8), np.float32)})["attention"]
    assert np.allclose(core.scale, 0.7 / 2)
    assert_close(core.out, defined(core, core.v), 1e-5)


@pytest.mark.parametrize("kind", list(PARTS))
def test_a_damaged_file_is_an_artifact_error(kind: str, tmp_path: Path) -> None:
    (tmp_path / PARTS[kind][1]).write_bytes(b"not a model")
    with pytest.raises(ArtifactError, match="cannot be read"):
        open_parts(tmp_path, kind, ["x"])
