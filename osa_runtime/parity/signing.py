"""Trust in a certificate: objections to relying on it, and signatures by keys that the user chose to trust.

Not every verification is wide, strict and independent enough. Signatures are Ed25519, over the content in canonical
form. A key is known by the SHA-256 of its public half in DER, as
`openssl pkey -pubin -in FILE -outform DER | sha256sum` prints it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osa_runtime.artifact import MANIFEST_FILE, Artifact
from osa_runtime.environment import missing_package
from osa_runtime.errors import ArtifactError, InputError
from osa_runtime.parity.certificate import CERTIFICATE_FILE, Certificate, Signature

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


PURPOSE = b"osa-runtime certificate\n"  # so that a signature made for something else does not fit
MAKE = "`openssl genpkey -algorithm ed25519 -out key.pem` makes one"
SHOW = "`openssl pkey -in key.pem -pubout -out key.pub` writes it"


def sign(certificate: Certificate, key: Ed25519PrivateKey) -> Certificate:
    """Return the certificate with a signature; one that must not be relied on is an InputError."""
    reason = objection(certificate)
    if reason is not None:
        raise InputError(f"The certificate is not signed: {reason}.")
    value = key.sign(_message(certificate)).hex()
    return dataclasses.replace(certificate, signature=Signature("ed25519", fingerprint(key.public_key()), value))


def check_signature(certificate: Certificate, trusted: Sequence[Ed25519PublicKey]) -> None:
    """Raise an ArtifactError unless one of the keys signed this content."""
    from cryptography.exceptions import InvalidSignature

    signature = certificate.signature
    if signature is None:
        raise ArtifactError("The certificate has no signature.")
    key = {fingerprint(key): key for key in trusted}.get(signature.key)
    if key is None:
        raise ArtifactError(f"The certificate is signed by the key {signature.key}, which is not a trusted one.")
    try:
        key.verify(bytes.fromhex(signature.value), _message(certificate))
    except (InvalidSignature, ValueError):
        raise ArtifactError(f"The signature by the key {signature.key} is not that of this certificate.") from None


def _message(certificate: Certificate) -> bytes:
    return PURPOSE + certificate.canonical()


def fingerprint(key: Ed25519PublicKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """Read a key from PEM, in the form of PKCS #8 or of OpenSSH, without a passphrase."""
    _require_cryptography()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    content = _read(path, "PRIVATE KEY", f"a private Ed25519 key in PEM; {MAKE}")
    ssh = b"OPENSSH" in content
    load = serialization.load_ssh_private_key if ssh else serialization.load_pem_private_key
    key: Ed25519PrivateKey = _checked(path, lambda: load(content, None), Ed25519PrivateKey)
    return key


def read_public_key(path: Path) -> Ed25519PublicKey:
    """Read a key from PEM (SubjectPublicKeyInfo), or from a line of OpenSSH's."""
    _require_cryptography()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    content = _read(path, "PUBLIC KEY", f"a public Ed25519 key in PEM, or a line of OpenSSH's; {SHOW}")
    ssh = content.startswith(b"ssh-")
    load = serialization.load_ssh_public_key if ssh else serialization.load_pem_public_key
    key: Ed25519PublicKey = _checked(path, lambda: load(content), Ed25519PublicKey)
    return key


def _read(path: Path, half: str, expected: str) -> bytes:
    try:
        content = path.read_bytes().strip()
    except OSError as error:
        raise InputError(f"The key {path} cannot be read: {error.strerror or error}; expected {expected}.") from error
    line = half == "PUBLIC KEY" and content.startswith(b"ssh-") and b"\n" not in content
    if not line and (content.count(b"-----BEGIN") != 1 or f"{half}-----".encode() not in content):
        raise InputError(f"{path} does not hold one key of the kind that is needed; expected {expected}.")
    return content


def _checked(path: Path, load: Callable[[], Any], wanted: Any) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        key = load()
    except TypeError as error:
        raise InputError(f"The key {path} is protected by a passphrase; expected one without.") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(f"The key {path} is damaged, or of a form that cannot be read; expected Ed25519.") from error
    if not isinstance(key, wanted):
        raise InputError(f"The key {path} is of the kind {type(key).__name__}; expected {wanted.__name__}. {MAKE}.")
    return key


def _require_cryptography() -> None:
    try:
        import cryptography  # noqa: F401  # only whether it is there
    except ImportError as error:
        raise missing_package("A signature", "cryptography", "serve") from error


REPORTS = (".html", ".json", ".png", ".svg")  # that `osa verify` and `osa inspect` may have written

# The settings of a whole verification. Others are looser, narrower, or rely on files of the author.
STANDARD = {"rtol": None, "atol": None, "batches": None, "lengths": None, "given_inputs": False, "given_outputs": False}


def objection(certificate: Certificate) -> str | None:
    """The reason why a certificate does not show that the model is right, whatever its files; None if it does."""
    if certificate.kind == "compare":
        return "it is of the kind compare, expected verify"
    if certificate.failed:
        first = next(iter(certificate.failures()), "no case could be decided")
        return f"the model failed its verification: {first}"
    if not certificate.passed:
        return "the model is consistent with itself but was not compared with a reference"
    if certificate.basis != "structure and numbers":
        return "it rests on numbers only, and the structure was not compared; export the model again, and verify that"
    return settings_objection(certificate.settings)


def settings_objection(settings: Mapping[str, Any]) -> str | None:
    """The reason why a verification with these settings must not be relied on."""
    if settings.get("quick"):
        return "it was a quick verification, which leaves out most sizes and kinds of input"
    if settings.get("runtime") is not None:
        return f"it was verified in {settings['runtime']}, which is not the runtime that serves it"
    for name, standard in STANDARD.items():
        found = settings.get(name, "unknown")
        if found != standard:
            return f"{name} was {found}, and only verifications with all standard tolerances, sizes and inputs count"
    return None


def files_objection(certificate: Certificate, artifact: Artifact) -> str | None:
    """The reason why it is not the certificate of this artifact. Files are not compared with the manifest here."""
    expected, certified = _listed(artifact), certificate.artifact_sha256
    for name in sorted({*expected, *certified}):
        if expected.get(name) != certified.get(name):
            return f"it was written for another {name}: the hashes differ"
    return None


def folder_objection(artifact: Artifact) -> str | None:
    """The reason why the folder holds more than the certificate covers."""
    known = {*_listed(artifact), CERTIFICATE_FILE}
    for path in sorted(artifact.folder.iterdir()):
        report = path.suffix in REPORTS and path.is_file()
        if path.name not in known and not report:
            return f"{path.name} is in the folder, and {MANIFEST_FILE} does not list it; remove it"
    return None


def _listed(artifact: Artifact) -> dict[str, Any]:
    listed = {name: entry.sha256 for name, entry in artifact.manifest.files.items()}
    return listed | {MANIFEST_FILE: artifact.manifest_sha256}
