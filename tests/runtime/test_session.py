"""Sessions of every format: they agree with eager, refuse what is damaged, and never fall back silently."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import osa_runtime
from osa_runtime import ArtifactError, InputError, MissingDependencyError, RunError, Session, load
from osa_runtime.runtime import onnx_session
from osa_runtime.runtime.device import CPU
from small_models import FORMATS, MODELS, eager, feeds

Exported = Callable[[str, str], Path]
MODEL_FILE = {"onnx": "model.onnx", "torchscript": "model.pt", "pt2": "model.pt2"}


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "manifest.json"
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))


@pytest.fixture(params=FORMATS)
def format_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["onnx", "torchscript"])
def adapter(request: pytest.FixtureRequest) -> str:
    """A format for each adapter, where the two torch formats do not differ."""
    return str(request.param)


@pytest.mark.parametrize("model", MODELS)
def test_a_folder_agrees_with_eager(exported: Exported, model: str, format_name: str) -> None:
    folder = exported(model, format_name)
    with load(folder) as session:
        assert isinstance(session, Session)
        assert session.manifest is not None
        assert (session.inputs, session.outputs) == (session.manifest.inputs, session.manifest.outputs)
        assert (session.placement.device, session.placement.fell_back) == ("cpu", False)
        for batch, tokens in ((1, 1), (3, 5), (2, 64)):
            x = feeds(model, batch, tokens)
            y = session.run(x, check_finite=True)
            assert list(y) == ["logits"]
            np.testing.assert_allclose(y["logits"], eager(folder, model, x), rtol=1e-5, atol=1e-6)


def test_a_model_file_alone_runs_too(exported: Exported, format_name: str) -> None:
    folder = exported("encoder", format_name)
    with load(folder) as whole, load(folder / MODEL_FILE[format_name], threads=1) as alone:
        assert alone.artifact is alone.manifest is None
        assert [spec.name for spec in alone.inputs] == ["tokens", "mask"]
        x = feeds("encoder")
        (y,) = alone.run(x).values()
        np.testing.assert_allclose(y, whole.run(x)["logits"], rtol=1e-6, atol=1e-7)


def test_a_pt2_file_alone_knows_its_types_and_limits(exported: Exported) -> None:
    with load(exported("encoder", "pt2") / "model.pt2") as session:
        assert [spec.dtype for spec in (*session.inputs, *session.outputs)] == ["int64", "bool", "float32"]
        with pytest.raises(InputError, match="expected at most 64"):
            session.run(feeds("encoder", 2, 65))


def test_awkward_arrays_give_the_same(exported: Exported, adapter: str) -> None:
    with load(exported("vit", adapter)) as session:
        x = feeds("vit", 4)["images"]
        expected = session.run({"images": x[::-1].copy()})["logits"]
        read_only = x.copy()
        read_only.flags.writeable = False
        assert np.array_equal(session.run({"images": x[::-1]})["logits"], expected)
        assert np.array_equal(session.run({"images": read_only[::-1]})["logits"], expected)


def test_threads_share_a_session(exported: Exported, format_name: str) -> None:
    with load(exported("encoder", format_name), threads=1) as session:
        cases = [feeds("encoder", batch, 4 + batch) for batch in (1, 2, 3, 4)]
        expected = [session.run(x)["logits"] for x in cases]
        wrong: list[int] = []

        def work(i: int) -> None:
            results = [session.run(cases[i])["logits"] for _ in range(20)]
            wrong.extend(i for result in results if not np.array_equal(result, expected[i]))

        workers = [threading.Thread(target=work, args=(i,)) for i in range(len(cases))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert wrong == []


def test_a_closed_session_says_so(exported: Exported, adapter: str) -> None:
    session = load(exported("vit", adapter))
    session.close()
    session.close()
    with pytest.raises(RunError, match="is closed; load the model again"):
        session.run(feeds("vit"))


def test_what_fails_in_the_model_is_a_run_error(exported: Exported, adapter: str) -> None:
    x = feeds("encoder") | {"tokens": np.full((3, 5), 50)}
    with load(exported("encoder", adapter)) as session, pytest.raises(RunError, match="out of"):
        session.run_checked(x)  # what ``run`` refuses before that


def test_ids_beyond_the_table_are_refused(exported: Exported, adapter: str) -> None:
    for wrong in (50, -1):
        x = feeds("encoder") | {"tokens": np.full((3, 5), wrong)}
        with load(exported("encoder", adapter)) as session, pytest.raises(InputError, match="the model takes 0 to 10"):
            session.run(x)


def test_values_that_are_not_finite(exported: Exported, adapter: str) -> None:
    nothing_real = feeds("encoder") | {"mask": np.zeros((3, 5), bool)}
    with load(exported("encoder", adapter)) as session:
        assert np.isnan(session.run(nothing_real)["logits"]).all()
        with pytest.raises(RunError, match="Output logits holds 9 NaN or Inf of 9 values"):
            session.run(nothing_real, check_finite=True)
    with load(exported("vit", adapter)) as session, pytest.raises(InputError, match="Input images holds 192 NaN"):
        session.run({"images": np.full((3, 1, 8, 8), np.nan, np.float32)}, check_finite=True)


def test_a_changed_model_is_refused_unless_told(exported: Exported, tmp_path: Path, format_name: str) -> None:
    folder = shutil.copytree(exported("vit", format_name), tmp_path / "a")
    change_manifest(folder, lambda m: m["files"][MODEL_FILE[format_name]].update(sha256="0" * 64))
    with pytest.raises(ArtifactError, match="is not the file that was exported"):
        load(folder)
    load(folder, check_hash=False).close()


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no hash": (lambda m: m.update(files={}), "has no hash of model.onnx"),
    "files": (lambda m: m.update(files=[1]), "files is .*, expected an object"),
    "axes": (lambda m: m.update(axes={"batch": {"max": "many"}}), "axes.batch.max is 'many', expected int"),
    "format": (lambda m: m.update(format=["onnx"]), "format is .*, expected str"),
    "versions": (lambda m: m.update(versions=3), "versions is '3', expected an object"),
    "type": (lambda m: m["inputs"][0].update(dtype="float31"), "the type 'float31', expected float32"),
    "shape": (lambda m: m["inputs"][0].update(shape=["batch", -1, 8, 8]), "a size or count is -1, expected 0 or more"),
    "no outputs": (lambda m: m.update(outputs=[]), "at least one and each once"),
    "renamed": (lambda m: m["outputs"][0].update(name="scores"), "but the model next to it has logits"),
    "another rank": (lambda m: m["inputs"][0].update(shape=["batch", 64]), "but the model next to it has images"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_manifest_that_is_not_the_models(exported: Exported, tmp_path: Path, case: str) -> None:
    folder = shutil.copytree(exported("vit", "onnx"), tmp_path / "a")
    change, message = DAMAGE[case]
    change_manifest(folder, change)
    with pytest.raises(ArtifactError, match=message):
        load(folder)


@pytest.mark.parametrize("kind", ["torchscript", "pt2"])
def test_a_manifest_with_another_number_of_inputs(exported: Exported, tmp_path: Path, kind: str) -> None:
    folder = shutil.copytree(exported("vit", kind), tmp_path / "a")
    change_manifest(folder, lambda m: m["inputs"].append({"name": "mask", "dtype": "bool", "shape": ["batch"]}))
    with pytest.raises(ArtifactError, match="declares 2 inputs and 1 outputs, but the model next to it has 1 and 1"):
        load(folder)


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="does not exist; expected a folder that `osa export` wrote"):
        load(tmp_path / "nothing")
    with pytest.raises(ArtifactError, match="is an empty folder; expected a folder that `osa export` wrote"):
        load(tmp_path)
    (tmp_path / "model.bin").touch()
    with pytest.raises(ArtifactError, match=r"an empty file; .* a model file \(\.onnx, \.pt, \.pt2\)"):
        load(tmp_path / "model.bin")


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x08" * 50], ids=["empty", "text", "bytes"])
def test_a_file_that_cannot_be_read(tmp_path: Path, format_name: str, content: bytes) -> None:
    path = tmp_path / MODEL_FILE[format_name]
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"cannot (load|be read)|is an empty file"):
        load(path)


def test_one_wrong_argument_after_the_other(exported: Exported) -> None:
    for device in ("gpu", "cuda:", "cuda:-1", "CPU", "cpu:0", 0):
        with pytest.raises(InputError, match="Unknown device"):
            load(exported("vit", "onnx"), device=device)  # type: ignore[arg-type]
    for threads in (0, -1, 1.5, True, 10**6):
        with pytest.raises(InputError, match="threads is"):
            load(exported("vit", "onnx"), threads=threads)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("module", "kind", "remedy"),
    [("onnxruntime", "onnx", "Reinstall it"), ("torch", "pt2", r"osa-runtime\[export\].* --format onnx")],
)
def test_a_missing_package_is_named(
    exported: Exported, monkeypatch: pytest.MonkeyPatch, module: str, kind: str, remedy: str
) -> None:
    folder = exported("vit", kind)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError, match=remedy):
        load(folder)


def test_binding_gives_what_running_gives(exported: Exported) -> None:
    """The way of a CUDA session, with the CPU as its device."""
    session = load(exported("encoder", "onnx"))
    assert isinstance(session, onnx_session.OnnxSession)
    x = feeds("encoder")
    (bound,) = session._run_bound(session._session, ["logits"], x, CPU)
    assert np.array_equal(bound, session.run(x)["logits"])
    nodes = onnx_session.cpu_nodes(session._session)
    assert nodes is None or any(node.endswith("(MatMul)") for node in nodes)
    assert onnx_session.cpu_nodes(object()) is None


def test_the_facade_offers_it() -> None:
    assert osa_runtime.load is load


def test_an_input_without_axes_stays_one(tmp_path: Path) -> None:
    from onnx import TensorProto, helper, save

    numbers = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [2]), ("by", []))
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    graph = helper.make_graph([helper.make_node("Mul", ["x", "by"], ["y"])], "scaled", numbers, [result])
    save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "model.onnx")
    with load(tmp_path / "model.onnx") as session:
        outputs = session.run({"x": np.array([1, 2], np.float32), "by": np.array(3, np.float32)})
    assert outputs["y"].tolist() == [3, 6]
