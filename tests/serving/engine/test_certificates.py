"""``--require-certificate`` and ``--trusted-key``: what is served is what was proved, and nothing else is."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from certificates import certificate_of, certify
from osa_runtime.artifact import Artifact, describe_files, sha256
from osa_runtime.errors import ArtifactError, InputError, OsaError
from osa_runtime.parity.certificate import Check, HeadResult, LayerResult
from osa_runtime.parity.signing import STANDARD
from osa_runtime.serving.engine.model import open_model, read_fingerprint
from osa_runtime.serving.settings import ServerSettings
from serving_process import ServerProcess

Exported = Callable[[str, str], Path]


@pytest.fixture
def folder(exported: Exported, tmp_path: Path) -> Path:
    return shutil.copytree(exported("vit", "onnx"), tmp_path / "vit")


def opened(folder: Path, *keys: Path) -> str:
    settings = ServerSettings(artifacts=(folder,), require_certificate=not keys, trusted_keys=keys)
    model = open_model("vit", 1, folder, settings)
    model.session.close()
    return model.name


def settings(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: certify(folder, settings=STANDARD | changes)


def other_hash(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        files = certificate_of(folder).artifact_sha256
        certify(folder, subject={"files": files | {name: "0" * 64}})

    return make


def no_manifest_hash(folder: Path) -> None:
    certify(folder, subject={"files": {"model.onnx": sha256(folder / "model.onnx")}})


def beside(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        certify(folder)
        (folder / name).write_bytes(b"weights")

    return make


def folder_beside(folder: Path) -> None:
    certify(folder)
    (folder / "weights.json").mkdir()


def new_manifest(folder: Path) -> None:
    """Another standardisation of pixels gives other answers for the same model file."""
    certify(folder)
    fields = json.loads((folder / "manifest.json").read_text())
    fields["preprocessing"] = {
        "images": {"formula": "(pixel - mean) / std", "mean": [1.0], "std": [2.0], "pixels": [0.0, 1.0]}
    }
    (folder / "manifest.json").write_text(json.dumps(fields))


def new_model(folder: Path) -> None:
    """With a manifest that fits it."""
    certify(folder)
    content = bytearray((folder / "model.onnx").read_bytes())
    content[-1] ^= 1
    (folder / "model.onnx").write_bytes(content)
    fields = json.loads((folder / "manifest.json").read_text())
    fields["files"] = {"model.onnx": dataclasses.asdict(describe_files(folder)["model.onnx"])}
    (folder / "manifest.json").write_text(json.dumps(fields))


def new_bytes(folder: Path) -> None:
    certify(folder)
    with (folder / "model.onnx").open("ab") as stream:
        stream.write(b"\x00")


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "none": (lambda _: None, "does not exist"),
    "damaged": (lambda folder: (folder / "certificate.json").write_text("{}"), "is not a certificate"),
    "failed": (lambda folder: certify(folder, checks=(Check("files", False, "x"),)), "failed its verification"),
    "nothing run": (lambda folder: certify(folder, cases=()), "no case could be decided"),
    "consistent": (lambda folder: certify(folder, kind="consistency", reference=None), "not compared with a reference"),
    "numbers": (lambda folder: certify(folder, checks=()), "rests on numbers only"),
    "comparison": (lambda folder: certify(folder, kind="compare"), "of the kind compare, expected verify"),
    "rtol": (settings(rtol=0.1), "rtol was 0.1"),
    "atol": (settings(atol=10.0), "atol was 10.0"),
    "batches": (settings(batches=[1]), "batches was"),
    "lengths": (settings(lengths=[3]), "lengths was"),
    "inputs": (settings(given_inputs=True), "given_inputs was True"),
    "outputs": (settings(given_outputs=True), "given_outputs was True"),
    "outputs alone": (
        lambda folder: certify(folder, reference=None, settings=STANDARD | {"given_outputs": True}),
        "given_outputs was True",
    ),
    "quick": (settings(quick=True), "quick verification"),
    "no settings": (lambda folder: certify(folder, settings={}), "rtol was unknown"),
    "other model": (other_hash("model.onnx"), "written for another model.onnx"),
    "other manifest": (other_hash("manifest.json"), "written for another manifest.json"),
    "more files": (other_hash("model.onnx.data"), "written for another model.onnx.data"),
    "no manifest": (no_manifest_hash, "written for another manifest.json"),
    "unlisted weights": (beside("model.onnx.data"), "model.onnx.data is in the folder"),
    "unlisted model": (beside("model.pt"), "model.pt is in the folder"),
    "hidden file": (beside(".weights"), ".weights is in the folder"),
    "unlisted folder": (folder_beside, "weights.json is in the folder"),
    "new manifest": (new_manifest, "written for another manifest.json"),
    "new model": (new_model, "written for another manifest.json"),
    "new bytes": (new_bytes, "is not the file that was exported"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_what_was_not_proved_is_refused(make: Callable[[Path], Any], message: str, folder: Path) -> None:
    make(folder)
    with pytest.raises(ArtifactError, match=message):
        opened(folder)


def test_what_was_proved_is_served_with_reports_beside_it(folder: Path) -> None:
    certify(folder)
    for name in ("report.html", "report.json", "graph.png", "graph.svg"):
        (folder / name).write_text("a report")
    assert opened(folder) == "vit"


def test_weights_outside_are_refused_even_with_a_certificate_of_their_model(folder: Path) -> None:
    """The certificate fits; the weights in a file that looks like a report are still anybody's."""
    import onnx
    from onnx.external_data_helper import convert_model_to_external_data

    model = onnx.load(folder / "model.onnx")
    convert_model_to_external_data(model, location="report.html", size_threshold=0)
    onnx.save(model, folder / "model.onnx")
    fields = json.loads((folder / "manifest.json").read_text())
    fields["files"] = {"model.onnx": dataclasses.asdict(describe_files(folder)["model.onnx"])}
    (folder / "manifest.json").write_text(json.dumps(fields))
    certify(folder)
    with pytest.raises(ArtifactError, match=r"takes weights from 'report\.html'"):
        opened(folder)


