"""``osa analyze`` on checkpoints and artifacts: the same figures from both, one page, and messages for bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from osa_runtime import quantize
from osa_runtime.analysis.analysing import analyze
from osa_runtime.analysis.rebuilt import answers_alike, matrices_of, rebuilt
from osa_runtime.cli.main import app
from osa_runtime.errors import InputError
from osa_runtime.exporters import export_checkpoint
from osa_runtime.models import EncoderConfig, SkiplessEncoder, SkiplessViT, ViTConfig, save_checkpoint
from osa_runtime.runtime.device import DeviceSettings
from osa_runtime.verification.subject import Subject
from small_models import FORMATS, MODELS, feeds

FIGURES = ("depth", "heads", "matrices", "pictures")


def analyzed(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["analyze", *map(str, arguments)])
    return done.exit_code, " ".join(done.output.split())


@pytest.fixture
def images(tmp_path: Path) -> Path:
    np.savez(tmp_path / "images.npz", x=np.random.RandomState(0).rand(5, 8, 8), y=np.arange(5))
    return tmp_path / "images.npz"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", FORMATS)
def test_checkpoint_and_artifact_show_the_same(
    model: str, kind: str, exported: Callable[[str, str], Path], tmp_path: Path
) -> None:
    folder, data = exported(model, kind), tmp_path / "data.npz"
    np.savez(data, **feeds(model, batch=2), y=np.zeros(2, np.int64))
    eager, artifact = (analyze(path, data, rows=2) for path in (folder.parent / model, folder))
    assert (eager.kind, artifact.kind) == ("checkpoint", "artifact")
    for mine, theirs in zip(artifact.layers, eager.layers, strict=True):
        assert mine.name == theirs.name
        assert theirs.norms is not None
        # The artifact's is a lower bound by power iteration, within some ten percent.
        assert mine.norms == pytest.approx(theirs.norms, rel=0.15)
        assert mine.alphas == pytest.approx(theirs.alphas, rel=1e-5)
        assert mine.effective_rank == pytest.approx(theirs.effective_rank, rel=1e-4)
        assert max(*mine.defects, *theirs.defects) < 1e-5
        assert theirs.condition is not None
        assert mine.condition == pytest.approx(theirs.condition, rel=1e-4)
        assert mine.largest_singular_value == pytest.approx(theirs.largest_singular_value, rel=1e-5)
    torch.testing.assert_close(artifact.views[0].matrices, eager.views[0].matrices, atol=1e-5, rtol=0)


def test_a_layer_that_folds_and_one_in_half_precision(tmp_path: Path) -> None:
    """Of a layer that is one node the matrices are its inputs; those in half precision are read as they are."""
    torch.manual_seed(0)
    config = EncoderConfig(classes=2, features=3, max_length=64, dim=8, depth=1, heads=2, form="lowrank", alpha=0.1)
    save_checkpoint(SkiplessEncoder(config), tmp_path / "model")
    np.savez(tmp_path / "data.npz", tokens=np.random.RandomState(0).randn(1, 40, 3).astype(np.float32), y=[0])
    expected = analyze(tmp_path / "model", tmp_path / "data.npz").layers[0].condition
    for dtype, tolerance in (("fp32", 1e-4), ("fp16", 0.05)):
        export_checkpoint(tmp_path / "model", tmp_path / dtype, dtype=dtype)
        inputs = np.load(tmp_path / "data.npz")["tokens"].astype("float16" if dtype == "fp16" else "float32")
        np.savez(tmp_path / "cast.npz", tokens=inputs, y=[0])
        found = analyze(tmp_path / dtype, tmp_path / "cast.npz").layers[0]
        assert found.condition == pytest.approx(expected, rel=tolerance), found.without_jacobian
    quantize(tmp_path / "fp32", tmp_path / "w8")
    code, output = analyzed(tmp_path / "w8", "--data", tmp_path / "data.npz", "--out", tmp_path / "out")
    assert code == 0, output
    assert "No Jacobian of stack.blocks.0.attention: the artifact does not hold" in output
    assert "No Jacobian of stack.blocks.0.attention" in (tmp_path / "out" / "analysis.html").read_text()


def test_matrices_of_another_layer_are_noticed(exported: Callable[[str, str], Path]) -> None:
    """The layer is rebuilt by names, so its answer is compared with the artifact's."""
    folder = exported("vit", "onnx")
    session = Subject.open(folder, DeviceSettings())
    parts = session.model_parts()
    (name,) = parts.attentions
    given = {"images": feeds("vit")["images"]}
    matrices, core = matrices_of(session.session), parts.cores_of([name], given)[name]
    tokens, answer = (torch.tensor(run([name], given)[name][0]) for run in (parts.inputs_of, parts.outputs_of))
    layer, other = (rebuilt(name, m, core) for m in (matrices, {k: np.roll(m, 1, 0) for k, m in matrices.items()}))
    assert layer is not None
    assert other is not None
    assert answers_alike(layer, tokens, answer)
    assert not answers_alike(other, tokens, answer)
    assert rebuilt("another", matrices, core) is None


