"""The costs and gains of smaller models: fp16, 8-bit weights, 8-bit products, next to fp32.

Accuracy on the test images, size, and speed in ONNX Runtime on one thread of the CPU. Contenders take turns in blocks;
ratios are to fp32 in the same round, higher is faster, with the 10th and 90th percentile. Time is processor time, so
that other work of the machine counts less.

runs/digits is used if it exists, and trained otherwise (a minute); MNIST if runs/mnist and its data exist.

    python benchmarks/smaller_models.py [--vit-s] [--rounds 15] [--quick] [--out benchmarks/results]
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from speed.contest import Contest, Pace, compete
from speed.model_contenders import VIT_S
from speed.report import MIB, Report, facts_of, parse, parser_of, table

from osa_runtime import DataError, Session, SkiplessViT, load, save_checkpoint
from osa_runtime.artifact import Artifact
from osa_runtime.exporters import export_checkpoint
from osa_runtime.quantization import quantize
from osa_runtime.training import load_dataset

Array = NDArray[Any]
CALIBRATION = 256
PORTION = 250
FULL = "fp32"


@dataclass(frozen=True)
class Subject:
    """A model, and the images that it is measured on; without labels there is no accuracy."""

    name: str
    checkpoint: Path
    calibration: Array
    images: Array
    labels: Array | None
    batches: tuple[int, ...]


@dataclass(frozen=True)
class Quality:
    """``deviation`` is the largest difference from the logits of fp32, relative to the largest of them."""

    size: int
    deviation: float
    accuracy: float | None


def artifacts(subject: Subject, home: Path) -> dict[str, Path]:
    examples = home / "calibration.npz"
    np.savez(examples, images=subject.calibration)
    export_checkpoint(subject.checkpoint, home / FULL)
    export_checkpoint(subject.checkpoint, home / "fp16", dtype="fp16")
    folders = {FULL: home / FULL, "fp16": home / "fp16"}
    for name, mode in {"8-bit weights": "none", "8 bits, dynamic": "dynamic", "8 bits, static": "static"}.items():
        quantize(home / FULL, home / mode, activations=mode, calibration=examples)
        folders[name] = home / mode
    return folders


def measure(subject: Subject, folders: Mapping[str, Path], pace: Pace) -> tuple[dict[str, Quality], dict[int, Contest]]:
    sessions = {name: load(folder, threads=1) for name, folder in folders.items()}
    expected, quality, contests = logits(sessions[FULL], subject.images), {}, {}
    for name, session in sessions.items():
        mine = logits(session, subject.images)
        size = sum(entry.size for entry in Artifact.open(folders[name]).manifest.files.values())
        deviation = float(np.abs(mine - expected).max() / np.abs(expected).max())
        accuracy = None if subject.labels is None else float((mine.argmax(1) == subject.labels).mean())
        quality[name] = Quality(size, deviation, accuracy)
    for batch in subject.batches:
        x = np.resize(subject.images, (batch, *subject.images.shape[1:]))
        calls = {name: partial(session.run, feeds(session, x)) for name, session in sessions.items()}
        contests[batch] = compete(calls, pace, threads=1, clock=time.process_time_ns)
    for session in sessions.values():
        session.close()
    return quality, contests


def feeds(session: Session, images: Array) -> dict[str, Array]:
    return {"images": images.astype(session.inputs[0].dtype)}


def logits(session: Session, images: Array) -> Array:
    parts = [images[i : i + PORTION] for i in range(0, len(images), PORTION)]
    return np.concatenate([session.run(feeds(session, part), check_finite=True)["logits"] for part in parts])


def quality_table(quality: Mapping[str, Quality], contests: Mapping[int, Contest]) -> str:
    rows = []
    for name, found in quality.items():
        accuracy = "" if found.accuracy is None else f"{found.accuracy:.2%}"
        smaller = "" if name == FULL else f" (1/{quality[FULL].size / found.size:.1f})"
        speeds = [speed(contest, name) for contest in contests.values()]
        rows.append([name, accuracy, f"{found.deviation:.2%}", f"{found.size / MIB:.2f} MiB{smaller}", *speeds])
    return table(["", "accuracy", "deviation", "size", *(f"batch {batch}" for batch in contests)], rows)


def speed(contest: Contest, name: str) -> str:
    ratio = contest.ratio(name, FULL)
    if name == FULL or ratio is None:
        return f"{contest.milliseconds(name).median:.2f} ms"
    return f"{ratio.median:.2f} ({ratio.p10:.2f}–{ratio.p90:.2f})"


def trained(name: str, runs: Path) -> Subject | None:
    """The test images of a data set that is known by name, with the checkpoint in its folder."""
    checkpoint = runs / name
    try:
        data = load_dataset(name)
    except DataError as error:
        print(f"{name} is left out: {error}")
        return None
    if not checkpoint.exists():
        if name != "digits":
            print(f"{name} is left out: {checkpoint} does not exist; osa train {name} --out {checkpoint}")
            return None
        subprocess.run([sys.executable, "-m", "osa_runtime.cli", "train", name, "--out", str(checkpoint)], check=True)
    return Subject(name, checkpoint, data.x_train[:CALIBRATION], data.x_test, data.y_test, (1, 64))


def random_vit(home: Path) -> Subject:
    """The model of the size of ViT-S, with the weights of an untrained model."""
    torch.manual_seed(0)
    save_checkpoint(SkiplessViT(VIT_S.config), home / "vit-s")
    images = np.random.default_rng(0).standard_normal((36, 3, 224, 224)).astype(np.float32)
    return Subject("ViT-S, untrained", home / "vit-s", images[:32], images[32:], None, (1, 8))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--vit-s", action="store_true", help="also an untrained model of the size of ViT-S; minutes")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="the folder of the trained models")
    options = parse(parser, arguments)
    options.threads, contests, content, sections = 1, {}, {}, []
    pace = options.pace if options.quick else Pace(options.rounds, block_seconds=0.1, pause=0.01)
    with tempfile.TemporaryDirectory() as home:
        subjects = [trained(name, options.runs) for name in (("digits",) if options.quick else ("digits", "mnist"))]
        subjects += [random_vit(Path(home))] if options.vit_s else []
        for number, subject in enumerate(subject for subject in subjects if subject is not None):
            (folder := Path(home) / str(number)).mkdir()
            quality, found = measure(subject, artifacts(subject, folder), pace)
            contests |= {f"{subject.name}, batch {batch}": contest for batch, contest in found.items()}
            content[subject.name] = {"quality": {name: asdict(q) for name, q in quality.items()}}
            content[subject.name]["batches"] = {str(batch): contest.as_dict() for batch, contest in found.items()}
            sections += [f"## {subject.name}\n", quality_table(quality, found)]
    title = "Smaller models, and how many times as fast as fp32"
    Report("smaller_models", title, facts_of(options), contests, {"models": content}, sections).write(options.out)


if __name__ == "__main__":
    main()
