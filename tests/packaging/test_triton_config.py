"""config.pbtxt, read by protobuf, against the models themselves as ONNX Runtime sees them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from osa_runtime.errors import ArtifactError, InputError
from osa_runtime.interface import Interface, TensorSpec
from osa_runtime.packaging.triton_config import TritonConfig, TritonSettings
from osa_runtime.packaging.triton_repository import package_triton

pytest.importorskip("tritonclient.grpc")
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

Artifacts = Callable[[str], Path]

TRITON_TYPES = {
    "tensor(float)": "TYPE_FP32",
    "tensor(float16)": "TYPE_FP16",
    "tensor(int64)": "TYPE_INT64",
    "tensor(bool)": "TYPE_BOOL",
}
BATCHES = {"vit": 32, "encoder": 32, "fp16": 32, "features": 32, "two-outputs": 32, "external": 32}
BATCHES |= {"static": 0, "total": 0}


def parsed(text: str) -> Any:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def packed(folder: Path, out: Path, **settings: Any) -> Any:
    (model,) = package_triton([folder], out, TritonSettings(**settings))
    return parsed((out / model.name / "config.pbtxt").read_text())


def type_name(tensor: Any) -> str:
    return model_config_pb2.DataType.Name(tensor.data_type)


def declared_shape(tensor: Any, max_batch: int) -> list[int]:
    """The whole shape that a configuration says the model has."""
    dims = list(tensor.reshape.shape) if tensor.HasField("reshape") else list(tensor.dims)
    return ([-1] if max_batch else []) + dims


@pytest.mark.parametrize("name", BATCHES)
def test_configuration_is_that_of_the_model(artifacts: Artifacts, tmp_path: Path, name: str) -> None:
    config = packed(artifacts(name), tmp_path / "repo")
    assert (config.backend, config.max_batch_size) == ("onnxruntime", BATCHES[name])
    version = tmp_path / "repo" / config.name / "1"
    session = onnxruntime.InferenceSession(str(version / "model.onnx"), providers=["CPUExecutionProvider"])
    for tensors, truth in ((config.input, session.get_inputs()), (config.output, session.get_outputs())):
        assert [tensor.name for tensor in tensors] == [value.name for value in truth]
        assert [type_name(tensor) for tensor in tensors] == [TRITON_TYPES[value.type] for value in truth]
        shapes = [[axis if isinstance(axis, int) else -1 for axis in value.shape] for value in truth]
        assert [declared_shape(tensor, config.max_batch_size) for tensor in tensors] == shapes
    assert not any(tensor.optional or tensor.allow_ragged_batch for tensor in config.input)
    assert config.HasField("dynamic_batching") is bool(BATCHES[name])


@pytest.mark.parametrize("backend", ["onnxruntime", "python"])
@pytest.mark.parametrize("name", BATCHES)
def test_warm_up_samples_have_the_sizes_that_the_configuration_says(
    artifacts: Artifacts, tmp_path: Path, name: str, backend: str
) -> None:
    config = packed(artifacts(name), tmp_path / "repo", backend=backend)
    assert [sample.batch_size for sample in config.model_warmup] == ([1, 32] if BATCHES[name] else [1])
    for sample in config.model_warmup:
        assert set(sample.inputs) == {tensor.name for tensor in config.input}
        for tensor in config.input:
            value = sample.inputs[tensor.name]
            assert value.data_type == tensor.data_type
            assert len(value.dims) == len(tensor.dims)
            assert all(size == fixed or fixed == -1 for size, fixed in zip(value.dims, tensor.dims, strict=True))
            assert min(value.dims) > 0
            width = {"TYPE_FP16": 2, "TYPE_FP32": 4, "TYPE_INT64": 8, "TYPE_BOOL": 1}[type_name(tensor)]
            file = tmp_path / "repo" / config.name / "warmup" / value.input_data_file
            assert file.stat().st_size == width * np.prod(value.dims)


def test_samples_hold_known_ids_and_real_tokens(artifacts: Artifacts, tmp_path: Path) -> None:
    package_triton([artifacts("encoder")], tmp_path / "repo", name="encoder")
    samples = tmp_path / "repo" / "encoder" / "warmup"
    ids = np.frombuffer((samples / "input0").read_bytes(), "<i8")
    assert 0 <= ids.min() < ids.max() <= 10
    assert (samples / "input1").read_bytes() == b"\x01" * len(ids)


def test_the_python_backend_fills_in_masks_and_pads(artifacts: Artifacts, tmp_path: Path) -> None:
    config = packed(artifacts("encoder"), tmp_path / "encoder", backend="python")
    assert [(t.name, t.optional, t.allow_ragged_batch) for t in config.input] == [
        ("tokens", False, True),
        ("mask", True, True),
    ]
    fixed = packed(artifacts("vit"), tmp_path / "vit", backend="python")
    assert not any(tensor.optional or tensor.allow_ragged_batch for tensor in fixed.input)


def test_settings_reach_the_configuration(artifacts: Artifacts, tmp_path: Path) -> None:
    chosen = dict(version=7, max_batch=8, preferred=(4, 8), max_delay_us=250, instances=3, threads=2, warm_up=False)
    config = packed(artifacts("vit"), tmp_path / "repo", **chosen)
    assert config.max_batch_size == 8
    assert list(config.dynamic_batching.preferred_batch_size) == [4, 8]
    assert config.dynamic_batching.max_queue_delay_microseconds == 250
    (group,) = config.instance_group
    assert (group.count, model_config_pb2.ModelInstanceGroup.Kind.Name(group.kind)) == (3, "KIND_CPU")
    assert config.parameters["intra_op_thread_count"].string_value == "2"
    assert config.version_policy.latest.num_versions == 1
    assert not config.model_warmup
    assert sorted(path.name for path in (tmp_path / "repo" / config.name).iterdir()) == ["7", "config.pbtxt"]


@pytest.mark.parametrize("backend", ["onnxruntime", "python"])
def test_cuda_keeps_its_full_precision(artifacts: Artifacts, tmp_path: Path, backend: str) -> None:
    config = packed(artifacts("vit"), tmp_path / "repo", device="cuda", backend=backend)
    assert model_config_pb2.ModelInstanceGroup.Kind.Name(config.instance_group[0].kind) == "KIND_GPU"
    accelerators = config.optimization.execution_accelerators.gpu_execution_accelerator
    # our own session sets the same itself
    assert [(a.name, dict(a.parameters)) for a in accelerators] == (
        [("cuda", {"use_tf32": "0"})] if backend == "onnxruntime" else []
    )


def interface(*shape: int | str, axes: dict[str, dict[str, int]] | None = None) -> Interface:
    return Interface((TensorSpec("x", "float32", shape),), (TensorSpec("y", "float32", shape),), axes or {})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (interface("batch", 4), 32),
        (interface("batch", 4, axes={"batch": {"min": 1, "max": 5}}), 5),
        (interface("batch", 4, axes={"batch": {"min": 2, "max": 64}}), 0),
        (interface(4, "batch"), 0),
        (interface(1, 4), 0),
    ],
    ids=["free", "limited", "two at least", "batch is not first", "fixed"],
)
def test_batches_are_those_that_the_model_takes(given: Interface, expected: int) -> None:
    config = parsed(TritonConfig("m", given, TritonSettings()).text({}, {}))
    assert config.max_batch_size == expected
    dims = [axis if isinstance(axis, int) else -1 for axis in given.inputs[0].shape]
    assert list(config.input[0].dims) == (dims[1:] if expected else dims)


def test_an_output_of_one_number_per_row_is_reshaped(artifacts: Artifacts, tmp_path: Path) -> None:
    config = packed(artifacts("two-outputs"), tmp_path / "repo")
    total = next(tensor for tensor in config.output if tensor.name == "total")
    assert (list(total.dims), total.HasField("reshape"), list(total.reshape.shape)) == ([1], True, [])


def test_a_scalar_input_is_refused() -> None:
    with pytest.raises(ArtifactError, match=r"Input x: float32\[\] is a scalar"):
        TritonConfig("m", interface(), TritonSettings()).text({}, {})


def test_a_preferred_size_beyond_the_models_is_refused() -> None:
    limited = interface("batch", 4, axes={"batch": {"max": 5}})
    with pytest.raises(InputError, match="preferred=8, but m takes at most 5"):
        TritonConfig("m", limited, TritonSettings(preferred=(8,))).text({}, {})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"backend": "pytorch"}, "backend='pytorch': expected onnxruntime or python"),
        ({"device": "tpu"}, "device='tpu'"),
        ({"version": 0}, "version=0"),
        ({"version": 10**18}, "version=10"),
        ({"max_batch": 0}, "max_batch=0"),
        ({"max_batch": 2**31}, "max_batch=2147483648"),
        ({"max_delay_us": -1}, "max_delay_us=-1"),
        ({"instances": 0}, "instances=0"),
        ({"threads": 0}, "threads=0"),
        ({"preferred": (64,)}, "preferred=64: expected a whole number from 1 to 32"),
        ({"instances": True}, "instances=True"),
    ],
    ids=str,
)
def test_wrong_settings_are_said(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TritonSettings(**wrong)
