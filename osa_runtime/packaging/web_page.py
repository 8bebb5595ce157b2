"""An image model as a web page that runs it on the reader's machine: a static folder, without a server or a build.

OUT/osa-package.json              what was packed; marks a folder that we wrote
OUT/index.html, style.css, *.js   the page
OUT/model.onnx, model.json        the model, with its attention matrices as outputs, and its description
OUT/runtime/                      ONNX Runtime Web
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime.artifact import Artifact
from osa_runtime.atomic import atomic_folder
from osa_runtime.downloads import check_hashes, data_folder, fetch_archive, read_archive
from osa_runtime.environment import require
from osa_runtime.errors import ArtifactError, DataError, InputError
from osa_runtime.interface import TensorSpec
from osa_runtime.packaging.packed_artifacts import describe, new_package, open_onnx
from osa_runtime.parity.tolerances import relative_tolerance

PAGE = Path(__file__).with_name("web")
MODEL, DESCRIPTION, RUNTIME = "model.onnx", "model.json", "runtime"
# ONNX Runtime Web, the files that a page loads to run a model: fetched by name and checked by hash.
VERSION = "1.30.0"
PACKAGE = f"onnxruntime-web@{VERSION}"
WASM = {
    "ort.wasm.min.mjs": "219e6a1fc8a9938268d18efca3c91d310bd2f4a59bbd13744df5b2b7fc6cee3b",
    "ort-wasm-simd-threaded.mjs": "e13f7f94fc51b4ca72b12faeb1ee95f4ace6dfbc8939bc718aabdc0a27c4299b",
    "ort-wasm-simd-threaded.wasm": "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
WEBGPU = {
    "ort.webgpu.min.mjs": "3dffff71811bc13a3a3d9591c57ca5ee5735b8f5f3eaf789510b02bb040ae3a0",
    "ort-wasm-simd-threaded.asyncify.mjs": "3d1c85995364bb643302fc6fd877a0c3ba5ae72401815e0f24828a53d9191e28",
    "ort-wasm-simd-threaded.asyncify.wasm": "39f9f0894d478800487ed9f7dbe92618498db320cf55c8e3d89adff8dce658da",
}
SHA256 = WASM | WEBGPU
LARGEST_FILE = 64 * 2**20

PER_CLASS = 3  # sample pictures, the first of each
INK = 0.1  # of the range; below it is paper
TYPICAL = 90  # percentile of the boxes around the ink
TOUCHES = 0.9


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
    chosen = (i for label in np.unique(samples.labels) for i in np.flatnonzero(samples.labels == label)[:PER_CLASS])
    return {
        "samples": [
            {"label": int(samples.labels[i]), "bytes": np.rint(shares[i] * 255).astype(int).ravel().tolist()}
            for i in chosen
        ],
        "placement": asdict(placement) if placement else None,
    }


@dataclass(frozen=True)
class DrawingPlacement:
    """The box that a drawing is scaled to, as a share of the picture.

    With ``stretch`` both sides are filled, as in scikit-learn's digits; otherwise the longer one, as in MNIST. With
    ``by_mass`` the ink's centre of mass is in the middle of the picture, as in MNIST; otherwise the box is.
    """

    width: float
    height: float
    stretch: bool
    by_mass: bool


def measure_placement(pictures: NDArray[Any]) -> DrawingPlacement | None:
    """The box around the ink in pictures (n, height, width) of 0…1; None if it is most of the picture, as in photos."""
    drawn = pictures[(pictures > INK).any((1, 2))]
    if not len(drawn):
        return None
    ink = drawn > INK
    (left, right), (top, bottom) = _ends(ink, 1), _ends(ink, 2)
    width, height = right - left, bottom - top
    box = float(np.percentile(width, TYPICAL)), float(np.percentile(height, TYPICAL))
    if min(box) > TOUCHES:
        return None
    fills = (width >= TOUCHES * box[0]) & (height >= TOUCHES * box[1])
    spread = float(np.std([(left + right) / 2, (top + bottom) / 2], axis=1).sum())
    spread_of_mass = float(np.std([_middle(drawn.sum(1)), _middle(drawn.sum(2))], axis=1).sum())
    return DrawingPlacement(*box, stretch=bool(np.median(fills)), by_mass=spread_of_mass < spread)


def _ends(ink: NDArray[np.bool_], axis: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The start of the first and the end of the last line along ``axis`` with ink, as shares of the side."""
    lines = np.any(ink, axis=axis)
    size = lines.shape[1]
    return lines.argmax(1) / size, 1 - lines[:, ::-1].argmax(1) / size


def _middle(mass: NDArray[Any]) -> NDArray[np.float64]:
    size = mass.shape[1]
    middle: NDArray[np.float64] = mass @ (np.arange(size) + 0.5) / mass.sum(1) / size
    return middle


def runtime_files(wanted: Sequence[str], source: Path | None = None) -> dict[str, bytes]:
    """The files called ``wanted`` from ``source``, or else from our own copy, which is fetched if it is missing."""
    if source is None:
        source = data_folder() / PACKAGE
        if not all((source / name).is_file() for name in wanted):
            _fetch_runtime(source)
    files = {name: _read_runtime_file(source / name) for name in wanted}
    check_hashes(PACKAGE, files, {name: SHA256[name] for name in wanted})
    return files


def _fetch_runtime(folder: Path) -> None:
    content = fetch_archive("npm", PACKAGE, "give the folder dist of that package with runtime_folder=FOLDER")
    files = read_archive(PACKAGE, content, SHA256.__contains__, LARGEST_FILE)
    check_hashes(PACKAGE, files, SHA256)
    with atomic_folder(folder, replace=True, marker=next(iter(SHA256))) as temporary:
        for name, found in files.items():
            (temporary / name).write_bytes(found)


def _read_runtime_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"Cannot read {path}: {error.strerror or error}; expected a file of the folder dist of {PACKAGE}."
        ) from error
