"""The wheel that provides the module ``onnxruntime``: none, one, or several that overwrote each other."""

from __future__ import annotations

from osa_runtime.environment import package_versions

# Every distribution that installs files under the same name `onnxruntime`.
WHEELS = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-migraphx",
    "onnxruntime-openvino",
    "onnxruntime-qnn",
    "onnxruntime-rocm",
    "onnxruntime-training",
)


def installed_wheels() -> dict[str, str]:
    """The installed distributions of ONNX Runtime and their versions."""
    return package_versions(WHEELS)


def wheel_problem(wheels: dict[str, str] | None = None) -> str | None:
    """The problem with the installed wheels and its remedy, or None if exactly one is installed."""
    wheels = installed_wheels() if wheels is None else wheels
    if not wheels:
        return (
            "ONNX Runtime is not installed. Install it with "
            '`pip install "osa-runtime[cpu]"`, or `pip install "osa-runtime[cuda]"` for NVIDIA GPUs.'
        )
    if len(wheels) == 1:
        return None
    listed = " and ".join(f"{name} {version}" for name, version in wheels.items())
    return (
        f"{listed} are installed together and overwrite each other's files. "
        f"Remove all of them, then install one: `pip uninstall -y {' '.join(wheels)}`, "
        'then `pip install "osa-runtime[cpu]"` or `pip install "osa-runtime[cuda]"`.'
    )
