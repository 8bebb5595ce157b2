"""References of every kind have a structure: other attentions, modules of one's own, factories."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from sabotage import signed
from structures import Compare
from torch import Tensor, nn

from osa_runtime.exporters import export
from osa_runtime.exporters.factory import export_factory
from osa_runtime.nn import OrthogonalSelfAttention
from osa_runtime.runtime.device import DeviceSettings
from osa_runtime.verification import VerifySettings, verify
from osa_runtime.verification.expectation import Expectation
from osa_runtime.verification.structure.check import check_structure
from osa_runtime.verification.subject import Subject

Deep = Callable[..., Path]
QUICK = VerifySettings(quick=True)

pytestmark = pytest.mark.slow

FACTORY = """
import torch
from osa_runtime.nn import OrthogonalSelfAttention

def build():
    torch.manual_seed(0)
    layer = OrthogonalSelfAttention(8, 2, alpha=0.3)
    return layer, (torch.zeros(2, 5, 8),), {"x": {0: "batch", 1: "tokens"}}, {"class_names": list("abcdefgh")}
"""


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = OrthogonalSelfAttention(8, 2, alpha=0.3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x).mean(1))


@pytest.mark.parametrize("attention", ["softmax", "polynomial"])
@pytest.mark.parametrize("kind", ["onnx", "torchscript"])
def test_other_attentions_are_proven_too(attention: str, kind: str, deep: Deep, compare: Compare) -> None:
    found = compare(deep(attention, format=kind), attention)
    assert [(check.name, check.passed) for check in found.checks] == [("structure", True)], found


@pytest.mark.parametrize("kind", ["onnx", "torchscript", "pt2"])
def test_a_module_of_ones_own_is_a_reference(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, axes = Own(), {"x": {0: "batch", 1: "tokens"}}
    export(module, (torch.randn(2, 5, 8),), tmp_path / "own", format=kind, dynamic_shapes=axes)
    certificate = verify(tmp_path / "own", settings=QUICK, module=module).certificate
    assert (certificate.verdict, certificate.basis) == ("pass", "structure and numbers"), certificate.failures()
    with torch.no_grad():
        module.head.bias[1] += 1e-7 + 1e-6 * module.head.bias[1].abs()  # less than any number would show
    with (subject := Subject.open(tmp_path / "own", DeviceSettings())).session:
        check = check_structure(subject, Expectation.of_module(module, subject)).checks[0]
    assert not check.passed
    assert "head.bias: 1 of 3 values differs, at (1)" in check.detail


def test_a_factory_is_a_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "reference_of_mine", raising=False)
    (tmp_path / "reference_of_mine.py").write_text(FACTORY)
    name = "reference_of_mine:build"
    export_factory(name, None, tmp_path / "a", format="torchscript")
    certificate = verify(tmp_path / "a", settings=QUICK, factory=name).certificate
    assert (certificate.verdict, certificate.basis) == ("pass", "structure and numbers"), certificate.failures()
    certificate = verify(signed(tmp_path / "a", class_names=list("abcdefhg")), settings=QUICK, factory=name).certificate
    structure = next(check for check in certificate.checks if check.name == "structure")
    assert not structure.passed
    assert "manifest class_names is" in structure.detail
