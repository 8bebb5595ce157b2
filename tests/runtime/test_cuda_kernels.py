"""CUDA without a device, and with one (`make test-gpu`).

Every node of what is exported for ONNX Runtime has a kernel in the table of kernels, and the table names no type that
the CUDA library of the installed wheel has no kernel class for: its type information holds their names.
"""

from __future__ import annotations

import mmap
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from attention_models import attention_model
from made_once import export_checkpoint
from osa_runtime import load
from osa_runtime.exporters import FunctionChoice
from osa_runtime.inspection.kernel_coverage import expand, place
from osa_runtime.runtime.device import CUDA_PROVIDER, driver_loads, installed_wheels, onnx_cuda_problem
from osa_runtime.runtime.kernels import _TABLE, CUDA_KERNELS, KernelList, _kernels, list_kernels

Exported = Callable[[str, str], Path]
CUDA = KernelList("cuda", "the table", tuple(_kernels(CUDA_KERNELS)), complete=False, newest_version=21)
MANGLED = {
    "f": "float",
    "d": "double",
    "a": "int8",
    "s": "int16",
    "i": "int32",
    "l": "int64",
    "h": "uint8",
    "t": "uint16",
    "j": "uint32",
    "m": "uint64",
    "b": "bool",
    "NS_9MLFloat16E": "float16",
    "NS_8BFloat16E": "bfloat16",
}
NO_CUDA = onnx_cuda_problem() if driver_loads() else "no NVIDIA driver on this machine"
needs_cuda = pytest.mark.skipif(NO_CUDA is not None, reason=str(NO_CUDA))
ON_THE_HOST = {"Shape", "Size", "Range", "ConstantOfShape", "If", "Loop", "Scan"}  # sizes are computed there


@pytest.fixture(scope="module")
def classes() -> dict[str, set[str]]:
    """The kernel classes of the installed CUDA library that are templates of one type, with their types."""
    library = Path(onnxruntime.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"
    if not library.exists():
        pytest.skip("the wheel of ONNX Runtime without CUDA is installed")
    found: defaultdict[str, set[str]] = defaultdict(set)
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for length, rest in re.findall(rb"N11onnxruntime4cuda(\d{1,2})([A-Za-z]\w+)", content):
            name, arguments = rest[: int(length)].decode(), rest[int(length) :].decode()
            if arguments.startswith("I") and arguments[1:].removesuffix("EE") in MANGLED:
                found[name].add(MANGLED[arguments[1:].removesuffix("EE")])
    return dict(found)


def test_the_table_is_that_of_the_installed_library(classes: dict[str, set[str]]) -> None:
    assert installed_wheels() == {"onnxruntime-gpu": onnxruntime.__version__}
    compared = [operator for operator in _TABLE if operator in classes]
    assert (len(compared), len(_TABLE)) == (43, 76)  # as docs/cuda.md says
    missing = {
        (operator, kind)
        for operator in compared
        for _, types in _TABLE[operator][-1:]
        for kind in types.get("T", "").split()
        if kind not in classes[operator]
    }
    assert missing == set()


@pytest.fixture(scope="module")
def for_a_cuda_graph(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkpoint = exported("encoder", "onnx").parent / "encoder"
    out = tmp_path_factory.mktemp("graph") / "encoder"
    return export_checkpoint(checkpoint, out, target="cuda-graph", form="lowrank").folder


@pytest.mark.parametrize("model", ["vit", "encoder"])
def test_every_node_has_a_cuda_kernel(exported: Exported, model: str) -> None:
    coverage = place(expand(onnx.load(exported(model, "onnx") / "model.onnx")), CUDA, list_kernels("cpu"))
    assert coverage.gaps == ()
    assert coverage.nodes > 50


@pytest.mark.parametrize(
    "choice",
    [
        FunctionChoice(),
        FunctionChoice(masked=True, any_type=False),
        FunctionChoice(form="lowrank", approximant="pade"),
        FunctionChoice(form="lowrank", squarings=4),
    ],
    ids=["auto", "masked", "pade", "straight"],
)
def test_every_node_of_every_form_has_a_cuda_kernel(choice: FunctionChoice) -> None:
    assert place(expand(attention_model(choice)), CUDA, list_kernels("cpu")).gaps == ()


def test_every_node_for_a_cuda_graph_has_a_kernel_and_none_computes_sizes(
    for_a_cuda_graph: Path, tmp_path: Path
) -> None:
    """After the folding that ONNX Runtime does for every provider, nothing is left that belongs on the host."""
    path = for_a_cuda_graph / "model.onnx"
    assert place(expand(onnx.load(path)), CUDA, list_kernels("cpu")).gaps == ()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(tmp_path / "folded.onnx")
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    left = {node.op_type for node in onnx.load(tmp_path / "folded.onnx").graph.node}
    assert "MatMul" in left or "FusedMatMul" in left
    assert left & ON_THE_HOST == set()


@pytest.mark.gpu
@needs_cuda
def test_a_captured_graph_returns_what_the_cpu_returns(for_a_cuda_graph: Path) -> None:
    options = {"enable_cuda_graph": "1", "use_tf32": "0"}
    session = onnxruntime.InferenceSession(for_a_cuda_graph / "model.onnx", providers=[(CUDA_PROVIDER, options)])
    generator = np.random.default_rng(0)
    with load(for_a_cuda_graph) as cpu:
        (tokens, mask), (logits,) = cpu.inputs, cpu.outputs
        feeds = {tokens.name: np.zeros(tokens.shape, np.int64), mask.name: np.ones(mask.shape, bool)}
        values = {n: onnxruntime.OrtValue.ortvalue_from_numpy(x, "cuda", 0) for n, x in feeds.items()}
        out = onnxruntime.OrtValue.ortvalue_from_shape_and_type(logits.shape, np.float32, "cuda", 0)
        binding = session.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output(logits.name, out)
        for _ in range(4):  # the first run captures, the others replay with new values at the same addresses
            feeds[tokens.name] = generator.integers(0, 11, tokens.shape)
            values[tokens.name].update_inplace(feeds[tokens.name])
            session.run_with_iobinding(binding)
            np.testing.assert_allclose(out.numpy(), cpu.run(feeds)[logits.name], rtol=0, atol=2e-5)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("model", ["vit", "encoder"])
def test_only_sizes_are_computed_on_the_host(exported: Exported, model: str) -> None:
    with load(exported(model, "onnx"), device="cuda") as session:
        on_cpu = session.placement.cpu_nodes or ()
        assert not [node for node in on_cpu if re.search(r"\((MatMul|Gemm|FusedMatMul|Softmax|ReduceSum)\)", node)]
