"""Programs of torch.export, compiled by the package of the runtime that takes them: ExecuTorch, LiteRT, AOTInductor."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from osa_runtime.errors import ExportError, InputError, MissingDependencyError
from osa_runtime.steps import quiet
from osa_runtime.targets import Target, target_named

Run = Callable[[Sequence[Tensor]], list[NDArray[np.generic]]]


def compiler_of(name: str) -> Target | None:
    """The target, if it has a compiler of its own. One that is not installed is refused before the long work."""
    target = target_named(name)
    if target.package is None:
        return None
    if importlib.util.find_spec(target.package) is None:
        raise MissingDependencyError(
            f"target={target.name!r} writes {target.file} with the package {target.package}, which is not installed; "
            f"install it, or export with {' and '.join(f'{key}={value!r}' for key, value in target.options.items())} "
            "and convert the program where it is."
        )
    return target


def compile_program(program: Path, target: Target, example: Sequence[Tensor]) -> Run:
    """Write the compiled file next to the program; returns a function that runs it."""
    assert target.file is not None
    path = program.with_name(target.file)
    writer, reader = COMPILERS[target.name]
    try:
        with quiet(), torch.no_grad():
            writer(torch.export.load(program), path, example)
            return reader(path)
    except Exception as error:
        reason = " ".join(str(error).split())[:400]
        raise ExportError(f"{target.runtime} cannot compile the exported program: {reason}") from error


def _write_executorch(program: torch.export.ExportedProgram, path: Path, _: Sequence[Tensor]) -> None:
    from executorch.exir import to_edge

    # exp2 is not a core operator; the library function behind pow is exact for powers of two
    table = torch.export.default_decompositions() | {torch.ops.aten.exp2.default: lambda x: torch.pow(2.0, x)}
    path.write_bytes(to_edge(program.run_decompositions(table)).to_executorch().buffer)


def _run_executorch(path: Path) -> Run:
    from executorch.runtime import Runtime

    method = Runtime.get().load_program(path).load_method("forward")
    return lambda inputs: _arrays(method.execute([x.contiguous() for x in inputs]))


def _write_litert(program: torch.export.ExportedProgram, path: Path, example: Sequence[Tensor]) -> None:
    import litert_torch

    litert_torch.convert(for_litert(program).module(), tuple(example)).export(str(path))


def for_litert(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program without operators that LiteRT lacks, or that return something else there."""
    table = torch.export.default_decompositions() | {
        torch.ops.aten.exp2.default: lambda x: torch.pow(2.0, x),
        torch.ops.aten.add.Tensor: _plain_sum,
        # LiteRT's own kernels of these two return a number for NaN, and would hide that an answer has no digits
        torch.ops.aten.leaky_relu.default: lambda x, slope=0.01: x * torch.where(x < 0, slope, 1.0),
        torch.ops.aten.relu.default: lambda x: torch.where(x <= 0, 0.0, x),
    }
    return program.run_decompositions(table)


def _plain_sum(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return NotImplemented if alpha == 1 else x + alpha * y


def _run_litert(path: Path) -> Run:
    import litert_torch

    model = litert_torch.load(str(path))
    return lambda inputs: _arrays(model(*map(narrowed, inputs)))


def narrowed(x: Tensor) -> Tensor:
    """Ids as int32, which LiteRT's converter makes of int64; ids beyond it are an error."""
    if x.dtype != torch.int64:
        return x
    if bool((x != x.to(torch.int32)).any()):
        raise InputError(f"LiteRT takes int32; received ids from {int(x.min())} to {int(x.max())}.")
    return x.to(torch.int32)


def _write_aoti(program: torch.export.ExportedProgram, path: Path, _: Sequence[Tensor]) -> None:
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))


def _run_aoti(path: Path) -> Run:
    model = torch._inductor.aoti_load_package(str(path))
    return lambda inputs: _arrays(model(*inputs))


def _arrays(outputs: Any) -> list[NDArray[np.generic]]:
    found = outputs if isinstance(outputs, (tuple, list)) else [outputs]
    return [torch.as_tensor(x).detach().clone().numpy() for x in found]


COMPILERS: dict[str, tuple[Callable[..., None], Callable[[Path], Run]]] = {
    "executorch": (_write_executorch, _run_executorch),
    "litert": (_write_litert, _run_litert),
    "aoti": (_write_aoti, _run_aoti),
}
