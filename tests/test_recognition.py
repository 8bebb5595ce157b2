"""Commands say what a path is and what to do with it, for any path; no pickle is opened on the way."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from made_once import export_checkpoint
from osa_runtime import SkiplessViT, ViTConfig, load, load_checkpoint, save_checkpoint
from osa_runtime.cli.main import app
from osa_runtime.errors import ArtifactError, CheckpointError
from osa_runtime.recognition import FileKind, file_kind

pytestmark = pytest.mark.slow


class Trap:
    """Unpickling it leaves a mark."""

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path("opened"),)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that a command may be given by mistake."""
    root = tmp_path_factory.mktemp("given")
    model = SkiplessViT(ViTConfig(classes=3, image_size=(8, 8), patch_size=4, dim=8, depth=1, heads=2))
    save_checkpoint(model, root / "checkpoint")
    shutil.copytree(root / "checkpoint", root / "runs" / "mine" / "checkpoint")
    export_checkpoint(root / "checkpoint", root / "artifacts" / "vit")
    (root / "unfinished").mkdir()
    torch.save({"format": 1, "identity": {}}, root / "unfinished" / "state.pt")
    (root / "alone").mkdir()
    shutil.copy(root / "artifacts" / "vit" / "model.onnx", root / "alone")
    (root / "hub").mkdir()
    (root / "hub" / "config.json").write_text('{"architectures": ["BertModel"], "model_type": "bert"}')
    (root / "odd").mkdir()
    (root / "odd" / "notes.txt").write_text("nothing")
    (root / "empty").mkdir()
    _files(root)
    return root


