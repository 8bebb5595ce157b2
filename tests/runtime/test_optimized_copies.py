"""The cache of optimised models: the same answers, less work, and no model that fails to load because of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from osa_runtime import EncoderConfig, SkiplessEncoder, load
from osa_runtime.artifact import sha256
from osa_runtime.exporters import export
from osa_runtime.runtime import optimized_copies
from osa_runtime.runtime.onnx_session import OnnxSession
from small_models import feeds

Exported = Callable[[str, str], Path]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(optimized_copies.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The copies that sessions were started from; empty for the model itself."""
    found: list[str] = []
    create = OnnxSession._create

    def recorded(self: OnnxSession, *arguments: object) -> object:
        found.append(Path(str(arguments[3])).name if len(arguments) > 3 else "")
        return create(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(OnnxSession, "_create", recorded)
    return found


def copies(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.ort"))


def answers(folder: Path, model: str = "vit", **options: object) -> dict[str, np.ndarray]:
    with load(folder, **options) as session:  # type: ignore[arg-type]
        return session.run(feeds(model))


@pytest.mark.parametrize("model", ["vit", "encoder"])
def test_a_second_load_takes_the_copy_and_answers_alike(
    exported: Exported, cache: Path, opened: list[str], model: str
) -> None:
    folder = exported(model, "onnx")
    opened.clear()
    plain = answers(folder, model, cache=False)
    assert not cache.exists()
    first, second = answers(folder, model), answers(folder, model)
    assert [path.name for path in copies(cache)] == [opened[-1]]
    assert opened == ["", "", opened[-1]]
    for found in (first, second):
        np.testing.assert_array_equal(found["logits"], plain["logits"])


@pytest.mark.slow
def test_branches_and_loops_survive(cache: Path, tmp_path: Path, opened: list[str]) -> None:
    """Both forms, both precisions and the folded layer, with their counts of squarings."""
    torch.manual_seed(0)
    config = EncoderConfig(classes=3, features=8, max_length=256, dim=16, depth=1, heads=2, alpha=0.05)
    model = SkiplessEncoder(config).eval()
    batch, tokens = torch.export.Dim("batch", min=1), torch.export.Dim("tokens", min=1, max=256)
    axes = {"tokens": {0: batch, 1: tokens}, "mask": {0: batch, 1: tokens}}
    rows = (torch.randn(2, 9, 8), torch.ones(2, 9, dtype=torch.bool))
    folder = export(model, rows, tmp_path / "a", dynamic_shapes=axes, output_names=["logits"], checked=False).folder
    with load(folder, count_squarings=True, cache=False) as plain:
        for _ in range(2):
            with load(folder, count_squarings=True) as cached:
                assert (cached.inputs, cached.outputs) == (plain.inputs, plain.outputs)
                for size, strength in ((5, 1.0), (40, 1.0), (256, 1.0), (256, 30.0), (40, 1e3)):
                    x = strength * np.random.default_rng(size).standard_normal((2, size, 8)).astype(np.float32)
                    given = {"tokens": x, "mask": np.arange(size) < np.array([[size], [size // 2 + 1]])}
                    np.testing.assert_array_equal(cached.run(given)["logits"], plain.run(given)["logits"])
                    assert cached.squarings is not None
                    assert plain.squarings is not None
                    assert cached.squarings.latest == plain.squarings.latest
    assert opened[-1].endswith(".ort")


def test_counting_squarings_has_a_copy_of_its_own(exported: Exported, cache: Path) -> None:
    folder = exported("vit", "onnx")
    for _ in range(2):
        answers(folder)
        with load(folder, count_squarings=True) as session:
            session.run(feeds("vit"))
            assert session.squarings is not None
            assert session.squarings.latest
    assert len(copies(cache)) == 2


def test_a_damaged_copy_is_made_again(exported: Exported, cache: Path) -> None:
    folder = exported("vit", "onnx")
    expected = answers(folder)
    path = copies(cache)[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    np.testing.assert_array_equal(answers(folder)["logits"], expected["logits"])
    assert [sha256(path) for path in copies(cache)] == [path.stem.rpartition("-")[2] for path in copies(cache)]


def test_a_copy_that_does_not_load_is_made_again(exported: Exported, cache: Path, opened: list[str]) -> None:
    folder = exported("vit", "onnx")
    opened.clear()
    expected = answers(folder)
    path = copies(cache)[0]
    path.write_bytes(b"no model")
    wrong = path.rename(path.with_name(f"{path.stem.partition('-')[0]}-{sha256(path)}.ort"))
    np.testing.assert_array_equal(answers(folder)["logits"], expected["logits"])
    assert opened == ["", wrong.name, ""]
    assert len(copies(cache)) == 1
    assert not wrong.exists()


@pytest.mark.parametrize("what", ["onnxruntime", "processor", "layout"])
def test_a_copy_of_another_installation_is_not_taken(
    exported: Exported, cache: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    folder = exported("vit", "onnx")
    opened.clear()
    answers(folder)
    if what == "onnxruntime":
        monkeypatch.setattr("onnxruntime.__version__", "1.0")
    elif what == "processor":
        monkeypatch.setattr(optimized_copies, "processor", lambda: "another")
    else:
        monkeypatch.setattr(optimized_copies, "LAYOUT", 0)
    answers(folder)
    assert opened == ["", ""]
    assert len(copies(cache)) == 2


@pytest.mark.parametrize("outside", [False, True], ids=["inside", "external data"])
def test_other_weights_are_another_model(exported: Exported, cache: Path, tmp_path: Path, outside: bool) -> None:
    """Under the same name, as a file alone and with its weights in a file of their own."""
    path = tmp_path / "model.onnx"
    found = []
    for factor in (1.0, 2.0, 1.0):
        model = onnx.load(exported("vit", "onnx") / "model.onnx")
        for tensor in model.graph.initializer:
            if "head" in tensor.name:
                tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * factor, tensor.name))
        for old in tmp_path.glob("model.onnx*"):
            old.unlink()
        onnx.save(model, path, save_as_external_data=outside, location="model.onnx.data", size_threshold=256)
        found.append(answers(path)["logits"])
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_allclose(found[1], 2 * found[0], rtol=1e-5)
    assert len(copies(cache)) == 2


def test_weights_that_changed_behind_an_unchecked_manifest(exported: Exported, cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    shutil.copytree(exported("vit", "onnx"), folder)
    answers(folder)
    model = onnx.load(folder / "model.onnx")
    model.producer_name = "another"
    onnx.save(model, folder / "model.onnx")
    answers(folder, check_hash=False)
    assert len(copies(cache)) == 2


@pytest.mark.parametrize("value", ["off", "OFF", "0"])
def test_it_can_be_switched_off(exported: Exported, cache: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(optimized_copies.VARIABLE, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    answers(exported("vit", "onnx"))
    assert not cache.exists()


def test_it_is_in_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(optimized_copies.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert optimized_copies.cache_folder() == tmp_path / "osa-runtime" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert optimized_copies.cache_folder() == tmp_path / ".cache" / "osa-runtime" / "models"


@pytest.mark.parametrize("what", ["a file", "writable by others", "no room", "profiled"])
def test_models_load_where_it_cannot_be_used(
    exported: Exported, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str
) -> None:
    options = {}
    if what == "a file":
        cache.write_text("")
    elif what == "writable by others":
        cache.mkdir()
        cache.chmod(0o777)
    elif what == "no room":
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0))
    else:
        options["profile"] = tmp_path / "trace"
    assert np.isfinite(answers(exported("vit", "onnx"), **options)["logits"]).all()
    assert cache.is_file() or not copies(cache)


def test_a_model_that_cannot_be_loaded_is_named(cache: Path, tmp_path: Path) -> None:
    from osa_runtime import ArtifactError

    (tmp_path / "model.onnx").write_bytes(b"\x08\x0a\x3a\x00")
    with pytest.raises(ArtifactError, match=r"model\.onnx"):
        load(tmp_path / "model.onnx")
    assert not list(cache.glob("*"))


def test_the_oldest_copies_make_room(exported: Exported, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(exported("vit", "onnx"))
    size = copies(cache)[0].stat().st_size
    old, abandoned = cache / "old-0.ort", cache / ".left.ort"
    for path in (old, abandoned):
        path.write_bytes(bytes(size))
        os.utime(path, (0, 0))
    monkeypatch.setattr(optimized_copies, "MOST_BYTES", 20 * size)
    answers(exported("encoder", "onnx"), "encoder")
    assert old.exists()
    assert not abandoned.exists()
    monkeypatch.setattr(optimized_copies, "MOST_BYTES", 1)
    with load(exported("vit", "onnx"), count_squarings=True):
        assert not copies(cache)


def test_weights_in_a_folder_count_by_their_own_hash(cache: Path, tmp_path: Path) -> None:
    """Their file may be called like the model's own."""
    model = onnx.helper.make_model(
        onnx.parser.parse_graph("g (float[3] x) => (float[3] y) { y = Add(x, w) }"),
        opset_imports=[onnx.helper.make_opsetid("", 18)],
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(3, np.float32), "w"))
    (tmp_path / "sub").mkdir()
    onnx.save_model(
        model, tmp_path / "model.onnx", save_as_external_data=True, location="sub/model.onnx", size_threshold=0
    )

    def key(weights: str) -> str:
        hashes = {"model.onnx": SimpleNamespace(sha256="m"), "sub/model.onnx": SimpleNamespace(sha256=weights)}
        artifact = SimpleNamespace(manifest=SimpleNamespace(files=hashes))
        source = SimpleNamespace(path=tmp_path / "model.onnx", artifact=artifact, hashed=True)
        found = optimized_copies._copies(onnxruntime, source, ())  # type: ignore[arg-type]
        assert found is not None
        return found.key

    assert key("1") != key("2")
    assert key("1") == key("1")
