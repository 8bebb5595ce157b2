"""The models that are measured: all formats, eager and compiled, and the softmax model of the same sizes."""

import copy
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from driver.contest import Contest, Figures, Variant
from driver.report import MIB
from numpy.typing import NDArray
from torch import Tensor, nn

from contenders.operators import TRAINED_NORM, spectral_norm
from osa_runtime import (
    EncoderConfig,
    OrthogonalSelfAttention,
    SkiplessEncoder,
    SkiplessViT,
    ViTConfig,
    load,
    save_checkpoint,
)
from osa_runtime.benchmarking.memory import measure_memory, memory_can_be_measured
from osa_runtime.benchmarking.timing import timed_opening
from osa_runtime.exporters import export
from osa_runtime.models import load_checkpoint
from osa_runtime.nn.softmax import SoftmaxSelfAttention
from osa_runtime.quantization import quantize
from osa_runtime.runtime.optimized_copies import VARIABLE

EXAMPLE_TOKENS = 16
INPUT = "x"


@dataclass(frozen=True)
class Subject:
    """One model; ``tokens`` is the length of its sequences."""

    name: str
    config: ViTConfig | EncoderConfig
    tokens: int
    batches: tuple[int, ...] = (1, 8)

    def __str__(self) -> str:
        config = self.config
        return f"{self.name} ({config.depth} × {config.dim}, {config.heads} heads, {self.tokens} tokens)"

    def build(self, attention: str = "osa") -> nn.Module:
        """The same model with another attention; orthogonal attention has ‖S‖₂ = 2 in every layer."""
        torch.manual_seed(0)
        config = replace(self.config, attention=attention)
        model = (SkiplessViT(config) if isinstance(config, ViTConfig) else SkiplessEncoder(config)).eval()
        strengthen(model, self.inputs(1))
        return model.requires_grad_(False)

    def inputs(self, batch: int) -> Tensor:
        generator = torch.Generator().manual_seed(batch)
        if isinstance(self.config, ViTConfig):
            return torch.randn(batch, self.config.channels, *self.config.image_size, generator=generator)
        assert self.config.vocabulary is not None
        return torch.randint(0, self.config.vocabulary, (batch, self.tokens), generator=generator)

    def example(self) -> tuple[Tensor, dict[int, torch.export.Dim]]:
        """For the export: two rows of short sequences, which are captured and compared faster, and dynamic axes."""
        axes = {0: torch.export.Dim("batch", min=1)}
        if isinstance(self.config, EncoderConfig):
            axes[1] = torch.export.Dim("tokens", min=1, max=self.tokens)
        return self.inputs(2)[:, :EXAMPLE_TOKENS], axes  # all channels of images


def strengthen(model: nn.Module, example: Tensor) -> None:
    """Set every α so that ‖S‖₂ is that of trained models; at the start of training it is far smaller, and faster."""

    def set_alpha(layer: OrthogonalSelfAttention, arguments: tuple[Tensor, ...]) -> None:
        q, k, _ = layer.project(arguments[0])
        layer.alpha.fill_(TRAINED_NORM / spectral_norm(q, k, layer.project.width**-0.5))

    layers = [module for module in model.modules() if isinstance(module, OrthogonalSelfAttention)]
    hooks = [layer.register_forward_pre_hook(set_alpha) for layer in layers]
    with torch.no_grad():
        model(example)
    for hook in hooks:
        hook.remove()


def encoder_config(tokens: int, depth: int) -> EncoderConfig:
    sizes = {"dim": 256, "depth": depth, "heads": 4, "mlp_ratio": 4.0}
    return EncoderConfig(classes=10, vocabulary=256, max_length=tokens, **sizes)