@pytest.mark.parametrize(
    "fields",
    [{}, {"attention": "softmax", "residual": True, "pool": "cls"}, {"attention": "polynomial", "norm": True}],
    ids=["osa", "softmax with a summary token", "polynomial"],
)  # fmt: skip
def test_the_files_of_an_analysis(fields: dict[str, object], images: Path, tmp_path: Path) -> None:
    save_checkpoint(SkiplessViT(ViTConfig(classes=5, dim=8, depth=2, heads=2, **fields)), tmp_path / "model")  # type: ignore[arg-type]
    code, output = analyzed(tmp_path / "model", "--data", images, "--samples", 2, "--out", tmp_path / "out")
    assert code == 0, output
    facts = json.loads((tmp_path / "out" / "analysis.json").read_text())
    assert [layer["name"] for layer in facts["layers"]] == ["stack.blocks.0.attention", "stack.blocks.1.attention"]
    assert all((tmp_path / "out" / f"{name}{suffix}").stat().st_size for name in FIGURES for suffix in (".svg", ".png"))
    page = (tmp_path / "out" / "analysis.html").read_text(encoding="utf-8")
    HTMLParser().feed(page)
    assert page.count("<figure>") == len(FIGURES)
    assert "<image" not in page  # the page's policy would not show it
    assert "nan" not in page.lower().replace("nano", "")


def test_padding_is_not_looked_at(tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_checkpoint(
        SkiplessEncoder(EncoderConfig(classes=2, features=3, max_length=9, dim=8, depth=2, heads=2)), tmp_path / "m"
    )
    tokens = np.random.RandomState(0).randn(1, 9, 3).astype(np.float32)
    np.savez(tmp_path / "padded.npz", tokens=tokens, mask=np.arange(9)[None] < 5, y=np.zeros(1, np.int64))
    np.savez(tmp_path / "short.npz", tokens=tokens[:, :5], y=np.zeros(1, np.int64))
    np.savez(tmp_path / "trained-on.npz", x=tokens, lengths=np.array([5]), y=np.zeros(1, np.int64))
    names = ("padded.npz", "trained-on.npz", "short.npz")
    padded, trained_on, short = (analyze(tmp_path / "m", tmp_path / name) for name in names)
    assert trained_on.layers == padded.layers
    for mine, theirs in zip(padded.layers, short.layers, strict=True):
        assert mine.norms == pytest.approx(theirs.norms, rel=1e-5)
        assert mine.condition == pytest.approx(theirs.condition, rel=1e-4)
        for fact in ("residual", "cosine", "effective_rank"):
            assert getattr(mine, fact) == pytest.approx(getattr(theirs, fact), rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        pytest.param(["absent", "--out", "o"], 3, "absent does not exist", id="no model"),
        pytest.param(["model", "--out", "o", "--samples", "0"], 2, "--samples 0: expected", id="no samples"),
        pytest.param(["model", "--out", "o", "--data", "mnits"], 3, "did you mean mnist", id="unknown data"),
        pytest.param(["model", "--out", "file"], 3, "Cannot write", id="no place"),
    ],
)
def test_bad_input_is_one_message(
    arguments: list[str], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    save_checkpoint(SkiplessViT(ViTConfig(classes=5, dim=8, depth=1, heads=2)), tmp_path / "model")
    found, output = analyzed(*arguments)
    assert (found, message in output) == (code, True), output
    assert "Traceback" not in output


@pytest.mark.slow
def test_an_artifact_without_orthogonal_attention_is_refused(tmp_path: Path) -> None:
    from small_models import export_named

    folder = export_named(tmp_path / "linear")
    with pytest.raises(InputError, match="no layer of orthogonal attention"):
        analyze(folder)
