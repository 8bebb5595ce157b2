"""Every edit of a TorchScript or torch.export file is named; changes due to saving it again are not."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from sabotage import broken_pt2, broken_torchscript, signed
from structures import Compare

from osa_runtime.errors import OsaError
from osa_runtime.verification.structure.differences import graph_differences
from osa_runtime.verification.structure.graph import MalformedGraphError
from osa_runtime.verification.structure.pt2_graph import read_pt2
from osa_runtime.verification.structure.script_graph import read_script

Deep = Callable[..., Path]
Rewrite = Callable[[str, bytes], bytes]
MLP = "stack.blocks.1.mlp"


def edited(artifact: Path, out: Path, name: str, rewrite: Rewrite) -> Path:
    """A copy with some entries of its archive rewritten."""
    shutil.copytree(artifact, out)
    with zipfile.ZipFile(artifact / name) as source, zipfile.ZipFile(out / name, "w") as target:
        for entry in source.infolist():
            target.writestr(entry, rewrite(entry.filename, source.read(entry)))
    return signed(out)


def in_code(file: str, old: str, new: str) -> Rewrite:
    def rewrite(name: str, content: bytes) -> bytes:
        if not name.endswith(file):
            return content
        assert old.encode() in content
        return content.replace(old.encode(), new.encode(), 1)

    return rewrite


@pytest.mark.parametrize(
    ("rewrite", "said"),
    [
        (
            in_code("models/vit.py", "return (head).forward(", "return -(head).forward("),
            "the model (SkiplessViT): code, line",
        ),
        (
            in_code(
                "nn/block.py",
                "  def forward(self: __torch__.osa_runtime.nn.block.IsometricMLP",
                "  # quiet\n  def forward(self: __torch__.osa_runtime.nn.block.IsometricMLP",
            ),
            "stack.blocks.0.mlp (IsometricMLP): code, line",
        ),
        (
            in_code("ops/scaling.py", "def scaling(", "def scaling( "),
            "the function __torch__.osa_runtime.ops.scaling.scaling, line",
        ),
        (
            in_code("data.pkl", "X\x06\x00\x00\x00taylor", "X\x06\x00\x00\x00padeee"),
            "stack.blocks.0.attention.approximant (str): value is padeee, expected taylor",
        ),
        (in_code("/version", "10", "9"), "the entry model/.data/version"),
    ],
    ids=["negated", "method", "function", "attribute", "version"],
)
def test_an_edit_of_a_script_is_named(
    rewrite: Rewrite, said: str, deep: Deep, compare: Compare, tmp_path: Path
) -> None:
    artifact = edited(deep("vit", format="torchscript"), tmp_path / "edited", "model.pt", rewrite)
    check = compare(artifact, "vit").checks[0]
    assert not check.passed
    assert said in check.detail


def test_a_script_that_torch_refuses_is_an_error(deep: Deep, compare: Compare, tmp_path: Path) -> None:
    rewrite = in_code("models/vit.py", "return (head).forward(", "return (head.forward(")
    artifact = edited(deep("vit", format="torchscript"), tmp_path / "edited", "model.pt", rewrite)
    with pytest.raises(OsaError, match=r"model\.pt"):
        compare(artifact, "vit")


def test_a_weight_of_a_script_is_named(deep: Deep, compare: Compare, tmp_path: Path) -> None:
    def change(module: torch.nn.Module) -> None:
        dict(module.named_parameters())[f"{MLP}.expand.weight"][1, 2].add_(1e-6)

    source = deep("vit", format="torchscript")
    check = compare(broken_torchscript(source, tmp_path / "broken", change), "vit").checks[0]
    assert f"{MLP}.expand.weight: 1 of 512 values differs, at (1, 2)" in check.detail


def test_saving_again_changes_nothing(deep: Deep, compare: Compare, tmp_path: Path) -> None:
    for kind, save in (("torchscript", broken_torchscript), ("pt2", broken_pt2)):
        again = save(deep("vit", format=kind), tmp_path / kind, lambda _: None)
        assert compare(again, "vit").checks[0].passed, compare(again, "vit").checks[0].detail


def program(change: Callable[[dict[str, object]], None]) -> Rewrite:
    def rewrite(name: str, content: bytes) -> bytes:
        if not name.endswith("models/model.json"):
            return content
        model = json.loads(content)
        change(model)
        return json.dumps(model).encode()

    return rewrite


def nodes(model: dict) -> list[dict]:
    return model["graph_module"]["graph"]["nodes"]


def negate(model: dict) -> None:
    last = model["graph_module"]["graph"]["outputs"][0]["as_tensor"]
    argument = {"name": "self", "arg": {"as_tensor": {"name": last["name"]}}, "kind": 1}
    negated = {
        "target": "torch.ops.aten.neg.default",
        "inputs": [argument],
        "outputs": [{"as_tensor": {"name": "negated"}}],
    }
    nodes(model).append(negated | {"metadata": {}, "is_hop_single_tensor_return": None, "name": "negated"})
    values = model["graph_module"]["graph"]["tensor_values"]
    values["negated"] = values[last["name"]]
    last["name"] = "negated"
    model["graph_module"]["signature"]["output_specs"][0]["user_output"]["arg"]["as_tensor"]["name"] = "negated"


def change_slope(model: dict) -> None:
    node = next(n for n in nodes(model) if "leaky_relu" in n["target"])
    node["inputs"][1]["arg"] = {"as_float": 0.25}


def change_branch(model: dict) -> None:
    bodies = [i["arg"]["as_graph"]["graph"] for n in nodes(model) for i in n["inputs"] if "as_graph" in i["arg"]]
    node = next(n for body in bodies for n in body["nodes"] if n["target"].endswith("add.Tensor"))
    node["target"] = "torch.ops.aten.sub.Tensor"


def widen_range(model: dict) -> None:
    for limits in model["range_constraints"].values():
        limits["max_val"] = 7


def drop_guard(model: dict) -> None:
    model["guards_code"] = []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (negate, "an extra node negated (aten.neg.default) between"),
        (change_slope, "stack.blocks.0.mlp/leaky_relu"),
        (change_branch, "aten.sub.Tensor"),
        (widen_range, "range_constraints"),
        (drop_guard, "guards_code"),
    ],
)
def test_an_edit_of_a_program_is_named(
    change: Callable[[dict], None], said: str, deep: Deep, compare: Compare, tmp_path: Path
) -> None:
    artifact = edited(deep("encoder", format="pt2"), tmp_path / "edited", "model.pt2", program(change))
    check = compare(artifact, "encoder").checks[0]
    assert not check.passed
    assert said in check.detail


def test_a_weight_of_a_program_is_named(deep: Deep, compare: Compare, tmp_path: Path) -> None:
    source = deep("vit", format="pt2")
    broken = broken_pt2(source, tmp_path / "broken", lambda weights: weights[f"{MLP}.expand.weight"][1, 2].add_(1e-6))
    assert f"{MLP}.expand.weight: 1 of 512 values differs, at (1, 2)" in compare(broken, "vit").checks[0].detail


class Tiny(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def entries_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {f"model/{name.partition('/')[2]}": archive.read(name) for name in archive.namelist()}


def written(path: Path, entries: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("script") / "model.pt"
    torch.jit.script(Tiny()).save(str(path))
    return entries_of(path)


@pytest.fixture(scope="module")
def tiny_program(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("program") / "model.pt2"
    torch.export.save(torch.export.export(Tiny(), (torch.zeros(1, 2),)), path)
    return entries_of(path)


def test_a_negated_tensor_of_a_script_is_refused(script: dict[str, bytes], tmp_path: Path) -> None:
    data = script["model/data.pkl"]
    place = data.index(b")R", data.index(b"ccollections\nOrderedDict\n")) + 2
    flags = b"}(X\x03\x00\x00\x00neg\x88u"
    path = written(tmp_path / "model.pt", script | {"model/data.pkl": data[:place] + flags + data[place:]})
    assert any(value.is_neg() for value in torch.jit.load(path).state_dict().values())
    with pytest.raises(MalformedGraphError, match="no hooks and no flags"):
        read_script(path)


@pytest.mark.parametrize("level", ["program", "module", "signature"])
@pytest.mark.parametrize("key", ["guards_code", "metadata", "input 0"])
def test_no_field_of_a_program_hides_another(
    level: str, key: str, tiny_program: dict[str, bytes], tmp_path: Path
) -> None:
    wanted = read_pt2(written(tmp_path / "model.pt2", tiny_program))
    model = json.loads(tiny_program["model/models/model.json"])
    module = model["graph_module"]
    {"program": model, "module": module, "signature": module["signature"]}[level][key] = "another"
    changed = tiny_program | {"model/models/model.json": json.dumps(model).encode()}
    found = read_pt2(written(tmp_path / "changed.pt2", changed))
    assert f"{level}: {key}" in " ".join(graph_differences(found, wanted))


CONFIG = "model/data/{0}/model_{0}_config.json"


def test_a_weight_in_both_configurations_is_refused(tiny_program: dict[str, bytes], tmp_path: Path) -> None:
    weights = json.loads(tiny_program[CONFIG.format("weights")])
    again = {"model/data/constants/weight_0": bytes(16), CONFIG.format("constants"): json.dumps(weights).encode()}
    with pytest.raises(MalformedGraphError, match="weights that are elsewhere, too"):
        read_pt2(written(tmp_path / "model.pt2", tiny_program | again))


def test_a_weight_that_nothing_uses_is_named(tiny_program: dict[str, bytes], tmp_path: Path) -> None:
    wanted = read_pt2(written(tmp_path / "model.pt2", tiny_program))
    weights = json.loads(tiny_program[CONFIG.format("weights")])
    weights["config"]["another"] = weights["config"]["inner.bias"]
    more = tiny_program | {CONFIG.format("weights"): json.dumps(weights).encode()}
    found = read_pt2(written(tmp_path / "more.pt2", more))
    assert "the unused weight another" in " ".join(graph_differences(found, wanted))


def test_a_weight_outside_its_folder_is_refused(tiny_program: dict[str, bytes], tmp_path: Path) -> None:
    weights = json.loads(tiny_program[CONFIG.format("weights")])
    weights["config"]["inner.bias"]["path_name"] = "/weight_0"
    moved = {"model/data/weights//weight_0": bytes(8), CONFIG.format("weights"): json.dumps(weights).encode()}
    with pytest.raises(MalformedGraphError, match="is not the name of an entry"):
        read_pt2(written(tmp_path / "model.pt2", tiny_program | moved))


def test_an_archive_that_can_be_read_in_two_ways_is_refused(script: dict[str, bytes], tmp_path: Path) -> None:
    path = written(tmp_path / "model.pt", script)
    path.write_bytes(b"\0" + path.read_bytes())  # which zipfile reads all the same
    with pytest.raises(MalformedGraphError, match="read in two ways"):
        read_script(path)