IMAGES = {"classes": 1000, "image_size": (224, 224), "channels": 3, "patch_size": 16, "pool": "cls"}
DIGITS = Subject("digits ViT", ViTConfig(classes=10), 16)
VIT_S = Subject("ViT-S", ViTConfig(**IMAGES, dim=384, depth=12, heads=6, mlp_ratio=4.0), 197)
ENCODER = Subject("long encoder", encoder_config(4096, 6), 4096, batches=(1,))
QUICK = (replace(DIGITS, config=ViTConfig(classes=10, depth=1)), Subject("long encoder", encoder_config(64, 1), 64))
ORT, TORCHSCRIPT, PT2, EAGER, COMPILED = "ONNX Runtime", "TorchScript", "pt2", "eager", "torch.compile"
SOFTMAX = "softmax, ONNX Runtime"
ALL = (ORT, TORCHSCRIPT, PT2, EAGER, COMPILED, SOFTMAX)
FORMATS = {ORT: "onnx", TORCHSCRIPT: "torchscript", PT2: "pt2"}
# Smaller models take part on request: their accuracy is a matter of the data, which `osa evaluate` measures.
ACTIVATIONS = {"8-bit weights": "none", "8 bits, dynamic": "dynamic", "8 bits, static": "static"}
SMALLER = ("fp16", *ACTIVATIONS)
CALIBRATION = 32
FUSED = "MultiHeadAttention"
SOFTMAX_VARIANTS = {"MatMul–Softmax–MatMul": {"opset": 18}, "Attention": {"opset": 23}, FUSED: {"checked": False}}
LOADS = 5
SKIPLESS = "skipless models with ‖S‖₂ = 2 in every layer; the softmax model differs in its attention alone."
MEMORY, DISK = "MiB by which a process of its own grows", "MiB on disk"
LOAD, CACHED = "Milliseconds to load", "Milliseconds to load from the cache"

Array = NDArray[Any]
Run = Callable[[Array], Array]


class Point(NamedTuple):
    model: str
    batch: int

    def __str__(self) -> str:
        return f"{self.model}, batch {self.batch}"


