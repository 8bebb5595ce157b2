"""Every file that an ONNX model takes a tensor from is found, wherever in the model the tensor is."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from osa_runtime.artifact import Artifact, describe_files
from osa_runtime.errors import ArtifactError
from osa_runtime.external_data import ENTRY, FIELDS, external_files
from osa_runtime.interface import TensorSpec
from osa_runtime.manifest import Manifest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402 - after the skip


def outside(location: str) -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="offset", value="0")
    tensor.external_data.add(key="location", value=location)
    return tensor


def graph(*nodes: onnx.NodeProto, **fields: object) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), "g", [], [], **fields)


def constant(tensor: TensorProto) -> onnx.NodeProto:
    return helper.make_node("Constant", [], ["c"], value=tensor)


def in_subgraph(tensor: TensorProto) -> onnx.ModelProto:
    branch = graph(helper.make_node("If", ["a"], ["b"], then_branch=graph(initializer=[tensor]), else_branch=graph()))
    return helper.make_model(graph(helper.make_node("Loop", [], [], body=branch)))


def in_function(tensor: TensorProto) -> onnx.ModelProto:
    function = helper.make_function("d", "f", [], ["c"], [constant(tensor)], [helper.make_opsetid("", 18)])
    return helper.make_model(graph(), functions=[function])


def in_default(tensor: TensorProto) -> onnx.ModelProto:
    model = in_function(TensorProto())
    model.functions[0].attribute_proto.append(helper.make_attribute("value", tensor))
    return model


def in_sparse(tensor: TensorProto) -> onnx.ModelProto:
    sparse = onnx.SparseTensorProto(values=TensorProto(), indices=tensor, dims=[3])
    return helper.make_model(graph(sparse_initializer=[sparse]))


def in_list(tensor: TensorProto) -> onnx.ModelProto:
    return helper.make_model(graph(helper.make_node("N", [], [], tensors=[TensorProto(), tensor])))


def in_training(tensor: TensorProto) -> onnx.ModelProto:
    model = helper.make_model(graph())
    model.training_info.add(algorithm=graph(initializer=[tensor]))
    return model


PLACES: dict[str, Callable[[TensorProto], onnx.ModelProto]] = {
    "initializer": lambda tensor: helper.make_model(graph(initializer=[tensor])),
    "constant": lambda tensor: helper.make_model(graph(constant(tensor))),
    "subgraph": in_subgraph,
    "function": in_function,
    "default of an attribute": in_default,
    "sparse": in_sparse,
    "list": in_list,
    "training": in_training,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("location", ["more.bin", "../elsewhere/w", "/etc/passwd", "ü"])
def test_found_wherever_it_is(place: str, location: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(PLACES[place](outside(location)).SerializeToString())
    assert external_files(path) == {location}


def test_the_table_has_every_way_to_a_tensor() -> None:
    """Compared with onnx's own description of its messages."""

    def reaches(message: object, seen: frozenset[str] = frozenset()) -> bool:
        if message.name == "TensorProto":  # type: ignore[attr-defined]
            return True
        inside = [f.message_type for f in message.fields if f.message_type is not None]  # type: ignore[attr-defined]
        return any(reaches(m, seen | {message.name}) for m in inside if m.name not in seen)  # type: ignore[attr-defined]

    for name, fields in FIELDS.items():
        descriptor = getattr(onnx, name).DESCRIPTOR
        wanted = {
            f.number: f.message_type.name for f in descriptor.fields if f.message_type and reaches(f.message_type)
        }
        if name == "TensorProto":
            wanted = {f.number: ENTRY for f in descriptor.fields if f.name == "external_data"}
        assert fields == wanted, name


def artifact(folder: Path, location: str) -> Path:
    (folder / "model.onnx").write_bytes(PLACES["constant"](outside(location)).SerializeToString())
    (folder / "model.onnx.data").write_bytes(bytes(12))
    specs = (TensorSpec("x", "float32", (1,)),)
    manifest = Manifest(format="onnx", inputs=specs, outputs=specs, parameters=3, files=describe_files(folder))
    (folder / "manifest.json").write_text(manifest.to_json())
    return folder


def test_files_that_the_manifest_lists_are_fine(tmp_path: Path) -> None:
    Artifact.open(artifact(tmp_path, "model.onnx.data")).check_files()


@pytest.mark.parametrize("location", ["other.bin", "./model.onnx.data", "../model.onnx.data", "certificate.json", ""])
def test_others_are_refused(location: str, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"takes weights from .* does not list"):
        Artifact.open(artifact(tmp_path, location)).check_files()


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"prepacked_0": "x|0|16|1"}, "expected location, offset and length, each once"),
        ({"checksum": "00"}, "expected location, offset and length, each once"),
        ({"offset": "8"}, "offset, offset, expected"),
        ({"location": "other.bin"}, "location, location, offset, expected"),
        *(({"length": text}, "expected a whole number") for text in ("", " 4", "+4", "04", "0x4", "1_0", "-1", "٤")),
    ],
    ids=str,
)
@pytest.mark.parametrize("place", PLACES)
def test_what_readers_may_take_in_two_ways_is_refused(
    entries: dict[str, str], message: str, place: str, tmp_path: Path
) -> None:
    path, tensor = tmp_path / "m.onnx", outside("more.bin")
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    path.write_bytes(PLACES[place](tensor).SerializeToString())
    with pytest.raises(ArtifactError, match=message):
        external_files(path)


@pytest.mark.parametrize("values", [{"raw_data": bytes(12)}, {"float_data": [1.0, 2.0, 3.0]}], ids=str)
def test_values_beside_external_data_are_refused(values: dict[str, object], tmp_path: Path) -> None:
    tensor = outside("more.bin")
    tensor.MergeFrom(TensorProto(**values))
    (tmp_path / "m.onnx").write_bytes(PLACES["initializer"](tensor).SerializeToString())
    with pytest.raises(ArtifactError, match=r"values of its own and others in 'more\.bin'"):
        external_files(tmp_path / "m.onnx")


def test_damage_is_an_error_of_ours_or_harmless(tmp_path: Path) -> None:
    path, generator = tmp_path / "m.onnx", random.Random(0)
    good = in_subgraph(outside("more.bin")).SerializeToString()
    for length in range(len(good)):
        content = bytearray(good[:length])
        if length % 2 and content:
            content[generator.randrange(length)] ^= 1 << generator.randrange(8)
        path.write_bytes(content)
        with contextlib.suppress(ArtifactError):
            external_files(path)
