"""What smaller models cost and bring: fp16, 8-bit weights, 8-bit products, beside fp32.

Accuracy on the test images, size, and speed in ONNX Runtime on one thread of the CPU. Contenders take turns in blocks;
ratios are to fp32 in the same round, higher is faster, with the 10th and 90th percentile. Time is processor time, so
that what else the machine does counts less.

runs/digits is used where it is there, and trained otherwise (a minute); MNIST where runs/mnist and its data are there.

    python benchmarks/smaller_models.py [--vit-s] [--rounds 15] [--out benchmarks/results/smaller_models.json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osa_runtime import DataError, Session, load
from osa_runtime.artifact import Artifact
from osa_runtime.benchmarking.figures import Spread, block_medians, ratio
from osa_runtime.benchmarking.machine import describe_machine
from osa_runtime.benchmarking.rotation import Schedule, rotate
from osa_runtime.exporters import export_checkpoint
from osa_runtime.quantization import quantize
from osa_runtime.training import load_dataset

Array = NDArray[Any]
CALIBRATION = 256
PORTION = 250


@dataclass
class Contender:
    """One artifact and its figures; ``times`` and ``ratios`` are by batch size."""

    name: str
    size: int
    accuracy: float | None = None
    deviation: float = 0.0
    milliseconds: dict[int, float] = field(default_factory=dict)
    ratios: dict[int, Spread] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """A model, and the images that it is measured on; without labels there is no accuracy."""

    name: str
    checkpoint: Path
    calibration: Array
    images: Array
    labels: Array | None
    batches: tuple[int, int]


def artifacts(subject: Subject, home: Path) -> dict[str, Path]:
    examples = home / "calibration.npz"
    np.savez(examples, images=subject.calibration)
    export_checkpoint(subject.checkpoint, home / "fp32")
    export_checkpoint(subject.checkpoint, home / "fp16", dtype="fp16")
    for activations in ("none", "dynamic", "static"):
        quantize(home / "fp32", home / activations, activations=activations, calibration=examples)
    return {
        "fp32": home / "fp32",
        "fp16": home / "fp16",
        "8-bit weights": home / "none",
        "8 bits, dynamic": home / "dynamic",
        "8 bits, static": home / "static",
    }


def measure(subject: Subject, folders: Mapping[str, Path], rounds: int) -> list[Contender]:
    sessions = {name: load(folder, threads=1) for name, folder in folders.items()}
    expected = logits(sessions["fp32"], subject.images)
    found = {}
    for name, session in sessions.items():
        mine = logits(session, subject.images)
        size = sum(entry["size"] for entry in Artifact.open(folders[name]).manifest.files.values())
        found[name] = Contender(name, size, deviation=float(np.abs(mine - expected).max() / np.abs(expected).max()))
        if subject.labels is not None:
            found[name].accuracy = float((mine.argmax(1) == subject.labels).mean())
    for batch in subject.batches:
        x = np.resize(subject.images, (batch, *subject.images.shape[1:]))
        calls = {name: partial(session.run, feeds(session, x)) for name, session in sessions.items()}
        schedule = Schedule(warm_up=1, iterations=rounds, seconds=0.1 * rounds, rounds=rounds, pause=0.01)
        blocks = rotate(calls, schedule, clock=time.process_time_ns)
        for name, times in blocks.items():
            found[name].milliseconds[batch] = float(np.median(block_medians(times)))
            found[name].ratios[batch] = ratio(times, blocks["fp32"])
    for session in sessions.values():
        session.close()
    return list(found.values())


def feeds(session: Session, images: Array) -> dict[str, Array]:
    return {"images": images.astype(session.inputs[0].dtype)}


def logits(session: Session, images: Array) -> Array:
    parts = [images[i : i + PORTION] for i in range(0, len(images), PORTION)]
    return np.concatenate([session.run(feeds(session, part), check_finite=True)["logits"] for part in parts])


def table(subject: Subject, found: list[Contender]) -> str:
    one, many = subject.batches
    columns = ["", "accuracy", "deviation", "size", f"batch {one}", f"batch {many}"]
    lines = ["| " + " | ".join(columns) + " |", "|---" + "|---:" * 5 + "|"]
    for row in found:
        accuracy = "" if row.accuracy is None else f"{row.accuracy:.2%}"
        size = f"{row.size / 2**20:.2f} MiB" + ("" if row.name == "fp32" else f" (1/{found[0].size / row.size:.1f})")
        cells = [row.name, accuracy, f"{row.deviation:.2%}", size, *(speed(row, batch) for batch in (one, many))]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def speed(row: Contender, batch: int) -> str:
    if row.name == "fp32":
        return f"{row.milliseconds[batch]:.2f} ms"
    spread = row.ratios[batch]
    return f"{spread.median:.2f} ({spread.p10:.2f}–{spread.p90:.2f})"


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
    """As wide, deep and long as ViT-S, with the weights of an untrained model."""
    import torch

    from osa_runtime import SkiplessViT, ViTConfig, save_checkpoint

    torch.manual_seed(0)
    config = ViTConfig(classes=1000, image_size=(224, 224), patch_size=16, channels=3, dim=384, depth=12, heads=6)
    save_checkpoint(SkiplessViT(config), home / "vit-s")
    images = np.random.default_rng(0).standard_normal((36, 3, 224, 224)).astype(np.float32)
    return Subject("ViT-S, untrained", home / "vit-s", images[:32], images[32:], None, (1, 8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vit-s", action="store_true", help="also an untrained model of the size of ViT-S; minutes")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the trained models are")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "smaller_models.json")
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as home:
        subjects = [trained(name, options.runs) for name in ("digits", "mnist")]
        subjects += [random_vit(Path(home))] if options.vit_s else []
        for number, subject in enumerate(subject for subject in subjects if subject is not None):
            where = Path(home) / str(number)
            where.mkdir()
            found = measure(subject, artifacts(subject, where), options.rounds)
            print(f"\n{subject.name}\n\n{table(subject, found)}", flush=True)
            results[subject.name] = [asdict(row) for row in found]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"machine": describe_machine(), "models": results}, indent=2) + "\n")
    print(f"\nwrote {options.out}")


if __name__ == "__main__":
    main()
