"""``osa train`` as a user meets it: exit codes, messages, and what is on disk afterwards."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from osa_runtime.cli.main import app

pytestmark = pytest.mark.slow

TINY = ["--depth", "1", "--dim", "8", "--heads", "2", "--batch-size", "16"]
OSA = [sys.executable, "-m", "osa_runtime.cli"]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    random = np.random.RandomState(1)
    np.savez(tmp_path / "images.npz", x=random.rand(60, 4, 4).astype(np.float32), y=np.arange(60) % 3)
    return tmp_path / "images.npz"


def osa_train(*arguments: object) -> tuple[int, str]:
    """The exit code and all that was printed, on one line whatever the width of the terminal."""
    result = CliRunner().invoke(app, ["train", *map(str, arguments)])
    return result.exit_code, " ".join(result.output.split())


def test_training_prints_the_figures_and_the_files(images: Path, tmp_path: Path) -> None:
    code, output = osa_train("--data", images, "--out", tmp_path / "run", "--epochs", 2, *TINY)
    assert code == 0, output
    assert "epoch 2/2 loss" in output
    assert "Test accuracy" in output
    assert "curve.png" in output
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["settings"]["dim"] == 8
    assert metrics["data"]["name"] == "images.npz"


def test_every_option_reaches_the_settings(images: Path, tmp_path: Path) -> None:
    chosen = {
        "attention": "polynomial", "power": 1, "conditioning": "spectral", "alpha": 0.5, "activation": "gelu",
        "mlp_ratio": 1.5, "pool": "cls", "depth": 2, "dim": 12, "heads": 3, "patch_size": 1, "slope": 0.4,
        "dropout": 0.1, "epochs": 1, "batch_size": 9, "optimizer": "muon", "lr": 1e-5,
        "weight_decay": 0.5, "clip": 0.5, "validation": 0.2, "patience": 2, "seed": 5, "device": "cpu", "threads": 1,
    }  # fmt: skip
    flags = [part for name, value in chosen.items() for part in (f"--{name.replace('_', '-')}", value)]
    flags += ["--residual", "--norm", "--lambda", 0.5, "--init", "usual"]
    code, output = osa_train("--data", images, "--out", tmp_path / "run", *flags)
    assert code == 0, output
    settings = json.loads((tmp_path / "run" / "metrics.json").read_text())["settings"]
    others = {"residual": True, "norm": True, "spectral_lambda": 0.5, "initialisation": "usual"}
    assert settings == chosen | others


def test_several_seeds_are_a_table(images: Path, tmp_path: Path) -> None:
    code, output = osa_train("--data", images, "--out", tmp_path / "run", "--epochs", 1, "--seeds", "0, 4", *TINY)
    assert code == 0, output
    assert "seed epoch test accuracy 0 1 " in output
    assert "mean " in output
    assert (tmp_path / "run" / "seed-4" / "checkpoint").is_dir()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        pytest.param(["mnits"], 3, "did you mean mnist?", id="misspelt data set"),
        pytest.param([], 2, "Give either a data set", id="no data at all"),
        pytest.param(["digits", "--data", "x.npz"], 2, "Give either a data set", id="two sources of data"),
        pytest.param(["--data", "absent.npz"], 3, "There is no file absent.npz", id="absent file"),
        pytest.param(
            ["digits", "--attention", "linear"],
            2,
            "--attention must be one of osa, softmax, polynomial, got 'linear'",
            id="unknown attention",
        ),
        pytest.param(["digits", "--dim", "65"], 2, "65", id="dim not divisible by heads"),
        pytest.param(["digits", "--patch-size", "3"], 2, "3", id="patch that does not divide"),
        pytest.param(["digits", "--epochs", "0"], 2, "--epochs is 0", id="no epochs"),
        pytest.param(["digits", "--lr", "nan"], 2, "--lr is nan", id="NaN rate"),
        pytest.param(["digits", "--seeds", "0,x"], 2, "--seeds 0,x: expected whole numbers", id="seeds of letters"),
        pytest.param(["digits", "--seeds", "0,1", "--seed", "3"], 2, "give one of the two", id="seed and seeds"),
        pytest.param(["digits", "--seeds", "0,0"], 2, "expected different", id="a seed twice"),
        pytest.param(["digits", "--patience", "2"], 2, "--patience 2 needs images", id="patience without validation"),
        pytest.param(["digits", "--validation", "1"], 2, "--validation is 1.0", id="nothing to train on"),
        pytest.param(["digits", "--dropout", "1"], 2, "--dropout is 1.0", id="everything dropped"),
        pytest.param(["digits", "--pool", "max"], 2, "--pool must be one of", id="unknown pool"),
        pytest.param(["digits", "--depth", "many"], 2, "'--depth'", id="not a number"),
    ],
)
def test_wrong_usage_is_one_message_and_leaves_no_folder(
    tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    found, output = osa_train(*arguments, "--out", tmp_path / "run")
    assert (found, message in output) == (code, True), output
    assert "Traceback" not in output
    assert not (tmp_path / "run").exists()


def test_out_is_required() -> None:
    code, output = osa_train("digits")
    assert code == 2
    assert "--out" in output


def test_a_file_in_the_place_of_the_folder(images: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    code, output = osa_train("--data", images, "--out", tmp_path / "file", *TINY)
    assert code == 3
    assert "Cannot write" in output
    assert (tmp_path / "file").read_text() == "precious"


def test_a_finished_run_asks_for_force(images: Path, tmp_path: Path) -> None:
    command = ["--data", images, "--out", tmp_path / "run", "--epochs", 1, *TINY]
    assert osa_train(*command)[0] == 0
    code, output = osa_train(*command)
    assert code == 2
    assert "holds a finished run" in output
    assert osa_train(*command, "--force")[0] == 0


def test_a_missing_package_is_named_with_its_extra(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, output = osa_train("--data", images, "--out", tmp_path / "run")
    assert code == 3
    assert 'pip install "osa-runtime[train]"' in output


def test_a_killed_run_continues_to_the_very_same_weights(images: Path, tmp_path: Path) -> None:
    def command(name: str) -> list[str]:
        flags = ["--epochs", "12", "--batch-size", "2", *TINY[:-2]]
        return [*OSA, "train", "--data", str(images), "--out", str(tmp_path / name), *flags]

    with subprocess.Popen(command("killed"), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("epoch 3/"):
                process.send_signal(signal.SIGKILL)
                break
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "metrics.json").exists()

    resumed = subprocess.run(command("killed"), capture_output=True, text=True, check=True)
    assert "Continuing after epoch" in resumed.stdout
    assert osa_train(*command("straight")[len(OSA) + 1 :])[0] == 0
    killed, straight = (
        (tmp_path / name / "checkpoint/model.safetensors").read_bytes() for name in ("killed", "straight")
    )
    assert killed == straight


def test_control_c_tells_how_to_continue(images: Path, tmp_path: Path) -> None:
    command = [*OSA, "train", "--data", str(images), "--out", str(tmp_path / "run"), "--epochs", "9999", *TINY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        errors = process.communicate()[1]
    assert process.returncode == 130
    assert "the same command continues" in errors
    assert "Traceback" not in errors


def test_a_full_disk_is_one_message_and_leaves_nothing_half_written(images: Path, tmp_path: Path) -> None:
    def small_files_only() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))

    command = [*OSA, "train", "--data", str(images), "--out", str(tmp_path / "run"), *TINY]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=small_files_only, check=False)
    assert done.returncode == 3, done.stderr
    assert "Cannot write" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "run").iterdir()) == []
