"""Sessions that count squarings: the graph's own figures, and nothing else changes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from made_once import export_checkpoint
from osa_runtime import ArtifactError, load
from osa_runtime.runtime.onnx_session import with_counts
from small_models import feeds

Exported = Callable[[str, str], Path]


def test_each_layer_is_counted_and_larger_inputs_need_more(exported: Exported) -> None:
    with load(exported("vit", "onnx"), count_squarings=True) as session:
        assert session.squarings is not None
        assert session.squarings.latest == {}
        small = feeds("vit", 2, 1)
        large = {name: 100 * x for name, x in small.items()}
        session.run(small)
        few = dict(session.squarings.latest)
        session.run(large)
        many = dict(session.squarings.latest)
        session.run(small)
        assert few == session.squarings.latest
        assert many == session.squarings.most
        assert all(layer.endswith("attention") for layer in many)
        assert max(many.values()) > max(few.values())


@pytest.mark.parametrize("model", ["vit", "encoder"])
def test_outputs_and_interface_are_those_of_a_plain_session(exported: Exported, model: str, tmp_path: Path) -> None:
    checkpoint = exported(model, "onnx").parent / model
    folder = export_checkpoint(checkpoint, tmp_path / "a", form="auto").folder
    x = feeds(model, 3, 5)
    with load(folder) as plain, load(folder, count_squarings=True) as counting:
        assert plain.squarings is None
        assert (plain.inputs, plain.outputs) == (counting.inputs, counting.outputs)
        first, second = plain.run(x), counting.run(x)
        assert list(first) == list(second)
        for name, values in first.items():
            np.testing.assert_array_equal(values, second[name])


def test_nothing_is_counted_where_nothing_can_be(exported: Exported) -> None:
    with load(exported("vit", "onnx") / "model.onnx", count_squarings=True) as bare:
        assert bare.squarings is None
    with load(exported("vit", "torchscript"), count_squarings=True) as program:
        assert program.squarings is None


def test_a_manifest_that_names_a_value_that_is_not_there(exported: Exported, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(exported("vit", "onnx"), folder)
    path = folder / "manifest.json"
    fields = json.loads(path.read_text())
    fields["attentions"][0]["squarings"] = "nowhere"
    path.write_text(json.dumps(fields))
    with pytest.raises(ArtifactError, match="nowhere"):
        load(folder, count_squarings=True)


def test_what_is_appended_is_what_onnx_would_write(exported: Exported) -> None:
    path = exported("vit", "onnx") / "model.onnx"
    names = ["a", "x" * 300, "stack.blocks.0.attention/OrthogonalAttention.squarings"]
    found = onnx.load_from_string(with_counts(path.read_bytes(), names))
    wanted = onnx.load(str(path))
    wanted.graph.output.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, []) for name in names)
    assert found == wanted
