"""The models that are measured: all formats, eager and compiled, and the softmax model of the same sizes."""

import copy
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from onnx_ir.convenience import replace_nodes_and_values
from torch import Tensor, nn

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
from osa_runtime.quantization import quantize
from osa_runtime.runtime.optimized_copies import VARIABLE
from speed.attention_contenders import TRAINED_NORM, spectral_norm
from speed.contest import Pace, Row, Variant, measure_row

EXAMPLE_TOKENS = 16


@dataclass(frozen=True)
class Subject:
    """One model; ``tokens`` is the length of its sequences.

    ``only_latency`` names contenders that do not take part in batches, to save minutes.
    """

    name: str
    config: ViTConfig | EncoderConfig
    tokens: int
    only_latency: tuple[str, ...] = ()

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

    @property
    def input_name(self) -> str:
        return "images" if isinstance(self.config, ViTConfig) else "tokens"

    def example(self) -> tuple[Tensor, dict[int, torch.export.Dim]]:
        """For the export: two rows of short sequences, which are captured and compared faster, and dynamic axes."""
        rows, batch = self.inputs(2), torch.export.Dim("batch", min=1)
        if isinstance(self.config, ViTConfig):
            return rows, {0: batch}
        return rows[:, :EXAMPLE_TOKENS], {0: batch, 1: torch.export.Dim("tokens", min=1, max=self.config.max_length)}


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
ENCODER = Subject("long encoder", encoder_config(4096, 6), 4096, only_latency=("TorchScript", "pt2"))
QUICK = (replace(DIGITS, config=ViTConfig(classes=10, depth=1)), Subject("long encoder", encoder_config(64, 1), 64))
ORT, TORCHSCRIPT, PT2, EAGER, COMPILED = "ONNX Runtime", "TorchScript", "pt2", "eager", "torch.compile"
SOFTMAX = "softmax, ONNX Runtime"
ALL = (ORT, TORCHSCRIPT, PT2, EAGER, COMPILED, SOFTMAX)
FORMATS = {ORT: "onnx", TORCHSCRIPT: "torchscript", PT2: "pt2"}
# Smaller models take part on request: their accuracy is a matter of the data, which `osa evaluate` measures.
ACTIVATIONS = {"8-bit weights": "none", "8 bits, dynamic": "dynamic", "8 bits, static": "static"}
SMALLER = ("fp16", *ACTIVATIONS)
CALIBRATION = 32
SOFTMAX_OPSETS = {"MatMul–Softmax–MatMul": 18, "Attention": 23}
FUSED, DOMAIN = "MultiHeadAttention", "com.microsoft"
BATCHES = (1, 8)
LOADS = 15

Array = NDArray[Any]
Run = Callable[[Array], Array]


@dataclass(frozen=True)
class Footprint:
    """``memory`` has the peak growth of a fresh process by batch; empty where it cannot be measured.

    ``cached_seconds`` is the time to load a copy that ONNX Runtime has optimised, None for what has no such copy.
    """

    bytes_on_disk: int
    load_seconds: float
    memory: tuple[int, ...]
    cached_seconds: float | None = None


@dataclass(frozen=True)
class ModelResult:
    """A row for each batch; ``missing`` has the reason why a contender has no figure."""

    subject: Subject
    rows: tuple[Row, ...]
    footprints: Mapping[str, Footprint]
    missing: Mapping[str, str]

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": self.subject.name,
            "config": self.subject.config.to_dict(),
            "tokens": self.subject.tokens,
            "batches": [_as_dict(row) for row in self.rows],
            "footprints": {name: asdict(found) for name, found in self.footprints.items()},
            "missing": dict(self.missing),
        }


