"""An image model as a web page that runs it on the reader's machine: a static folder, without a server or a build.

OUT/osa-package.json              what was packed; marks a folder that we wrote
OUT/index.html, style.css, *.js   the page
OUT/model.onnx, model.json        the model, with its attention matrices as outputs, and its description
OUT/runtime/                      ONNX Runtime Web
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.artifact import Artifact
from osa_runtime.environment import require
from osa_runtime.errors import ArtifactError, InputError
from osa_runtime.interface import TensorSpec
from osa_runtime.packaging.packed_artifacts import describe, new_package, open_onnx
from osa_runtime.packaging.web_runtime import VERSION, WASM, WEBGPU, runtime_files
from osa_runtime.packaging.web_samples import choose_samples, measure_placement
from osa_runtime.parity.tolerances import relative_tolerance

PAGE = Path(__file__).with_name("web")
MODEL, DESCRIPTION, RUNTIME = "model.onnx", "model.json", "runtime"


@dataclass(frozen=True)
class PackedPage:
    """``objections`` are the reasons for which the page uses WASM alone."""

    title: str
    layers: int
    objections: tuple[str, ...]
    size: int


@dataclass(frozen=True)
class PageSamples:
    """Pictures (n, height, width, channels) in the units that the model was trained on, and their classes."""

    pictures: NDArray[Any]
    labels: NDArray[np.int64]


def package_web(
    artifact: Path,
    out: Path,
    *,
    title: str | None = None,
    samples: PageSamples | None = None,
    runtime_folder: Path | None = None,
    replace: bool = False,
) -> PackedPage:
    """Write the page in one step. ``runtime_folder`` has the files of ONNX Runtime Web, which are fetched otherwise."""
    require("Packing a page", "onnx", "onnxruntime", extra="export")
    from osa_runtime.packaging.web_graph import web_graph

    with new_package([artifact], out, "page", "a browser", replace=replace) as (temporary, _):
        opened = open_onnx(artifact)
        image = image_input(opened)
        title = title or opened.folder.resolve().name
        shown = _shown_samples(opened, image, samples) if samples is not None else {}
        graph = web_graph(opened)
        files = runtime_files([*WASM, *([] if graph.objections else WEBGPU)], runtime_folder)
        description = {
            "title": title,
            **_model_description(opened, image),
            "attentions": [asdict(attention) for attention in graph.attentions],
            "webgpu": not graph.objections,
            **shown,
        }
        for file in PAGE.iterdir():
            shutil.copyfile(file, temporary / file.name)
        (temporary / MODEL).write_bytes(graph.model.SerializeToString())
        (temporary / RUNTIME).mkdir()
        for name, content in files.items():
            (temporary / RUNTIME / name).write_bytes(content)
        text = json.dumps(description, ensure_ascii=False, separators=(",", ":"))
        (temporary / DESCRIPTION).write_text(text + "\n", encoding="utf-8")
        describe(temporary, "web", model=title)
        size = sum(file.stat().st_size for file in temporary.rglob("*") if file.is_file())
    return PackedPage(title, len(graph.attentions), graph.objections, size)


def image_input(artifact: Artifact) -> TensorSpec:
    """The only input of a model that a page can show, or an error that says what is in the way."""
    manifest, where = artifact.manifest, artifact.folder
    if len(manifest.inputs) != 1 or len(manifest.inputs[0].shape) != 4:
        listed = ", ".join(map(str, manifest.inputs))
        raise ArtifactError(f"{where} takes {listed}; a page is for models of one picture: [batch, channels, h, w].")
    (spec,) = manifest.inputs
    if spec.dtype not in ("float32", "uint8"):
        raise ArtifactError(
            f"{where} takes {spec.dtype}, expected float32 or uint8: browsers compute in float32 anyway. "
            "Export it without dtype='fp16'; `osa quantize` makes files smaller."
        )
    batch, channels, *size = spec.shape
    if batch not in (1, manifest.interface.batch) or channels not in (1, 3) or not all(type(n) is int for n in size):
        raise ArtifactError(f"{where} takes {spec}, expected one picture of 1 or 3 channels and of fixed size.")
    if spec.name not in manifest.preprocessing:
        raise ArtifactError(
            f"{where} does not say what its pixels are; export it again with preprocessing={{{spec.name!r}: …}}, "
            "or from a checkpoint of `osa train`, which records it."
        )
    if manifest.outputs[0].dtype != "float32" or len(manifest.outputs[0].shape) != 2:
        raise ArtifactError(f"{where} returns {manifest.outputs[0]}, expected float32[batch, classes].")
    return spec


def _model_description(artifact: Artifact, image: TensorSpec) -> dict[str, Any]:
    manifest = artifact.manifest
    classes = manifest.outputs[0].shape[-1]
    names = manifest.class_names or tuple(map(str, range(classes if isinstance(classes, int) else 0)))
    return {
        "input": asdict(image),
        "output": manifest.outputs[0].name,
        "preprocessing": manifest.preprocessing[image.name],
        "class_names": names,
        "parameters": manifest.parameters,
        "largest_norm": manifest.osa.largest_norm if manifest.osa else None,
        "tolerance": relative_tolerance("onnx", "fp32", manifest.depth or 0),
        "runtime": VERSION,
    }


def _shown_samples(artifact: Artifact, image: TensorSpec, samples: PageSamples) -> dict[str, Any]:
    low, high = artifact.manifest.interface.pixels[image.name].pixels
    pictures, (_, channels, *size) = samples.pictures, image.shape
    if pictures.shape[1:] != (*size, channels):
        raise InputError(f"samples must be pictures {(*size, channels)}, as the model takes; got {pictures.shape[1:]}.")
    if pictures.min() < low or pictures.max() > high:
        raise InputError(
            f"samples must have pixels of {low:g} to {high:g}, as the model was trained on; "
            f"got {pictures.min():g} to {pictures.max():g}."
        )
    shares = (pictures - low) / (high - low)
    placement = measure_placement(shares.mean(-1))
    chosen = choose_samples(samples.labels)
    return {
        "samples": [
            {"label": int(samples.labels[i]), "bytes": np.rint(shares[i] * 255).astype(int).ravel().tolist()}
            for i in chosen
        ],
        "placement": asdict(placement) if placement else None,
    }
