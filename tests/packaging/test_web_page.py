"""``package_web``: a folder that a static server can serve, whose model answers as the artifact does."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import re
import stat
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from made_once import export_checkpoint
from osa_runtime import load
from osa_runtime.analysis.measures import layers_of, matrices, recorded_inputs
from osa_runtime.artifact import Artifact
from osa_runtime.errors import ArtifactError, DataError, InputError, RunError, StorageError
from osa_runtime.interface import TensorSpec
from osa_runtime.models import SkiplessViT, ViTConfig, save_checkpoint
from osa_runtime.packaging import web_page
from osa_runtime.packaging.web_page import (
    PAGE,
    DrawingPlacement,
    PageSamples,
    image_input,
    measure_placement,
    package_web,
)
from osa_runtime.pixels import Standardisation
from osa_runtime.quantization import quantize

Exported = Callable[[str, str], Path]
Images = Callable[[str], Path]

GREY = Standardisation((4.0,), (6.0,), (0.0, 16.0))
COLOUR = Standardisation((100.0, 120.0, 130.0), (60.0, 61.0, 62.0), (0.0, 255.0))
RUNTIME = {name: name.encode() for name in web_page.SHA256}  # stands for the real files, which are large


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of a runtime that has these digests."""
    folder = tmp_path / "dist"
    folder.mkdir()
    for name, content in RUNTIME.items():
        (folder / name).write_bytes(content)
        monkeypatch.setitem(web_page.SHA256, name, hashlib.sha256(content).hexdigest())
    return folder


def vit(**fields: Any) -> SkiplessViT:
    torch.manual_seed(0)
    small = {"classes": 3, "dim": 16, "depth": 2, "heads": 2, "alpha": 0.3, "form": "dense"}
    return SkiplessViT(ViTConfig(**small | fields)).eval()