class OpenedModel:
    """A model with all its contenders, exported into ``folder`` and opened; ``missing`` has those that failed."""

    def __init__(self, subject: Subject, threads: int, folder: Path, names: Sequence[str] = ALL) -> None:
        self.subject, self._threads, self._folder = subject, threads, folder
        self._models = {EAGER: subject.build(), SOFTMAX: subject.build("softmax")}
        self.missing: dict[str, str] = {}
        self._paths: dict[str, dict[str, Path]] = {EAGER: {"": folder / "checkpoint"}}
        self._runs: dict[str, dict[str, Run]] = {}
        self._grown = cache(self._memory)
        save_checkpoint(self._models[EAGER], folder / "checkpoint")
        for name in (name for name in FORMATS if name in names):
            self._add(name, "", partial(self._export, self._models[EAGER], FORMATS[name], format=FORMATS[name]))
        for name in (name for name in SMALLER if name in names and ORT in self._paths):
            self._add(name, "", partial(self._smaller, name))
        for variant, options in SOFTMAX_VARIANTS.items() if SOFTMAX in names else ():
            model = fused(subject.build("softmax")) if variant == FUSED else self._models[SOFTMAX]
            self._add(SOFTMAX, variant, partial(self._export, model, f"softmax {variant}", **options))
        if EAGER in names:
            self._runs[EAGER] = {"": partial(_eager_run, self._models[EAGER])}
        if COMPILED in names:
            compiled = partial(_eager_run, torch.compile(self._models[EAGER]))
            if self._try(COMPILED, lambda: compiled(subject.inputs(1).numpy())) is not None:
                self._runs[COMPILED] = {"": compiled}

    def _add(self, name: str, variant: str, make: Callable[[], Path]) -> None:
        path = self._try(f"{name}, {variant}" if variant else name, make)
        if path is not None:
            self._paths.setdefault(name, {})[variant] = path
            self._runs.setdefault(name, {})[variant] = self._session_run(path)

    def _try(self, name: str, make: Callable[[], Any]) -> Any:
        print(f"{self.subject.name}: preparing {name}", flush=True)
        try:
            return make()
        except Exception as error:  # noqa: BLE001 - exporters and compilers fail in many ways; the report has the reason
            self.missing[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            return None

    def _export(self, model: nn.Module, folder: str, **options: Any) -> Path:
        example, axes = self.subject.example()
        arguments = {"input_names": [INPUT], "dynamic_shapes": {INPUT: axes}, **options}
        return export(model, (example,), self._folder / folder, **arguments).folder

    def _smaller(self, name: str) -> Path:
        if name == "fp16":
            return self._export(self._models[EAGER], name, dtype=name)
        examples, out = self._folder / "calibration.npz", self._folder / ACTIVATIONS[name]
        np.savez(examples, **{INPUT: self.subject.inputs(CALIBRATION).numpy()})
        return quantize(self._paths[ORT][""], out, activations=ACTIVATIONS[name], calibration=examples).artifact.folder

    def _session_run(self, path: Path) -> Run:
        session = load(path, threads=self._threads)
        (spec,) = session.inputs
        return lambda array: next(iter(session.run({spec.name: array.astype(spec.dtype, copy=False)}).values()))

    def contest(self, batch: int) -> Contest:
        array = self.subject.inputs(batch).numpy()
        exact = cache(lambda name: _in_double(self._models[name], array))
        return Contest(
            place=Point(self.subject.name, batch),
            contenders={
                name: {variant: Variant(partial(run, array)) for variant, run in self._runs[name].items()}
                for name in (*ALL, *SMALLER)
                if name in self._runs
            },
            threads=self._threads,
            exact=lambda name: exact(SOFTMAX if name == SOFTMAX else EAGER),
            coarse=SMALLER,
            weigh=partial(self._weigh, batch),
            missing=self.missing,
        )

    def _weigh(self, batch: int, name: str, variant: str) -> Figures:
        """Memory at this batch, and, once for all batches, load times and size; nothing of what has no files."""
        if name not in self._paths:
            return {}
        path, found = self._paths[name][variant], dict[str, float | None]()
        if memory_can_be_measured():
            found[MEMORY] = self._grown(name, path)[self.subject.batches.index(batch)] / MIB
        if batch == self.subject.batches[0]:
            found[DISK] = sum(file.stat().st_size for file in path.iterdir()) / MIB
            found |= self._load_milliseconds(name, path)
        return found

    def _load_milliseconds(self, name: str, path: Path) -> Figures:
        """Of the model as it is, and of its copy in a cache of our own, after one load has filled that."""
        if name == EAGER:
            return {LOAD: 1e3 * timed_opening(partial(load_checkpoint, path), LOADS)[1]}
        start = partial(load, path, threads=self._threads)
        plain = {LOAD: 1e3 * timed_opening(partial(start, cache=False), LOADS)[1]}
        if FORMATS.get(name, "onnx") != "onnx":
            return plain
        with patch.dict(os.environ, {VARIABLE: str(self._folder / "cache")}):
            start()
            return plain | {CACHED: 1e3 * timed_opening(start, LOADS)[1]}

    def _memory(self, name: str, path: Path) -> tuple[int, ...]:
        """The growth at each batch, in a process that runs one after the other."""
        job = {"contender": "eager" if name == EAGER else "artifact", "path": str(path), "device": "cpu"}
        job |= {"format": FORMATS.get(name, "onnx"), "threads": self._threads, "half": False, "order": [INPUT]}
        arrays = [self.subject.inputs(batch).numpy() for batch in self.subject.batches]
        half = name == "fp16" and arrays[0].dtype.kind == "f"
        return measure_memory(job, [{INPUT: array.astype(np.float16) if half else array} for array in arrays]).run


def _eager_run(model: Callable[[Tensor], Tensor], array: Array) -> Array:
    with torch.inference_mode():
        return model(torch.from_numpy(array)).numpy()


def _in_double(model: nn.Module, array: Array) -> Tensor:
    """Row by row, since softmax in float64 holds all scores of all heads."""
    tensor = torch.from_numpy(array)
    rows = tensor.double() if tensor.is_floating_point() else tensor
    exact = copy.deepcopy(model).double()
    with torch.inference_mode():
        return torch.cat([exact(row[None]) for row in rows])


class FusedSoftmax(SoftmaxSelfAttention):
    """Becomes ONNX Runtime's own MultiHeadAttention, which never holds the N × N scores; only for an export.

    It takes (batch, tokens, heads·width), so that its slices read the projection as it is, without a transposition.
    """

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        assert mask is None
        heads = nn.functional.linear(x, self.project.weight).unflatten(-1, (self.project.heads, -1))
        parts = [part.flatten(2) for part in heads.split(self.project.width, -1)]
        name, attributes = "com.microsoft::MultiHeadAttention", {"num_heads": self.project.heads}
        result = torch.onnx.ops.symbolic(name, parts, attributes, dtype=x.dtype, shape=parts[0].shape, version=1)
        return self.out(result)


def fused(model: nn.Module) -> nn.Module:
    for layer in model.modules():
        if isinstance(layer, SoftmaxSelfAttention):
            layer.__class__ = FusedSoftmax
    return model
