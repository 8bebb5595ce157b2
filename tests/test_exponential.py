"""One description of how the exponential is evaluated, in layers, exports and manifests."""

from __future__ import annotations

import pytest

from osa_runtime import OrthogonalSelfAttention
from osa_runtime.errors import ConfigError, InputError
from osa_runtime.exponential import ExponentialMethod
from osa_runtime.exporters import FunctionChoice
from osa_runtime.exporters.manifest_entries import manifest_entry
from osa_runtime.exporters.settings import ExportSettings
from osa_runtime.manifest import AttentionSettings
from osa_runtime.models.config import ViTConfig

BAD = [{"form": "sparse"}, {"approximant": "euler"}, {"squarings": -1}, {"squarings": True}, {"squarings": "none"}]


@pytest.mark.parametrize("fields", BAD, ids=str)
def test_bad_values_are_refused_everywhere(fields: dict[str, object]) -> None:
    (name,) = fields
    for make in (ExponentialMethod, FunctionChoice, lambda **f: OrthogonalSelfAttention(8, 2, **f), ExportSettings):
        with pytest.raises(InputError, match=name):
            make(**fields)
    with pytest.raises(ConfigError, match=name):
        ViTConfig(classes=2, **fields)


def test_an_export_changes_what_it_was_asked_to_change() -> None:
    layer = OrthogonalSelfAttention(8, 2, form="lowrank", squarings=3)
    layer.evaluate(ExportSettings(approximant="pade").applied_to(layer.evaluation()))
    assert layer.evaluation() == ExponentialMethod("lowrank", "pade", 3)
    assert ExportSettings(squarings="auto").applied_to(layer.evaluation()).squarings == "auto"


def test_a_manifest_records_what_all_calls_have_in_common() -> None:
    one, other = ExponentialMethod("dense", "taylor", 3), ExponentialMethod("lowrank", "taylor", 3)
    assert _entry(one).evaluation == one
    entry = _entry(one, other)
    assert (entry.form, entry.squarings) == ("mixed", 3)
    assert entry.largest_norm == min(_entry(call).largest_norm for call in (one, other))
    assert entry.evaluation == ExponentialMethod(squarings=3)
    assert ExponentialMethod.recorded({}) == ExponentialMethod()
    assert manifest_entry([]) is None


def _entry(*calls: ExponentialMethod) -> AttentionSettings:
    found = manifest_entry(calls)
    assert found is not None
    return found
