"""One server with two small models for all tests that leave it as it is."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from serving_process import ServerProcess

Exported = Callable[[str, str], Path]


@pytest.fixture(scope="session")
def served_models(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository: ``vit`` in version 1 and 3, ``encoder`` without versions."""
    home = tmp_path_factory.mktemp("models")
    for version in ("1", "3"):
        shutil.copytree(exported("vit", "onnx"), home / "vit" / version)
    shutil.copytree(exported("encoder", "onnx"), home / "encoder")
    return home


@pytest.fixture(scope="session")
def server(served_models: Path) -> Iterator[ServerProcess]:
    limits = ["--max-batch", "8", "--max-body-mb", "1", "--max-tensor-mb", "0.5", "--versions", "2"]
    with ServerProcess("--repository", served_models, *limits) as running:
        yield running


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1, signed by itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    home = tmp_path_factory.mktemp("tls")
    key, chain = home / "key.pem", home / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(chain)]
    subprocess.run(command, check=True, capture_output=True)
    return chain, key