def _files(root: Path) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    torch.save(net, root / "whole.pt")
    torch.save(net, root / "whole-4.pt", pickle_protocol=4)
    torch.save(net, root / "whole-old.pt", _use_new_zipfile_serialization=False)
    torch.save([Trap()], root / "trap.pt")
    (root / "trap.pkl").write_bytes(pickle.dumps(Trap()))
    torch.save(net.state_dict(), root / "weights.pt")
    torch.save(net.state_dict(), root / "weights-4.pt", pickle_protocol=4)
    torch.save(net.state_dict(), root / "weights-old.pth", _use_new_zipfile_serialization=False)
    optimizer = torch.optim.AdamW(net.parameters())
    torch.save({"epoch": 3, "model": net.state_dict(), "optimizer": optimizer.state_dict()}, root / "epoch.ckpt")
    torch.jit.script(net).save(str(root / "script.bin"))
    torch.export.save(torch.export.export(net, (torch.zeros(3, 2),)), root / "program.pt2")
    shutil.copy(root / "checkpoint" / "model.safetensors", root / "weights.safetensors")
    shutil.copy(root / "artifacts" / "vit" / "model.onnx", root / "model.onnx")
    np.savez(root / "arrays.npz", x=np.zeros(2))
    np.save(root / "array.npy", np.zeros(2))
    (root / "seven.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (root / "pointer.onnx").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    (root / "nothing.pt").touch()
    (root / "text.txt").write_text("seven")


KINDS = {
    "whole.pt": FileKind.PICKLE,
    "whole-4.pt": FileKind.PICKLE,
    "whole-old.pt": FileKind.PICKLE,
    "trap.pt": FileKind.PICKLE,
    "trap.pkl": FileKind.PICKLE,
    "weights.pt": FileKind.WEIGHTS,
    "weights-4.pt": FileKind.WEIGHTS,
    "weights-old.pth": FileKind.WEIGHTS,
    "epoch.ckpt": FileKind.WEIGHTS,
    "script.bin": FileKind.TORCHSCRIPT,
    "program.pt2": FileKind.PT2,
    "weights.safetensors": FileKind.SAFETENSORS,
    "model.onnx": FileKind.ONNX,
    "arrays.npz": FileKind.ARRAYS,
    "array.npy": FileKind.ARRAYS,
    "seven.png": FileKind.PICTURE,
    "pointer.onnx": FileKind.LFS,
    "nothing.pt": FileKind.EMPTY,
    "text.txt": FileKind.UNKNOWN,
}


@pytest.mark.parametrize("name", KINDS)
def test_files_are_known_by_their_content(given: Path, name: str) -> None:
    assert file_kind(given / name) is KINDS[name]


def test_damaged_files_are_unknown_rather_than_an_error(given: Path, tmp_path: Path) -> None:
    for name in KINDS:
        content = (given / name).read_bytes()
        for number, cut in enumerate((content[: len(content) // 2], content[:9], content[:-30], content[::-1])):
            path = tmp_path / f"{number}-{name}"
            path.write_bytes(cut)
            assert isinstance(file_kind(path), FileKind)


# what was given: (what an artifact's reader says, what a checkpoint's reader says)
FOUND = {
    "checkpoint": ("is a checkpoint; export it first: `osa export", None),
    "runs/mine": ("is a training run with a checkpoint; export it first: `osa export", None),
    "runs": ("is a folder of checkpoints; export one of them (mine)", "name one of them: mine"),
    "unfinished": ("has not finished; the command that started it continues it: `osa train", "continues it"),
    "unfinished/state.pt": ("is the state of an unfinished training run", "continues it"),
    "artifacts": (
        "is a folder of artifacts; name one of them (vit), or serve all: `osa serve --repo",
        "a checkpoint is",
    ),
    "artifacts/vit": (None, "is an artifact; it is exported already"),
    "artifacts/vit/model.onnx": (None, "is an ONNX model; it is exported already"),
    "alone": ("has a model file but no manifest.json; give the file itself", "a checkpoint is a folder"),
    "hub": ("is a model of the Hugging Face Hub", "build its module in a function of your own"),
    "odd": (
        "has neither a manifest.json nor a config.json; expected a folder that `osa export` wrote",
        "a checkpoint is",
    ),
    "empty": ("is an empty folder; expected a folder that `osa export` wrote", "is an empty folder; a checkpoint is"),
    "chekpoint": ("checkpoint?); expected a folder", "did you mean"),
    "whole.pt": ("pickled Python object, perhaps a whole module; reading it would run the code", "state_dict()"),
    "whole-old.pt": ("perhaps a whole module", "--factory package.module:function"),
    "trap.pt": ("perhaps a whole module", "perhaps a whole module"),
    "weights.pt": (
        "(a state_dict); to run them, give the code",
        "give the code that builds its module: `osa export --f",
    ),
    "epoch.ckpt": ("(a state_dict)", "--weights"),
    "weights.safetensors": ("weights without a model", "--factory package.module:function --weights"),
    "checkpoint/model.safetensors": ("holds the weights of a checkpoint; export it first", "give the folder: "),
    "script.bin": ("is a TorchScript model; give it a name that ends in .pt", "it is exported already"),
    "seven.png": ("is a picture; give the model first: `osa run ARTIFACT --input", "a checkpoint is"),
    "arrays.npz": ("is a file of arrays; give the model first", "a checkpoint is"),
    "pointer.onnx": ("is a Git LFS pointer to the real file; fetch the file itself with `git lfs pull`", "git lfs"),
    "nothing.pt": ("is an empty file; expected a folder that `osa export` wrote", "is an empty file"),
    "text.txt": ("is not a file that we know; expected a folder", "is not a file that we know"),
}


@pytest.mark.parametrize("name", FOUND)
def test_the_library_says_what_it_was_given(given: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(given)
    as_artifact, as_checkpoint = FOUND[name]
    for reader, error, message in (
        (load, ArtifactError, as_artifact),
        (load_checkpoint, CheckpointError, as_checkpoint),
    ):
        if message is not None:
            with pytest.raises(error) as caught:
                reader(given / name)
            assert message in str(caught.value)
            assert str(given / name) in str(caught.value)
    assert not (given / "opened").exists()


COMMANDS: dict[str, list[str]] = {
    "run": ["run", "GIVEN", "--input", "array.npy"],
    "evaluate": ["evaluate", "GIVEN", "--data", "digits"],
    "inspect": ["inspect", "GIVEN"],
    "verify": ["verify", "GIVEN"],
    "compare": ["compare", "artifacts/vit", "GIVEN"],
    "bench": ["bench", "GIVEN"],
    "quantize": ["quantize", "GIVEN", "--out", "out"],
    "serve": ["serve", "GIVEN"],
    "triton": ["package", "triton", "GIVEN", "--out", "out"],
    "ray": ["package", "ray", "GIVEN", "--out", "out"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_it_was_given(given: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(given)
    checkpoints = () if command == "evaluate" else ("checkpoint",)  # which it takes as they are
    for name in (*checkpoints, "unfinished", "whole.pt", "weights.pt", "empty", "seven.png", "nowhere"):
        arguments = [name if word == "GIVEN" else word for word in COMMANDS[command]]
        shown = CliRunner().invoke(app, arguments)
        assert shown.exit_code == 3, (name, shown.output)
        assert (FOUND[name][0] or "" if name in FOUND else "does not exist") in shown.output, (name, shown.output)
    assert not (given / "out").exists()


@pytest.mark.parametrize(
    "arguments", [["export", "GIVEN", "--out", "out"], ["verify", "artifacts/vit", "--against", "GIVEN"]]
)
def test_checkpoints_are_told_from_the_rest(given: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(given)
    for name in ("artifacts/vit", "unfinished", "whole.pt", "weights.pt", "weights.safetensors", "empty", "runs"):
        shown = CliRunner().invoke(app, [name if word == "GIVEN" else word for word in arguments])
        assert shown.exit_code == 3, (name, shown.output)
        assert (FOUND[name][1] or "") in shown.output
    assert not (given / "out").exists()
