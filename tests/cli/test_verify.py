"""``osa verify``: exit codes, messages, files, and never a traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from osa_runtime.cli.main import app
from osa_runtime.parity.certificate import read_certificate
from small_models import feeds

Exported = Callable[[str, str], Path]
runner = CliRunner()
FEW = ("--batch", "2")


def osa(*arguments: str | Path, code: int = 0) -> str:
    result = runner.invoke(app, ["verify", *map(str, arguments)], env={"COLUMNS": "200"})
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result.output


@pytest.fixture
def vit(exported: Exported) -> tuple[Path, Path]:
    folder = exported("vit", "onnx")
    return folder, folder.parent / "vit"


def changed(folder: Path, out: Path) -> Path:
    import onnx
    from sabotage import broken_onnx, change_weight, perturb

    def breaking(model: onnx.ModelProto) -> None:
        change_weight(model, "head.weight", perturb)

    return broken_onnx(folder, out, breaking)


def no_constants(text: str) -> Any:
    """JSON without NaN and Infinity, which Python's reader takes for numbers."""
    return json.loads(text, parse_constant=pytest.fail)


def test_a_good_artifact_passes_and_says_what_was_done(vit: tuple[Path, Path]) -> None:
    shown = osa(vit[0], "--against", vit[1], *FEW)
    for expected in (
        "PASS (structure and numbers)",
        ": graph, weights and settings",
        "random 2",
        "stack.blocks.0.attention",
        "further from float64",
        "parts fed alone",
    ):
        assert expected in shown


def test_without_a_checkpoint(vit: tuple[Path, Path]) -> None:
    shown = osa(vit[0], *FEW)
    assert "finite outputs in" in shown
    assert "CONSISTENT (no reference): nothing contradicts itself" in shown
    assert "PASS" not in shown
    assert "verified" not in shown.lower()
    assert no_constants(osa(vit[0], *FEW, "--json"))["verdict"] == "consistent"


def test_a_broken_artifact_fails_with_1_and_names_the_part(vit: tuple[Path, Path], tmp_path: Path) -> None:
    broken = changed(vit[0], tmp_path / "broken [1] ü")
    shown = osa(broken, "--against", vit[1], *FEW, "--bisect", tmp_path / "fault", code=1)
    assert "FAIL" in shown
    assert "first part that is wrong by itself: head" in shown
    assert (tmp_path / "fault" / "reproduce.py").is_file()


def test_json_is_a_certificate_on_stdout(vit: tuple[Path, Path], tmp_path: Path) -> None:
    for folder, code in ((vit[0], 0), (changed(vit[0], tmp_path / "broken"), 1)):
        content = no_constants(osa(folder, "--against", vit[1], *FEW, "--json", code=code))
        assert content["verdict"] == ("fail" if code else "pass")


def test_files_are_written_and_nothing_else(vit: tuple[Path, Path], tmp_path: Path) -> None:
    home = tmp_path / "Ergebnisse ü"
    artifact = shutil.copytree(vit[0], tmp_path / "vit")
    names = {"--report": "r.json", "--html": "r.html", "--save-inputs": "in.npz", "--save-outputs": "out.npz"}
    arguments = [part for flag, name in names.items() for part in (flag, home / name)]
    shown = osa(artifact, "--against", vit[1], *FEW, *arguments, "--certify")
    assert sorted(path.name for path in home.iterdir()) == sorted(names.values())
    assert all(name in shown for name in (*names.values(), "certificate.json"))
    assert "does not accept this certificate: batches was [2]" in shown
    assert read_certificate(home / "r.json") == read_certificate(artifact / "certificate.json")
    no_constants((home / "r.json").read_text())
    loaded = ("--load-inputs", home / "in.npz", "--load-outputs", home / "out.npz")
    assert "PASS" in osa(vit[0], *loaded)
    assert "certificate" not in str(list(vit[0].iterdir()))


