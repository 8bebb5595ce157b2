"""The bytes of a TorchScript archive: names, order and dates that depend on the model alone, and the same answers."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from osa_runtime.exporters.torch_exports import _culprit, in_order, is_needed, rewrite


def archive(outer: int, first: int, second: int, turned: bool) -> dict[str, bytes]:
    """A net with two classes of one name, whose numbers, files and order are torch's; one function; dated entries."""

    def name(number: int, plain: str) -> str:
        return f"__torch__.own.___torch_mangle_{number}.{plain}"

    finals = ["  b : Final[int] = 2\n", "  a : Final[int] = 1\n"]
    part = "class Part(Module):\n  w : Tensor\n{}  def forward(self) -> Tensor:\n    return {}\n"
    net = f"class Net(Module):\n  one : {name(first, 'Part')}\n  two : {name(second, 'Part')}\n"
    net += (
        "  def forward(self) -> Tensor:\n    return __torch__.own.helper((self.one).forward(), __torch__.own.Kind.UP)\n"
    )
    code = {
        outer: net,
        first: part.format("".join(finals[:: -1 if turned else 1]), "self.w"),
        second: part.format("", "-self.w"),
    }
    files = {f"m/code/__torch__/own/___torch_mangle_{number}.py": text for number, text in code.items()}
    files["m/code/__torch__/own.py"] = "".join(
        [" ".join(("class Kind(Enum):\n ", "UP = 1\n")), "def helper(x: Tensor, k: int) -> Tensor:\n  return x\n"][
            :: -1 if turned else 1
        ]
    )
    pickled = "".join(
        f"c{name(n, p).rpartition('.')[0]}\n{p}\n" for n, p in ((outer, "Net"), (first, "Part"), (second, "Part"))
    )
    entries = {"m/data.pkl": f"\x80\x02{pickled}ctorch\nTensor\n.".encode(), "m/data/0": b"weights"}
    entries |= {path: text.encode() for path, text in sorted(files.items(), reverse=turned)}
    return entries


NUMBERS = st.lists(st.integers(0, 99), min_size=3, max_size=3, unique=True)


@given(NUMBERS, st.booleans())
def test_numbers_and_order_do_not_show(numbers: list[int], turned: bool) -> None:
    found, expected = in_order(archive(*numbers, turned)), in_order(archive(0, 1, 2, False))
    assert found == expected
    assert list(found) == list(expected)


def test_two_classes_of_one_name_stay_two() -> None:
    found = {name: content.decode(errors="replace") for name, content in in_order(archive(7, 30, 4, True)).items()}
    assert sorted(found) == [
        "m/code/__torch__/own.py",
        "m/code/__torch__/own/___torch_mangle_0.py",
        "m/data.pkl",
        "m/data/0",
    ]
    plain, other = found["m/code/__torch__/own.py"], found["m/code/__torch__/own/___torch_mangle_0.py"]
    assert "one : __torch__.own.Part\n  two : __torch__.own.___torch_mangle_0.Part\n" in plain
    assert "return self.w" in plain
    assert "a : Final[int] = 1\n  b : Final[int] = 2\n" in plain
    assert "return -self.w" in other
    assert "__torch__.own.helper((self.one).forward(), __torch__.own.Kind.UP)" in plain
    wanted = "c__torch__.own\nNet\nc__torch__.own\nPart\nc__torch__.own.___torch_mangle_0\nPart\nctorch\nTensor\n."
    assert found["m/data.pkl"].endswith(wanted)


def test_a_class_that_is_defined_twice_is_refused() -> None:
    entries = archive(0, 1, 2, False)
    entries["m/code/__torch__/own/___torch_mangle_1.py"] *= 2
    with pytest.raises(ValueError, match=r"__torch__\.own\.___torch_mangle_1\.Part is defined twice"):
        in_order(entries)


def test_code_that_is_no_definition_is_not_lost() -> None:
    entries = archive(0, 1, 2, False)
    entries["m/code/__torch__/own.py"] = b"import os\n" + entries["m/code/__torch__/own.py"]
    with pytest.raises(AssertionError, match="neither a class nor a function: 'import os"):
        in_order(entries)


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("m/code/__torch__/own.py", True),
        ("m/code/__torch__/own.py.debug_pkl", False),
        ("m/.data/serialization_id", False),
        ("m/data.pkl", True),
        ("m/version", True),
    ],
)
def test_debug_records_and_the_id_are_left_out(name: str, needed: bool) -> None:
    assert is_needed(name) == needed


class Twice(nn.Module):
    """Layers of one class with other constants, so that their code differs."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            [nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Sequential(nn.Tanh(), nn.Linear(3, 3))]
        )

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


def test_a_rewritten_archive_has_the_answers_of_the_original(tmp_path: Path) -> None:
    module, x = Twice().eval(), torch.randn(4, 3)
    for index in range(2):
        torch.jit.script(nn.Sequential(*[nn.Sequential(nn.ReLU()) for _ in range(index)]))  # other numbers
        torch.jit.script(module).save(str(tmp_path / "whole.pt"))
        rewrite(tmp_path / "whole.pt", tmp_path / f"{index}.pt")
        assert torch.equal(torch.jit.load(str(tmp_path / f"{index}.pt"))(x), module(x))
    assert (tmp_path / "0.pt").read_bytes() == (tmp_path / "1.pt").read_bytes()
    with zipfile.ZipFile(tmp_path / "0.pt") as entries:
        assert {entry.date_time for entry in entries.infolist()} == {(1980, 1, 1, 0, 0, 0)}


class Bad(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return eval("x")


def test_the_deepest_layer_with_the_reason_of_the_whole_is_to_blame() -> None:
    from osa_runtime.exporters.folding import reason

    module = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Sequential(Bad())))
    with pytest.raises(Exception, match="eval") as raised:
        torch.jit.script(module)
    assert _culprit(module, reason(raised.value)) == "1.0.0"
    assert _culprit(nn.Sequential(nn.Linear(2, 2)), "anything") == ""