MADE: dict[str, tuple[SkiplessViT, Standardisation, dict[str, Any]]] = {
    "grey": (vit(), GREY, {}),
    "webgpu": (vit(), GREY, {"target": "webgpu"}),
    "inlined loops": (vit(), GREY, {"functions": "inline"}),
    "one node per layer": (vit(image_size=(12, 12), patch_size=1, form="lowrank"), GREY, {}),
    "colour bytes": (vit(channels=3), COLOUR, {"pixels": "uint8"}),
    "softmax": (vit(attention="softmax"), GREY, {}),
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    """``images("grey")`` is the folder of that model."""
    home = tmp_path_factory.mktemp("images")

    def folder(name: str) -> Path:
        out = home / name.replace(" ", "-")
        if not out.exists() and name == "8 bits":
            quantize(folder("webgpu"), out)
        elif not out.exists():
            model, pixels, options = MADE[name]
            checkpoint = home / f"{out.name}-checkpoint"
            save_checkpoint(model, checkpoint, standardisation=pixels, class_names=("ant", "bee", "cat"))
            export_checkpoint(checkpoint, out, **options)
        return out

    return folder


def answers(page: Path, feeds: dict[str, Any]) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(page / "model.onnx", providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def description(page: Path) -> Any:
    return json.loads((page / "model.json").read_text(encoding="utf-8"))


def picture(artifact: Path) -> dict[str, Any]:
    spec = Artifact.open(artifact).manifest.inputs[0]
    values = np.random.default_rng(0).uniform(0, 200 if spec.dtype == "uint8" else 1, (1, *spec.shape[1:]))
    return {spec.name: values.astype(spec.dtype)}


MODELS = ("grey", "webgpu", "inlined loops", "one node per layer", "colour bytes")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_model_of_the_page_returns_the_artifact_s_answers_and_eager_s_matrices(
    images: Images, tmp_path: Path, runtime: Path, name: str
) -> None:
    artifact = images(name)
    package_web(artifact, tmp_path / "page", runtime_folder=runtime)
    feeds = picture(artifact)
    found = answers(tmp_path / "page", feeds)
    with load(artifact) as session:
        np.testing.assert_allclose(found["logits"], session.run(feeds)["logits"], rtol=1e-5, atol=1e-5)
    model, pixels, _ = MADE[name]
    (values,) = feeds.values()
    with recorded_inputs(model) as tokens, torch.no_grad():
        model(torch.from_numpy(values if values.dtype == np.float32 else channels_first(pixels, values)))
        expected = {layer: matrices(module, *tokens[layer]) for layer, module in layers_of(model).items()}
    layers = description(tmp_path / "page")["attentions"]
    assert [layer["layer"] for layer in layers] == list(expected)
    for layer in layers:
        np.testing.assert_allclose(found[layer["output"]], expected[layer["layer"]], atol=1e-5)


def channels_first(pixels: Standardisation, values: Any) -> Any:
    return pixels.standardise(values.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


@pytest.mark.slow
def test_the_matrices_of_8_bit_weights_are_orthogonal(images: Images, tmp_path: Path, runtime: Path) -> None:
    package_web(images("8 bits"), tmp_path / "page", runtime_folder=runtime)
    found = answers(tmp_path / "page", picture(images("8 bits")))
    for layer in description(tmp_path / "page")["attentions"]:
        a = found[layer["output"]]
        np.testing.assert_allclose(a.mT @ a, np.broadcast_to(np.eye(16), a.shape), atol=1e-5)


@pytest.mark.slow
def test_other_attentions_have_no_matrices(images: Images, tmp_path: Path, runtime: Path) -> None:
    assert package_web(images("softmax"), tmp_path / "page", runtime_folder=runtime).layers == 0
    assert list(answers(tmp_path / "page", picture(images("softmax")))) == ["logits"]


@pytest.mark.slow
def test_the_folder_is_complete_and_needs_nobody(images: Images, tmp_path: Path, runtime: Path) -> None:
    page = tmp_path / "page"
    packed = package_web(images("webgpu"), page, title="Ants & bees", runtime_folder=runtime)
    assert packed.objections == ()
    files = {path.relative_to(page).as_posix(): path for path in page.rglob("*") if path.is_file()}
    assert packed.size == sum(path.stat().st_size for path in files.values())
    assert {name: files[f"runtime/{name}"].read_bytes() for name in RUNTIME} == RUNTIME
    for name in ("index.html", "style.css", "main.js", "drawing.js", "matrices.js", "runtime.js"):
        text = files[name].read_text()
        assert text == (PAGE / name).read_text()
        assert not re.search("https?:", text)
        for other in re.findall(r'(?:from |src=|href=)"(?:\./)?([\w./]+)"', text):
            assert other in files
    told = description(page)
    assert (told["title"], told["webgpu"], told["class_names"]) == ("Ants & bees", True, ["ant", "bee", "cat"])
    assert told["input"] == {"name": "images", "dtype": "float32", "shape": ["batch", 1, 8, 8]}
    assert told["preprocessing"] == GREY.as_dict()


@pytest.mark.slow
def test_a_model_for_wasm_alone_brings_no_files_for_webgpu(images: Images, tmp_path: Path, runtime: Path) -> None:
    packed = package_web(images("grey"), tmp_path / "page", runtime_folder=runtime)
    assert "Loop" in " ".join(packed.objections)
    assert {path.name for path in (tmp_path / "page" / "runtime").iterdir()} == set(web_page.WASM)
    assert description(tmp_path / "page")["webgpu"] is False


@pytest.mark.slow
def test_samples_are_stored_by_class_as_bytes(images: Images, tmp_path: Path, runtime: Path) -> None:
    pictures = np.zeros((9, 8, 8, 1))
    pictures[:, 2:6, 3:5] = 16.0
    labels = np.array([2, 2, 2, 2, 0, 1, 0, 1, 2])
    package_web(images("webgpu"), tmp_path / "page", samples=PageSamples(pictures, labels), runtime_folder=runtime)
    told = description(tmp_path / "page")
    assert [sample["label"] for sample in told["samples"]] == [0, 0, 1, 1, 2, 2, 2]
    assert told["samples"][0]["bytes"] == (pictures[0] / 16 * 255).astype(int).ravel().tolist()
    assert told["placement"] == {"width": 0.25, "height": 0.5, "stretch": True, "by_mass": False}


def strokes(wide: int, high: int, left: int, top: int) -> Any:
    picture = np.zeros((20, 20))
    picture[top : top + high, left : left + wide] = 1.0
    return picture


def test_drawings_are_placed_where_the_samples_are() -> None:
    boxes = np.stack([strokes(10, 14, 5, 3)] * 9)
    assert measure_placement(boxes) == DrawingPlacement(0.5, 0.7, stretch=True, by_mass=False)
    longer_sides = np.stack([strokes(*size, 3, 3) for size in ((14, 5), (6, 14), (14, 9), (10, 14), (14, 14))])
    assert measure_placement(longer_sides) == DrawingPlacement(0.7, 0.7, stretch=False, by_mass=False)
    heavy = np.stack([strokes(4, 4, 8, 8)] * 3)  # each has its mass in the middle
    heavy[0, 8, 2:8] = heavy[1, 8:12, 12] = heavy[2, 2:8, 8] = 0.2  # and a light tail elsewhere
    assert getattr(measure_placement(heavy), "by_mass", None) is True
    assert measure_placement(np.ones((3, 20, 20))) is None
    assert measure_placement(np.zeros((3, 20, 20))) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("encoder", "takes tokens: int64.*, mask: bool.*a page is for models of one picture"),
        ("torchscript", "osa export --format onnx"),
        ("vit", "does not say what its pixels are"),
        ("fp16", "takes float16, expected float32 or uint8.*quantize"),
    ],
)
def test_models_without_a_page_are_refused(
    artifacts: Images, exported: Exported, tmp_path: Path, runtime: Path, name: str, message: str
) -> None:
    artifact = exported("vit", "torchscript") if name == "torchscript" else artifacts(name)
    with pytest.raises(ArtifactError, match=message):
        package_web(artifact, tmp_path / "page", runtime_folder=runtime)
    assert not (tmp_path / "page").exists()


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 1, 8, 8), ("batch", 2, 8, 8), ("batch", 1, "height", 8)], ids=str)
def test_other_shapes_are_refused(images: Images, shape: tuple[int | str, ...]) -> None:
    artifact = Artifact.open(images("webgpu"))
    manifest = dataclasses.replace(artifact.manifest, inputs=(TensorSpec("images", "float32", shape),))
    with pytest.raises(ArtifactError, match=r"takes images: float32\[.*\], expected one picture of 1 or 3 channels"):
        image_input(dataclasses.replace(artifact, manifest=manifest))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pictures", "message"),
    [
        (np.zeros((2, 9, 8, 1)), r"must be pictures \(8, 8, 1\), as the model takes; got \(9, 8, 1\)"),
        (np.full((2, 8, 8, 1), 255.0), "must have pixels of 0 to 16, as the model was trained on; got 255 to 255"),
    ],
    ids=["size", "range"],
)
def test_samples_of_another_kind_are_refused(
    images: Images, tmp_path: Path, runtime: Path, pictures: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        package_web(
            images("webgpu"), tmp_path / "page", samples=PageSamples(pictures, np.zeros(2, int)), runtime_folder=runtime
        )


@pytest.mark.slow
def test_matrices_that_are_not_the_layer_s_are_found(
    images: Images, tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = np.eye
    monkeypatch.setattr(np, "eye", lambda size, dtype: 1.001 * identity(size, dtype=dtype))
    with pytest.raises(RunError, match=r"returns another stack\.blocks\.0\.attention\.matrices"):
        package_web(images("webgpu"), tmp_path / "page", runtime_folder=runtime)
    assert not (tmp_path / "page").exists()


@pytest.mark.slow
def test_only_an_earlier_page_is_replaced_and_only_by_a_whole_one(
    images: Images, tmp_path: Path, runtime: Path
) -> None:
    page, artifact = tmp_path / "page", images("webgpu")
    package_web(artifact, page, runtime_folder=runtime)
    with pytest.raises(StorageError, match="exists already"):
        package_web(artifact, page, runtime_folder=runtime)
    before = (page / "model.json").read_bytes()
    with pytest.raises(DataError, match=r"Cannot read .*ort\.wasm\.min\.mjs"):
        package_web(artifact, page, title="new", runtime_folder=tmp_path, replace=True)
    assert (page / "model.json").read_bytes() == before
    package_web(artifact, page, title="new", runtime_folder=runtime, replace=True)
    assert description(page)["title"] == "new"
    (page / "osa-package.json").unlink()
    with pytest.raises(StorageError, match="will not be replaced"):
        package_web(artifact, page, runtime_folder=runtime, replace=True)
    with pytest.raises(StorageError, match="its source"):
        package_web(artifact, artifact / "page", runtime_folder=runtime)


def test_a_changed_runtime_file_is_refused(runtime: Path) -> None:
    name = next(iter(web_page.WASM))
    (runtime / name).write_bytes(b"other")
    with pytest.raises(DataError, match=f"{name} of onnxruntime-web@.* has the sha256"):
        web_page.runtime_files([name], runtime)


def test_the_runtime_is_fetched_once_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs, package = tmp_path / "programs", tmp_path / "web.tgz"
    programs.mkdir()
    with tarfile.open(package, "w:gz") as archive:
        for name, content in RUNTIME.items():
            member = tarfile.TarInfo(f"package/dist/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    npm = programs / "npm"
    npm.write_text(
        f"#!{sys.executable}\nimport sys, shutil\nassert sys.argv[1:3] == ['pack', {web_page.PACKAGE!r}]\n"
        f"shutil.copy({str(package)!r}, 'web.tgz')\n"
    )
    npm.chmod(npm.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("OSA_DATA", str(tmp_path / "data"))
    assert web_page.runtime_files(list(web_page.WASM)) == {name: RUNTIME[name] for name in web_page.WASM}
    npm.unlink()
    assert web_page.runtime_files(list(RUNTIME)) == RUNTIME
    monkeypatch.setenv("OSA_DATA", str(tmp_path / "empty"))
    with pytest.raises(DataError, match=r"needs the program npm.*runtime_folder="):
        web_page.runtime_files(list(RUNTIME))