class OpenedModel:
    """A model with all its contenders, exported into ``folder`` and opened."""

    def __init__(self, subject: Subject, threads: int, folder: Path, names: Sequence[str] = ALL) -> None:
        torch.set_num_threads(threads)
        self.subject, self._threads, self._folder = subject, threads, folder
        self._models = {EAGER: subject.build(), SOFTMAX: subject.build("softmax")}
        self.missing: dict[str, str] = {}
        self._paths: dict[str, dict[str, Path]] = {EAGER: {"": folder / "checkpoint"}}
        self._runs: dict[str, dict[str, Run]] = {}
        save_checkpoint(self._models[EAGER], folder / "checkpoint")
        for name in (name for name in FORMATS if name in names):
            self._add(name, "", partial(self._export, EAGER, FORMATS[name], format=FORMATS[name]))
        for name in (name for name in SMALLER if name in names and ORT in self._paths):
            self._add(name, "", partial(self._smaller, name))
        if SOFTMAX in names:
            for variant, opset in SOFTMAX_OPSETS.items():
                self._add(SOFTMAX, variant, partial(self._export, SOFTMAX, f"softmax-{opset}", opset=opset))
            if "Attention" in self._paths.get(SOFTMAX, {}):
                self._add(SOFTMAX, FUSED, self._fuse)
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

    def _export(self, model: str, folder: str, **options: Any) -> Path:
        (example, axes), name = self.subject.example(), self.subject.input_name
        arguments = {"input_names": [name], "dynamic_shapes": {name: axes}, **options}
        export(self._models[model], (example,), self._folder / folder, **arguments)
        return self._folder / folder

    def _smaller(self, name: str) -> Path:
        if name == "fp16":
            return self._export(EAGER, name, dtype=name)
        examples, out = self._folder / "calibration.npz", self._folder / ACTIVATIONS[name]
        np.savez(examples, **{self.subject.input_name: self.subject.inputs(CALIBRATION).numpy()})
        return quantize(self._paths[ORT][""], out, activations=ACTIVATIONS[name], calibration=examples).artifact.folder

    def _fuse(self) -> Path:
        model, file = ir.load(self._paths[SOFTMAX]["Attention"] / "model.onnx"), self._folder / "softmax-fused.onnx"
        ir.save(fuse_attention(model, self.subject.config.heads), file)
        return file

    def _session_run(self, path: Path) -> Run:
        session = load(path, threads=self._threads)
        (spec,) = session.inputs
        return lambda array: next(iter(session.run({spec.name: array.astype(spec.dtype, copy=False)}).values()))

    def meet(self, batch: int, pace: Pace) -> Row:
        """A contender whose answer is wrong is left out, with the reason in ``missing``."""
        print(f"{self.subject.name}: batch {batch}", flush=True)
        array = self.subject.inputs(batch).numpy()
        exact = cache(lambda name: _in_double(self._models[name], array))
        variants = {
            name: {variant: Variant(partial(run, array)) for variant, run in self._runs[name].items()}
            for name in (*ALL, *SMALLER)
            if name in self._runs and (batch == 1 or name not in self.subject.only_latency)
        }
        row = measure_row(batch, variants, lambda n: exact(n if n == SOFTMAX else EAGER), pace, self._threads, SMALLER)
        for name, error in row.wrong.items():
            self.missing[f"{name}, batch {batch}"] = f"a wrong answer: its relative error is {error:.1e}"
        return row

    def weigh(self, rows: Sequence[Row]) -> dict[str, Footprint]:
        """Load time, size and memory of those that have a time, at the batches of the rows."""
        inputs = [self.subject.inputs(row.place).numpy() for row in rows]
        found = {}
        for name, variants in self._paths.items():
            if any(name in row.contest for row in rows):
                print(f"{self.subject.name}: load time and memory, {name}", flush=True)
                path = variants[rows[0].variants.get(name, "")]
                size = sum(file.stat().st_size for file in ([path] if path.is_file() else path.iterdir()))
                arrays = [x.astype(np.float16) if name == "fp16" and x.dtype.kind == "f" else x for x in inputs]
                loaded, cached = self._load_seconds(name, path)
                found[name] = Footprint(size, loaded, self._memory(name, path, arrays), cached)
        return found

    def _load_seconds(self, name: str, path: Path) -> tuple[float, float | None]:
        """Of the model as it is, and of its copy in a cache of our own, after one load has filled that."""
        if name == EAGER:
            return timed_opening(partial(load_checkpoint, path), LOADS)[1], None
        start = partial(load, path, threads=self._threads)
        plain = timed_opening(partial(start, cache=False), LOADS)[1]
        if FORMATS.get(name, "onnx") != "onnx":
            return plain, None
        with patch.dict(os.environ, {VARIABLE: str(self._folder / "cache")}):
            start()
            return plain, timed_opening(start, LOADS)[1]

    def _memory(self, name: str, path: Path, arrays: Sequence[Array]) -> tuple[int, ...]:
        if not memory_can_be_measured():
            return ()
        job = {"contender": "eager" if name == EAGER else "artifact", "path": str(path), "device": "cpu"}
        job |= {"format": FORMATS.get(name, "onnx"), "threads": self._threads, "half": False}
        feeds = [{self.subject.input_name: array} for array in arrays]
        return measure_memory({**job, "order": [self.subject.input_name]}, feeds).run


