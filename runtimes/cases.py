"""The models and inputs that every runtime is given, and their answers in float64.

A plan is one line per call: the model, the file for the answer, then name:type:shape:file of each input, with tabs
between. Every runner reads that, in whatever language it is written.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from osa_runtime import EncoderConfig, SkiplessEncoder, SkiplessViT, ViTConfig, load_checkpoint, orthogonal_attention
from osa_runtime.exporters import export
from osa_runtime.exporters.eager import rounding_depth
from osa_runtime.formats import FORMATS
from osa_runtime.ops import attention
from osa_runtime.ops.interception import intercept
from osa_runtime.ops.spectral_norm import masked, spectral_norm
from osa_runtime.parity.tolerances import relative_tolerance
from osa_runtime.training.datasets import load_dataset

Array = NDArray[Any]
Inputs = Mapping[str, Tensor]


@dataclass(frozen=True)
class Model:
    """``inputs`` are by the name of the case, ``axes`` those that an export may leave open."""

    module: nn.Module
    inputs: Mapping[str, Inputs]
    axes: Mapping[str, Mapping[int, str]]


@dataclass(frozen=True)
class Case:
    """A call and its answer.

    For each entry of the batch, ``norms`` has the largest ‖S‖₂ of any attention, ``terms`` the largest |c|·‖Q‖·‖K‖, and
    ``tolerances`` what it may be off, relative to its largest value.
    """

    model: str
    name: str
    inputs: Inputs
    expected: Array
    norms: Array
    terms: Array
    tolerances: Array

    @property
    def sizes(self) -> str:
        return "-".join("x".join(map(str, x.shape)) for x in self.inputs.values())

    @property
    def file(self) -> str:
        return f"{self.model}-{self.name}".replace(" ", "-").replace("‖", "")


class OwnModule(nn.Module):
    """Queries and keys come from outside, so that S is whatever a case wants."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8, bias=False)
        self.squarings: str | int = "auto"

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.mix(orthogonal_attention(q, k, v, 1.0, squarings=self.squarings))


def models(digits: Path) -> dict[str, Model]:
    torch.manual_seed(0)
    sizes, axes = {"classes": 10, "dim": 32, "depth": 2, "heads": 2}, {"images": {0: "batch"}}
    return {
        "digits": Model(load_checkpoint(digits), _images(6.0), axes),
        "encoder": _encoder(),
        "own": _own(),
        "softmax": Model(SkiplessViT(ViTConfig(attention="softmax", **sizes)), _images(6.0), axes),
        "polynomial": Model(SkiplessViT(ViTConfig(attention="polynomial", **sizes)), _images(2.0), axes),
    }


def _images(large: float) -> dict[str, Inputs]:
    x = torch.from_numpy(load_dataset("digits").x_test[:3]).float()
    broken = x.clone()
    broken[1, 0, 4, 4] = float("nan")
    return {name: {"images": y} for name, y in (("usual", x), ("small", x / 50), ("large", large * x), ("NaN", broken))}


