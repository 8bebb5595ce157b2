"""``osa doctor``: a check of what this machine can run, with a remedy for what it cannot."""

from __future__ import annotations

import importlib
import json
import os
import platform
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import typer

from osa_runtime import __version__
from osa_runtime.environment import package_versions, usable_cores
from osa_runtime.errors import MissingDependencyError
from osa_runtime.runtime.device import ProviderStatus, installed_wheels, probe_providers, wheel_problem


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Show what this machine can run, and how to repair what it cannot.

    Starts each ONNX Runtime provider instead of trusting the list that the wheel was built with.
    Exits with 0 when models can be run here and with 3 when they cannot.

    [bold]Examples[/bold]

    [cyan]osa doctor[/cyan]

    [cyan]osa doctor --json | jq .providers[/cyan]
    """
    diagnosis = diagnose()
    typer.echo(json.dumps(diagnosis.as_dict(), indent=2) if as_json else render(diagnosis))
    if diagnosis.problems:
        raise typer.Exit(3)


PACKAGES = ("numpy", "torch", "safetensors", "onnx", "onnxscript", "scikit-learn", "matplotlib")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Diagnosis:
    """``problems`` prevent models from running, and each includes its remedy; ``notes`` do not."""

    osa_runtime: str
    python: str
    platform: str
    packages: dict[str, str | None]
    onnxruntime: dict[str, str]
    providers: tuple[ProviderStatus, ...]
    torch_cuda: str | None
    threads: dict[str, int | str]
    model_cache: str
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "healthy": not self.problems}


def diagnose() -> Diagnosis:
    """Examine this machine; takes a second or two, since torch and every provider are actually loaded."""
    wheels = installed_wheels()
    providers, problems = _providers(wheels)
    return Diagnosis(
        osa_runtime=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        packages=dict.fromkeys(PACKAGES) | package_versions(PACKAGES),
        onnxruntime=wheels,
        providers=providers,
        torch_cuda=_torch_cuda(),
        threads=_threads(),
        model_cache=_model_cache(),
        problems=problems,
        notes=_notes(providers),
    )


def _providers(wheels: dict[str, str]) -> tuple[tuple[ProviderStatus, ...], list[str]]:
    problem = wheel_problem(wheels)
    if problem:
        return (), [problem]
    try:
        providers = probe_providers()
    except MissingDependencyError as error:
        return (), [str(error)]
    if any(provider.loads for provider in providers):
        return providers, []
    return providers, [f"No provider loads. Reinstall it: `pip install --force-reinstall {' '.join(wheels)}`."]


def _notes(providers: tuple[ProviderStatus, ...]) -> list[str]:
    if not any(p.name == "CUDAExecutionProvider" and not p.loads for p in providers):
        return []
    remedy = '`pip install "onnxruntime-gpu[cuda,cudnn]"` installs the libraries'
    return [f"CUDA does not load, so models run on the CPU. On a machine with an NVIDIA driver, {remedy}."]


def _torch_cuda() -> str | None:
    """The CUDA device that torch would use, ``none``, the reason why torch does not start, or None without torch."""
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError:
        return None
    except (ImportError, OSError) as error:  # OSError: one of its shared libraries is missing
        return f"unknown, torch cannot be imported: {error}"
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"


def _threads() -> dict[str, int | str]:
    set_by_user = {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ}
    return {"usable cores": usable_cores(), **set_by_user}


def _model_cache() -> str:
    from osa_runtime.runtime.optimized_copies import cache_folder  # here, because it imports numpy

    folder = cache_folder()
    if folder is None:
        return "off"
    copies = list(folder.glob("*.ort")) if folder.is_dir() else []
    return f"{folder}, {len(copies)} models, {sum(path.stat().st_size for path in copies) / 1e6:.0f} MB"


def render(diagnosis: Diagnosis) -> str:
    """The text of ``osa doctor``: plain lines, so that it reads the same in a terminal, a log and a bug report."""
    lines = [f"osa-runtime {diagnosis.osa_runtime} · Python {diagnosis.python} · {diagnosis.platform}", "", "Packages"]
    lines += [_row(name, version or "not installed") for name, version in diagnosis.packages.items()]
    lines += [_row(name, version) for name, version in diagnosis.onnxruntime.items()]
    lines += ["", "ONNX Runtime providers"]
    lines += [_row(p.name, "loads" if p.loads else f"does not load: {p.reason}") for p in diagnosis.providers]
    lines += ["", "Machine", _row("torch CUDA device", diagnosis.torch_cuda or "torch is not installed")]
    lines += [_row(name, str(value)) for name, value in diagnosis.threads.items()]
    lines += [_row("cache of loaded models", diagnosis.model_cache)]
    lines += [""] + [f"note: {note}" for note in diagnosis.notes]
    lines += [f"problem: {problem}" for problem in diagnosis.problems] or ["Healthy: models can be run here."]
    return "\n".join(lines)


def _row(name: str, value: str) -> str:
    return f"  {name:<27}{value}"
