"""Run as a script in a process of its own: check that one execution provider of ONNX Runtime loads.

A broken driver can crash the process, and ONNX Runtime writes the reason for a failure to stderr only: a child
process survives the one and collects the other. The last line on stdout is ``loads`` or ``fails: reason``.
"""

from __future__ import annotations

import sys

# A float32[1] Identity, opset 18, IR 8: small, and every provider supports it. `onnx` is not installed where models
# are only run, so the bytes are kept here; tests/runtime/test_providers.py builds them again with onnx and compares.
IDENTITY_MODEL = (
    b'\x08\x08:;\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x05probeZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\x12"
)


def probe(name: str) -> str:
    try:
        import onnxruntime as ort

        options = ort.SessionOptions()
        if name != "CPUExecutionProvider":
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        session = ort.InferenceSession(IDENTITY_MODEL, options, providers=[name], enable_fallback=0)
    except Exception as error:  # noqa: BLE001 - any error is the answer
        return f"fails: {' '.join(str(error).split())}"
    if name not in session.get_providers():
        return f"fails: ONNX Runtime chose {', '.join(session.get_providers())} instead"
    return "loads"


if __name__ == "__main__":
    print(probe(sys.argv[1]))  # noqa: T201 - the answer to the parent process