def test_no_changed_byte_of_any_file_is_served(folder: Path) -> None:
    certify(folder)
    original, generator = Artifact.open(folder), random.Random(0)
    for name in ("manifest.json", "model.onnx"):
        content = (folder / name).read_bytes()
        for _ in range(40):
            position, bit = generator.randrange(len(content)), 1 << generator.randrange(8)
            changed = content[:position] + bytes([content[position] ^ bit]) + content[position + 1 :]
            (folder / name).write_bytes(changed)
            with pytest.raises(OsaError):
                opened(folder)
        (folder / name).write_bytes(content)
    assert Artifact.open(folder) == original
    assert opened(folder) == "vit"


def test_a_folder_that_changes_while_it_is_loaded_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from osa_runtime.serving.engine import model as serving_model

    certify(folder)
    real = serving_model.load

    def slow(*arguments: Any, **options: Any) -> Any:
        session = real(*arguments, **options)
        changes()
        return session

    monkeypatch.setattr(serving_model, "load", slow)
    for change, message in ((new_bytes, "is not the file that was exported"), (new_manifest, "while it was being")):
        content = {path: path.read_bytes() for path in folder.iterdir()}

        def changes(change: Callable[[Path], None] = change) -> None:
            change(folder)

        with pytest.raises(ArtifactError, match=message):
            opened(folder)
        for path, before in content.items():
            path.write_bytes(before)


def keys(folder: Path, *names: str) -> list[Any]:
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    made = []
    for name in names:
        key = Ed25519PrivateKey.generate()
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        (folder / name).write_bytes(public)
        made.append(key)
    return made


def test_only_certificates_that_a_trusted_key_signed_are_enough(folder: Path, tmp_path: Path) -> None:
    mine, theirs = keys(tmp_path, "mine.pub", "theirs.pub")
    from osa_runtime.parity.signing import sign

    trusted = tmp_path / "mine.pub"
    certify(folder)
    with pytest.raises(ArtifactError, match="has no signature"):
        opened(folder, trusted)
    sign(certificate_of(folder), theirs).write(folder / "certificate.json")
    with pytest.raises(ArtifactError, match="which is not a trusted one"):
        opened(folder, trusted)
    assert opened(folder, trusted, tmp_path / "theirs.pub") == "vit"
    good = sign(certificate_of(folder), mine)
    good.write(folder / "certificate.json")
    assert opened(folder, trusted) == "vit"
    dataclasses.replace(good, notes=("more",)).write(folder / "certificate.json")
    with pytest.raises(ArtifactError, match="is not that of this certificate"):
        opened(folder, trusted)
    dataclasses.replace(good, kind="consistency", reference=None).write(folder / "certificate.json")
    with pytest.raises(ArtifactError, match="not compared with a reference"):
        opened(folder, trusted)
    with pytest.raises(InputError, match="cannot be read"):
        good.write(folder / "certificate.json")
        opened(folder, tmp_path / "none.pub")


def test_a_server_keeps_what_it_has_when_a_new_version_is_not_certified(exported: Exported, tmp_path: Path) -> None:
    home = tmp_path / "models" / "vit"
    certify(shutil.copytree(exported("vit", "onnx"), home / "1"))
    with ServerProcess("--repository", home.parent, "--require-certificate", "--watch", "0.2") as server:
        shutil.copytree(exported("vit", "onnx"), home / "2")
        refused = server.wait_for("model cannot be loaded", version=2)
        assert "certificate.json does not exist" in refused["reason"]
        certify(home / "2")
        server.wait_for("model loaded", version=2)


def test_a_certificate_shows_the_orthogonality_of_its_own_model_only(folder: Path) -> None:
    before = read_fingerprint(folder)
    heads = (HeadResult(1e-7, 1.0, 1.0, 2.0, 1e-7), HeadResult(3e-7, 1.0, 1.0, 1.5, 1e-7))
    layer = LayerResult("blocks.0", "artifact", "random", heads, 3, 2.5, None, 1e-5, True, "")
    good = certificate_of(folder).subject
    for subject, shown in ((good, 1), ({"files": {"model.onnx": "0" * 64}}, 0)):
        certify(folder, subject=subject, layers=(layer,))
        layers = open_model("vit", 1, folder, ServerSettings(artifacts=(folder,))).layers
        assert layers == [{"layer": "blocks.0", "defect": 3e-7, "norm": 2.0, "squarings": 3}] * shown
    assert read_fingerprint(folder) != before  # a watching server takes a new certificate up


def test_the_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "certificate.json").mkdir()
    with pytest.raises(ArtifactError, match=r"certificate\.json cannot be read: Is a directory"):
        read_fingerprint(tmp_path)
