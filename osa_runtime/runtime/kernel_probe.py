"""Run as a script in a process of its own: the kernels that ONNX Runtime has registered for one provider, as JSON.

ONNX Runtime crashes while it lists kernels when one of the providers in its wheel cannot load its libraries,
so it is asked in a separate process. The last line on stdout is the list.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def probe(name: str) -> list[Any]:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    try:
        found = state.get_registered_ep_kernel_defs(name)
    except (AttributeError, RuntimeError):  # an older release, or a provider that cannot be asked alone
        found = [kernel for kernel in state.get_all_opkernel_def() if kernel.provider == name]
    return [[k.domain, k.op_name, *k.version_range, k.type_constraints] for k in found]


if __name__ == "__main__":
    print(json.dumps(probe(sys.argv[1])))  # noqa: T201 - the answer to the parent process