def _encoder() -> Model:
    """Its vocabulary has words of three lengths, so that S has three sizes. d is 16: 48 tokens are more than 2d."""
    model = SkiplessEncoder(EncoderConfig(classes=3, dim=32, depth=2, heads=2, vocabulary=30, max_length=64))
    cases: dict[str, Inputs] = {}
    for group, (name, size) in enumerate((("small", 0.1), ("middle", 4.0), ("large", 16.0))):
        words = slice(10 * group, 10 * group + 10)
        with torch.no_grad():
            model.embed.weight[words] *= size  # type: ignore[operator, index]
        for length in (12, 48):
            mask = torch.arange(length) < torch.tensor([[length], [length * 2 // 3]])
            cases[f"{name} {length}"] = {"tokens": torch.randint(words.start, words.stop, (2, length)), "mask": mask}
    axes = {0: "batch", 1: "tokens"}
    return Model(model, cases, {"tokens": axes, "mask": axes})


def _own() -> Model:
    """d is 8, so that 16 tokens are the most for the dense form; the first case is the example of the export."""
    cases: dict[str, Inputs] = {}
    for tokens in (16, 17):
        q, k, v = torch.randn(3, 2, 2, tokens, 8)
        for norm in (0.01, 2.0, 12.0, 300.0):
            cases[f"‖S‖ {norm:g} {tokens}"] = _with_norms(q, k, v, norm, norm)
        usual = _with_norms(q, k, v, 2.0, 2.0)
        cases[f"mixed {tokens}"] = _with_norms(q, k, v, 0.3, 300.0)
        cases[f"tiny V {tokens}"] = usual | {"v": 1e-30 * v}
        cases[f"huge V {tokens}"] = usual | {"v": 1e30 * v}
        cases[f"Q of zeros {tokens}"] = usual | {"q": usual["q"] * torch.tensor([0.0, 1.0]).reshape(2, 1, 1, 1)}
        for name, value in (("NaN", float("nan")), ("Inf", float("inf"))):
            broken = usual["k"].clone()
            broken[1, 0, 3, 3] = value
            cases[f"{name} in K {tokens}"] = usual | {"k": broken}
        x = torch.randn(8, 8)  # K = QX with a symmetric X is no part of S
        cases[f"cancellation {tokens}"] = {"q": q, "k": q @ (x + x.mT) + 1e-3 * k, "v": v}
    cases["40 tokens"] = _with_norms(*torch.randn(3, 2, 2, 40, 8), 2.0, 3.0)
    cases["one token"] = {name: x[:, :, :1] for name, x in cases["40 tokens"].items()}
    axes = {0: "batch", 2: "tokens"}
    return Model(OwnModule(), cases, {"q": axes, "k": axes, "v": axes})


def _with_norms(q: Tensor, k: Tensor, v: Tensor, *norms: float) -> Inputs:
    """``norms`` are the largest ‖S‖₂ in each entry of the batch."""
    found = torch.linalg.matrix_norm(q @ k.mT - k @ q.mT, 2).amax(-1)
    roots = (torch.tensor(norms) / found).sqrt()[:, None, None, None]
    return {"q": roots * q, "k": roots * k, "v": v}


def judged(models: Mapping[str, Model]) -> Iterator[Case]:
    for name, model in models.items():
        module = model.module.eval().requires_grad_(False)
        exact, depth = copy.deepcopy(module).double(), rounding_depth(module)
        for case, inputs in model.inputs.items():
            norms, terms = _difficulty(module, inputs)
            expected = exact(*(x.double() if x.is_floating_point() else x for x in inputs.values())).numpy()
            # As in `osa verify`, a model that amplifies rounding is allowed what eager itself loses.
            own = 4 * compared(module(*inputs.values()).numpy(), expected)[0]
            tolerances = np.maximum([relative_tolerance("onnx", "fp32", depth, norm) for norm in norms.tolist()], own)
            yield Case(name, case, inputs, expected, norms, terms, tolerances)


def _difficulty(module: nn.Module, inputs: Inputs) -> tuple[Array, Array]:
    zero = torch.zeros(len(next(iter(inputs.values()))), dtype=torch.float64)
    norms, terms = [zero], [zero]

    def record(*arguments: Any) -> Tensor:
        q, k, _, scale, mask = arguments[:5]
        q, k = masked(q, mask), masked(k, mask)
        factor = torch.as_tensor(scale, dtype=torch.float64).expand(q.shape[:-2])
        norms.append(spectral_norm(q, k, factor).amax(-1))
        lengths = (torch.linalg.matrix_norm(x.double()) for x in (q, k))
        terms.append((factor.abs() * next(lengths) * next(lengths)).amax(-1))
        return attention._apply(*arguments)

    with intercept(record):
        module(*(x.nan_to_num(posinf=0.0) if x.is_floating_point() else x for x in inputs.values()))
    return torch.stack(norms).amax(0).numpy(), torch.stack(terms).amax(0).numpy()


def compared(found: Array, expected: Array) -> tuple[Array, NDArray[np.bool_]]:
    """For each row the difference, relative to its largest value, and whether NaN stands for a number in it.

    A number where NaN was expected is infinitely wrong.
    """
    lost = np.isnan(found) & ~np.isnan(expected)
    same = np.isnan(found) & np.isnan(expected)
    rows = tuple(range(1, expected.ndim))
    largest = np.abs(np.nan_to_num(expected)).max(rows, keepdims=True)
    with np.errstate(invalid="ignore"):
        difference = np.where(lost | same, 0.0, np.abs(found - expected) / np.maximum(largest, 1e-300))
    return np.nan_to_num(difference, nan=np.inf, posinf=np.inf).max(rows), lost.any(rows)


def write_model(name: str, model: Model, case: Case, folder: Path, options: Mapping[str, Any], static: bool) -> Path:
    """The model as these options export it, for the sizes of the case if ``static``; made once."""
    words = [name, *(f"{key}-{value}" for key, value in options.items()), *([case.sizes] if static else [])]
    out = folder / "-".join(words)
    if not out.exists():
        example = tuple(x.nan_to_num() if x.is_floating_point() else x for x in case.inputs.values())
        module = copy.deepcopy(model.module)
        if isinstance(module, OwnModule) and options.get("format") == "pt2":  # which takes the calls as they are
            module.squarings = options.get("squarings", "auto")
        export(module, example, out, dynamic_shapes=None if static else model.axes, **options)
    return out / FORMATS[options.get("format", "onnx")].file


def write_plan(calls: Sequence[tuple[Case, Path]], folder: Path) -> Path:
    """The plan of a runner, with the files of its inputs; answers go next to it."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for case, model in calls:
        fields = [str(model), str(folder / f"{case.file}.answer")]
        for name, x in case.inputs.items():
            file = folder / f"{case.file}.{name}"
            x.contiguous().numpy().tofile(file)
            fields.append(f"{name}:{x.numpy().dtype}:{'x'.join(map(str, x.shape))}:{file}")
        lines.append("\t".join(fields))
    plan = folder / "plan.tsv"
    plan.write_text("\n".join(lines) + "\n")
    return plan