def measure_model(subject: Subject, pace: Pace, threads: int, names: Sequence[str] = ALL) -> ModelResult:
    with tempfile.TemporaryDirectory() as folder:
        opened = OpenedModel(subject, threads, Path(folder), names)
        rows = tuple(opened.meet(batch, pace) for batch in BATCHES)
        return ModelResult(subject, rows, opened.weigh(rows), opened.missing)


def rate(row: Row, name: str) -> float:
    """Rows of inputs per second."""
    return 1e3 * row.place / row.contest.milliseconds(name).median


def _as_dict(row: Row) -> dict[str, Any]:
    rates = {name: rate(row, name) for name in row.contest.blocks}
    measured = row.contest.as_dict(error=row.errors, rows_per_second=rates)
    return {"batch": row.place, "softmax_variant": row.variants.get(SOFTMAX, ""), **measured}


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


def fuse_attention(model: ir.Model, heads: int) -> ir.Model:
    """Put ONNX Runtime's MultiHeadAttention in place of ONNX's Attention, which makes softmax models faster.

    It takes (batch, tokens, heads·width) and never holds the N × N scores. The exported graph turns the projection to
    (batch, heads, tokens, 3·width), slices it, and turns the result back; without the turns the slices read the
    projection as it is. Raises ValueError where the graph is another one.
    """
    attentions = [node for node in model.graph if node.op_type == "Attention"]
    if not attentions:
        raise ValueError("There is no Attention in the graph.")
    shape = ir.val("merged_heads.shape", const_value=ir.tensor(np.array([0, 0, -1])))  # 0: the axis as it is
    model.graph.register_initializer(shape)
    for attention in attentions:
        slices = [_only([value.producer()], "Slice") for value in attention.inputs]
        turn = _only([slices[0].inputs[0].producer()], "Transpose")
        back = _only(attention.outputs[0].consumers(), "Transpose")
        merged = _only(back.outputs[0].consumers(), "Reshape")
        for part in slices:
            part.replace_input_with(0, turn.inputs[0])
        reshapes = [ir.node("Reshape", [part.outputs[0], shape]) for part in slices]
        fused = ir.node(FUSED, [x.outputs[0] for x in reshapes], {"num_heads": heads}, domain=DOMAIN)
        gone = [merged, back, attention]
        replace_nodes_and_values(model.graph, attention, gone, [*reshapes, fused], merged.outputs, fused.outputs)
    model.opset_imports[DOMAIN] = 1
    return model


def _only(found: Sequence[ir.Node | None], operator: str) -> Any:
    kinds = [node.op_type for node in found if node]
    if kinds != [operator]:
        raise ValueError(f"Around an Attention there is {', '.join(kinds) or 'nothing'}, expected one {operator}.")
    return found[0]
