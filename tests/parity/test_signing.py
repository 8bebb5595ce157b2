"""A signature is valid for one content and one key; whatever else is there is refused, and says why."""

from __future__ import annotations

import dataclasses
import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from osa_runtime.errors import ArtifactError, InputError
from osa_runtime.parity.certificate import CaseResult, Certificate, Check, OutputResult, read_certificate
from osa_runtime.parity.signing import (
    STANDARD,
    check_signature,
    fingerprint,
    read_private_key,
    read_public_key,
    sign,
)

PEM, PKCS8, OPENSSH = (
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.PrivateFormat.OpenSSH,
)
PLAIN = serialization.NoEncryption()


def certificate(**changes: Any) -> Certificate:
    output = OutputResult("logits", "pass", "fine", 2e-5, 1e-6)
    plain: dict[str, Any] = dict(
        kind="verify",
        created="2026-01-02T03:04:05+00:00",
        subject={"name": "modèle \udcff", "files": {"model.onnx": "ab" * 32}},
        reference={"model": "SkiplessViT"},
        settings=STANDARD,
        versions={"numpy": "2"},
        checks=(Check("files", True, "all there"), Check("structure", True, "as a fresh export gives it")),
        cases=(CaseResult("random", {"batch": 2}, float("nan"), (output,)),),
    )
    return Certificate(**plain | changes)


KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32))


def test_a_signature_survives_its_file(tmp_path: Path) -> None:
    signed = sign(certificate(), KEY)
    signed.write(tmp_path / "c.json")
    check_signature(read_certificate(tmp_path / "c.json"), [OTHER.public_key(), KEY.public_key()])
    assert signed.signature is not None
    assert signed.signature.key == fingerprint(KEY.public_key())


def test_other_keys_and_no_signature_are_refused() -> None:
    with pytest.raises(ArtifactError, match="which is not a trusted one"):
        check_signature(sign(certificate(), OTHER), [KEY.public_key()])
    with pytest.raises(ArtifactError, match="has no signature"):
        check_signature(certificate(), [KEY.public_key()])
    borrowed = dataclasses.replace(sign(certificate(), OTHER).signature, key=fingerprint(KEY.public_key()))  # type: ignore[type-var]
    with pytest.raises(ArtifactError, match="is not that of this certificate"):
        check_signature(certificate(signature=borrowed), [KEY.public_key()])