@pytest.mark.parametrize(
    "flags",
    [
        ["--report", "file/r.json"],
        ["--html", "file/r.html"],
        ["--save-inputs", "file/i.npz"],
        ["--save-outputs", "file/o.npz"],
        ["--bisect", "file/fault"],
        ["--html", "x" * 300 + ".html"],
    ],
    ids=lambda flags: f"{flags[0]} {flags[1][:12]}",
)
def test_what_cannot_be_written_is_known_before_the_work(
    flags: list[str], vit: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    monkeypatch.setattr("osa_runtime.verification.verify", lambda *_: pytest.fail("it was verified"))
    assert f"Cannot write {flags[1][:20]}" in osa(vit[0], "--against", vit[1], *flags, code=3)


def test_a_certificate_that_cannot_be_written_is_known_before_the_work(
    vit: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = shutil.copytree(vit[0], tmp_path / "vit")
    (artifact / "certificate.json").mkdir()
    monkeypatch.setattr("osa_runtime.verification.verify", lambda *_: pytest.fail("it was verified"))
    assert "is a folder" in osa(artifact, "--against", vit[1], "--certify", code=2)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    path = tmp_path / "key.pem"
    path.write_bytes(Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return path


def test_a_signed_certificate_is_one_that_a_server_takes(vit: tuple[Path, Path], key: Path, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    from osa_runtime.artifact import Artifact
    from osa_runtime.parity.signing import read_private_key
    from osa_runtime.serving.engine.model_folders import check_certificate

    public = read_private_key(key).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "key.pub").write_bytes(public)
    artifact = shutil.copytree(vit[0], tmp_path / "vit")
    page = artifact / "report.html"
    shown = osa(artifact, "--against", vit[1], "--certify", "--sign", key, "--html", page)
    signature = read_certificate(artifact / "certificate.json").signature
    assert signature is not None
    assert f"signed by the key {signature.key}" in shown
    assert signature.key in page.read_text()
    check_certificate(Artifact.open(artifact), [tmp_path / "key.pub"])


def test_what_fails_is_not_signed(vit: tuple[Path, Path], key: Path, tmp_path: Path) -> None:
    broken = changed(vit[0], tmp_path / "broken")
    shown = osa(broken, "--against", vit[1], "--certify", "--sign", key, code=1)
    assert "The certificate is not signed: only a PASS is." in shown
    assert read_certificate(broken / "certificate.json").signature is None


UNSIGNED = {
    "not certified": ([], "--sign signs the certificate that --certify writes"),
    "no reference": (["--certify"], "which needs a reference; add --against"),
    "tolerance": (["--certify", "--against", "CHECKPOINT", "--rtol", "0.1"], "rtol was 0.1"),
    "sizes": (["--certify", "--against", "CHECKPOINT", *FEW], "batches was [2]"),
}


@pytest.mark.parametrize(("arguments", "message"), UNSIGNED.values(), ids=UNSIGNED)
def test_what_nobody_could_rely_on_is_known_before_the_work(
    arguments: list[str], message: str, vit: tuple[Path, Path], key: Path, tmp_path: Path
) -> None:
    artifact = shutil.copytree(vit[0], tmp_path / "vit")
    given = [vit[1] if argument == "CHECKPOINT" else argument for argument in arguments]
    assert message in osa(artifact, *given, "--sign", key, code=2)
    assert not (artifact / "certificate.json").exists()


def test_a_key_that_is_none_is_known_before_the_work(vit: tuple[Path, Path], tmp_path: Path) -> None:
    artifact = shutil.copytree(vit[0], tmp_path / "vit")
    (tmp_path / "key").write_text("secret")
    for path, message in ((tmp_path / "key", "expected a private Ed25519 key"), (tmp_path / "none", "cannot be read")):
        assert message in osa(artifact, "--against", vit[1], "--certify", "--sign", path, code=2)
    assert not (artifact / "certificate.json").exists()


def test_a_pass_above_its_limit_says_why(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from osa_runtime.cli.verify_report import Files, VerifyReport
    from osa_runtime.parity.certificate import CaseResult, Certificate, OutputResult

    def output(error: float, reason: str) -> OutputResult:
        metrics = {"max_rel": error, "top1": 1.0}
        return OutputResult("logits", "pass", reason, 1e-5, error, metrics, metrics, metrics)

    cases = [CaseResult("random", {"batch": n}, 1.0, (output(10.0**-n, f"reason {n}"),)) for n in (4, 6)]
    monkeypatch.setenv("COLUMNS", "80")
    certificate = Certificate("verify", "now", {"files": {}}, {"model": "x"}, {}, {}, (), tuple(cases))
    VerifyReport(as_json=False).result(certificate, Files())
    shown = capsys.readouterr().out
    assert any("random 4" in row and "reason 4" in row for row in shown.splitlines())
    assert "reason 6" not in shown


def test_inputs_and_outputs_of_ones_own(vit: tuple[Path, Path], tmp_path: Path) -> None:
    from osa_runtime import load

    np.savez(tmp_path / "in.npz", **feeds("vit"))
    np.savez(tmp_path / "out.npz", **load(vit[0]).run(feeds("vit")))
    assert "given 3" in osa(vit[0], "--load-inputs", tmp_path / "in.npz", "--load-outputs", tmp_path / "out.npz")


USAGE = {
    "zero rows": (["--batch", "0"], "--batch 0: expected whole numbers"),
    "no number": (["--batch", "one"], "expected whole numbers of at least 1"),
    "empty": (["--batch", ""], "expected whole numbers of at least 1"),
    "negative": (["--batch=-1"], "expected whole numbers of at least 1"),
    "tokens of images": (["--tokens", "10000"], "--tokens 10000 was given, but the model has no dynamic axis"),
    "negative rtol": (["--rtol=-1"], "--rtol"),
    "infinite rtol": (["--rtol", "inf"], "--rtol is inf, expected a finite number"),
    "nan rtol": (["--rtol", "nan"], "--rtol"),
    "huge atol": (["--atol", "1e999"], "--atol is inf, expected a finite number"),
    "negative seed": (["--seed=-1"], "--seed"),
    "no threads": (["--threads", "0"], "--threads"),
    "unknown flag": (["--nothing"], "No such option"),
    "unknown device": (["--device", "tpu"], "tpu"),
    "weights alone": (["--against", "a", "--weights", "w.pt"], "--weights w.pt goes with --factory package.module:"),
    "two references": (["--against", "a", "--factory", "m:f"], "got --against a and --factory m:f"),
    "report is not json": (["--report", "r.txt"], "--report is r.txt, expected a name that ends in .json"),
    "page is not html": (["--html", "r.json"], "expected a name that ends in .html"),
    "inputs are not npz": (["--save-inputs", "x.npy"], "expected a name that ends in .npz"),
    "folder as report": (["--report", "folder.json"], "folder.json is a folder"),
    "one name twice": (["--save-inputs", "x.npz", "--save-outputs", "x.npz"], "are both x.npz; expected two names"),
    "missing inputs": (["--load-inputs", "none.npz"], "none.npz cannot be read"),
    "folder as inputs": (["--load-inputs", "folder.npz"], "folder.npz cannot be read"),
    "corrupt inputs": (["--load-inputs", "corrupt.npz"], "corrupt.npz cannot be read"),
    "sizes and inputs": (["--load-inputs", "double.npz", "--batch", "2"], "leave out --batch and --tokens"),
    "outputs alone": (["--load-outputs", "double.npz"], "needs the inputs that they belong to"),
    "float64": (["--load-inputs", "double.npz"], "is of type float64, expected float32"),
    "nan": (["--load-inputs", "nan.npz"], "NaN or Inf"),
    "wrong name": (["--load-inputs", "pictures.npz"], "Unexpected input 'pictures'"),
}


@pytest.mark.parametrize(("arguments", "message"), USAGE.values(), ids=USAGE)
def test_wrong_usage_leaves_with_2_and_writes_nothing(
    arguments: list[str], message: str, vit: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    images = feeds("vit")["images"]
    np.savez("double.npz", images=images.astype(np.float64))
    np.savez("nan.npz", images=images * np.float32(np.nan))
    np.savez("pictures.npz", pictures=images)
    Path("corrupt.npz").write_bytes(Path("double.npz").read_bytes()[:500])
    Path("folder.npz").mkdir()
    Path("folder.json").mkdir()
    before = sorted(tmp_path.rglob("*"))
    extra = [] if "--report" in arguments else ["--report", "report.json"]
    assert message in osa(vit[0], *arguments, *extra, code=2)
    assert sorted(tmp_path.rglob("*")) == before


def test_sizes_beyond_the_model(exported: Exported) -> None:
    assert "takes sizes from 1 to 64, got 10000" in osa(exported("encoder", "onnx"), "--tokens", "10000", code=2)


def test_what_cannot_be_read_leaves_with_3(vit: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.onnx").write_text("no model")
    assert "does not exist" in osa(tmp_path / "none", code=3)
    assert "is an empty folder" in osa(tmp_path / "empty", code=3)
    assert "text.onnx" in osa(tmp_path / "text.onnx", code=3)
    assert "not a file that we know" in osa(vit[0] / "manifest.json", code=3)
    for wrong in (tmp_path / "none", tmp_path / "empty", tmp_path / "text.onnx"):
        assert "error: " in osa(vit[0], "--against", wrong, code=3)


def test_certify_needs_a_folder(vit: tuple[Path, Path]) -> None:
    assert "--certify writes into an exported folder" in osa(vit[0] / "model.onnx", "--certify", code=2)


def test_a_place_that_cannot_be_written_leaves_with_3(vit: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    assert "Cannot write" in osa(vit[0], *FEW, "--report", tmp_path / "file" / "r.json", code=3)
    assert (tmp_path / "file").read_text() == "kept"


def test_a_bisect_folder_that_is_not_ours_is_kept(vit: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("kept")
    broken = changed(vit[0], tmp_path / "broken")
    shown = osa(broken, "--against", vit[1], *FEW, "--bisect", tmp_path / "mine", code=1)
    assert "will not be replaced" in shown
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "kept"
