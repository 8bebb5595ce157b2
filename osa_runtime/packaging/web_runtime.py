"""ONNX Runtime Web, fetched by name and checked by hash: the files that a page loads to run a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from osa_runtime.atomic import atomic_folder
from osa_runtime.downloads import check_hashes, data_folder, fetch_archive, read_archive
from osa_runtime.errors import DataError

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


def runtime_files(wanted: Sequence[str], source: Path | None = None) -> dict[str, bytes]:
    """The files called ``wanted`` from ``source``, or else from our own copy, which is fetched if there is none."""
    if source is None:
        source = data_folder() / PACKAGE
        if not all((source / name).is_file() for name in wanted):
            _fetch(source)
    files = {name: _read(source / name) for name in wanted}
    check_hashes(PACKAGE, files, {name: SHA256[name] for name in wanted})
    return files


def _fetch(folder: Path) -> None:
    content = fetch_archive("npm", PACKAGE, "give the folder dist of that package with runtime_folder=FOLDER")
    files = read_archive(PACKAGE, content, SHA256.__contains__, LARGEST_FILE)
    check_hashes(PACKAGE, files, SHA256)
    with atomic_folder(folder, replace=True, marker=next(iter(SHA256))) as temporary:
        for name, found in files.items():
            (temporary / name).write_bytes(found)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"Cannot read {path}: {error.strerror or error}; expected a file of the folder dist of {PACKAGE}."
        ) from error