@pytest.mark.parametrize(
    "changes",
    [
        {"subject": {"name": "modèle \udcff", "files": {"model.onnx": "cd" * 32}}},
        {"settings": STANDARD | {"rtol": 1.0}},
        {"created": "2027-01-02T03:04:05+00:00"},
        {"notes": ("a note",)},
        {"cases": certificate().cases * 2},
        {"versions": {"numpy": "3"}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_signature_fits_no_other_content(changes: dict[str, Any]) -> None:
    moved = dataclasses.replace(sign(certificate(), KEY), **changes)
    with pytest.raises(ArtifactError, match="is not that of this certificate"):
        check_signature(moved, [KEY.public_key()])


def test_no_changed_byte_of_the_file_changes_what_is_trusted(tmp_path: Path) -> None:
    """Every byte of the file, each replaced by something else: refused, or the very same certificate."""
    good, path, generator = sign(certificate(), KEY), tmp_path / "c.json", random.Random(0)
    text, refused = good.to_json().encode("utf-8", "backslashreplace"), 0
    original = read_certificate(_written(path, text))
    for position in range(len(text)):
        changed = bytes([text[position] ^ 1 << generator.randrange(8)])
        try:
            found = read_certificate(_written(path, text[:position] + changed + text[position + 1 :]))
            check_signature(found, [KEY.public_key()])
            assert found == original  # a space for a line break, 1E-05 for 1e-05
        except ArtifactError:
            refused += 1
    assert refused > 0.7 * len(text)


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_a_field_twice_is_refused(tmp_path: Path) -> None:
    text = sign(certificate(), KEY).to_json().replace('"kind": "verify"', '"kind": "compare", "kind": "verify"')
    (tmp_path / "c.json").write_bytes(text.encode("utf-8", "backslashreplace"))
    with pytest.raises(ArtifactError, match="a field twice"):
        read_certificate(tmp_path / "c.json")


@pytest.mark.parametrize("value", ["", "00", "AB" * 64, "ab" * 63 + "a ", "xy" * 64])
def test_what_is_no_signature_is_no_certificate(value: str, tmp_path: Path) -> None:
    content = json.loads(sign(certificate(), KEY).to_json())
    content["signature"]["value"] = value
    (tmp_path / "c.json").write_text(json.dumps(content))
    with pytest.raises(ArtifactError, match="not one of Ed25519"):
        read_certificate(tmp_path / "c.json")


@pytest.mark.parametrize(
    "changes",
    [{"reference": None}, {"checks": (Check("files", False, "changed"),)}, {"kind": "compare"}, {"cases": ()}]
    + [{"settings": STANDARD | {name: [1]}} for name in STANDARD]
    + [{"settings": {}}, {"settings": STANDARD | {"quick": True}}],
    ids=str,
)
def test_nothing_is_signed_that_nobody_may_rely_on(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not signed"):
        sign(certificate(**changes), KEY)


def private(key: Any, form: Any = PKCS8, encryption: Any = PLAIN) -> bytes:
    return bytes(key.private_bytes(PEM, form, encryption))


def public(key: Any) -> bytes:
    return bytes(key.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo))


def line(key: Any) -> bytes:
    form = serialization.PublicFormat.OpenSSH
    return bytes(key.public_key().public_bytes(serialization.Encoding.OpenSSH, form)) + b" someone@somewhere\n"


@pytest.mark.parametrize("content", [private(KEY), private(KEY, OPENSSH)], ids=["PKCS 8", "OpenSSH"])
def test_private_keys(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(content)
    assert fingerprint(read_private_key(tmp_path / "key").public_key()) == fingerprint(KEY.public_key())


@pytest.mark.parametrize("content", [public(KEY), line(KEY)], ids=["PEM", "OpenSSH"])
def test_public_keys(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(content)
    assert fingerprint(read_public_key(tmp_path / "key")) == fingerprint(KEY.public_key())


RSA, CURVE = rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP256R1())
NO_PRIVATE = {
    "empty": (b"", "expected a private Ed25519 key"),
    "text": (b"secret", "expected a private Ed25519 key"),
    "public": (public(KEY), "expected a private Ed25519 key"),
    "line": (line(KEY), "expected a private Ed25519 key"),
    "RSA": (private(RSA), "of the kind RSAPrivateKey; expected Ed25519PrivateKey"),
    "curve": (private(CURVE), "expected Ed25519PrivateKey"),
    "passphrase": (private(KEY, PKCS8, serialization.BestAvailableEncryption(b"x")), "protected by a passphrase"),
    "damaged": (private(KEY)[:60] + b"\n-----END PRIVATE KEY-----\n", "is damaged"),
    "two": (private(KEY) + private(OTHER), "does not hold one key"),
}
NO_PUBLIC = {
    "empty": (b"", "expected a public Ed25519 key"),
    "private": (private(KEY), "expected a public Ed25519 key"),
    "both": (public(KEY) + private(KEY), "expected a public Ed25519 key"),
    "RSA": (public(RSA), "of the kind RSAPublicKey; expected Ed25519PublicKey"),
    "RSA line": (line(RSA), "expected Ed25519PublicKey"),
    "two lines": (line(KEY) + line(OTHER), "does not hold one key"),
    "damaged line": (b"ssh-ed25519 AAAA", "is damaged"),
}


@pytest.mark.parametrize(("content", "message"), NO_PRIVATE.values(), ids=NO_PRIVATE)
def test_what_is_no_private_key(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_private_key(tmp_path / "key")


@pytest.mark.parametrize(("content", "message"), NO_PUBLIC.values(), ids=NO_PUBLIC)
def test_what_is_no_public_key(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_public_key(tmp_path / "key")


def test_missing_files_and_folders(tmp_path: Path) -> None:
    for read in (read_private_key, read_public_key):
        with pytest.raises(InputError, match="cannot be read: No such file"):
            read(tmp_path / "none")
        with pytest.raises(InputError, match="cannot be read: Is a directory"):
            read(tmp_path)


def test_the_documented_commands_make_keys_and_show_the_fingerprint(tmp_path: Path) -> None:
    def run(command: str) -> str:
        return subprocess.run(command, shell=True, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    try:
        run("openssl version")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("there is no openssl here")
    run("openssl genpkey -algorithm ed25519 -out key.pem && openssl pkey -in key.pem -pubout -out key.pub")
    shown = run("openssl pkey -pubin -in key.pub -outform DER | sha256sum").split()[0]
    signed = sign(certificate(), read_private_key(tmp_path / "key.pem"))
    check_signature(signed, [read_public_key(tmp_path / "key.pub")])
    assert signed.signature is not None
    assert signed.signature.key == shown
