"""A script that asks ONNX Runtime about one execution provider, in a process of its own.

A broken driver can crash the process, ONNX Runtime crashes while it lists kernels when a provider in its wheel cannot
load its libraries, and it writes the reason for a failure to stderr only: a child process survives the one and
collects the other. The last line on stdout is the answer, as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

# A float32[1] Identity, opset 18, IR 8: small, and every provider supports it. `onnx` is not installed where models
# are only run, so the bytes are kept here; tests/runtime/test_providers.py builds them again with onnx and compares.
IDENTITY_MODEL = (
    b'\x08\x08:;\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x05probeZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\x12"
)


def failure(name: str) -> str | None:
    """The reason why the provider does not load; None if it does."""
    try:
        import onnxruntime as ort

        options = ort.SessionOptions()
        if name != "CPUExecutionProvider":
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        session = ort.InferenceSession(IDENTITY_MODEL, options, providers=[name], enable_fallback=0)
    except Exception as error:  # noqa: BLE001 - any error is the answer
        return " ".join(str(error).split())
    if name not in session.get_providers():
        return f"ONNX Runtime chose {', '.join(session.get_providers())} instead"
    return None


def kernels(name: str) -> list[Any]:
    """The kernels that ONNX Runtime has registered for the provider."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    try:
        found = state.get_registered_ep_kernel_defs(name)
    except (AttributeError, RuntimeError):  # an older release, or a provider that cannot be asked alone
        found = [kernel for kernel in state.get_all_opkernel_def() if kernel.provider == name]
    return [[k.domain, k.op_name, *k.version_range, k.type_constraints] for k in found]


if __name__ == "__main__":
    print(json.dumps({"failure": failure, "kernels": kernels}[sys.argv[1]](sys.argv[2])))  # noqa: T201
