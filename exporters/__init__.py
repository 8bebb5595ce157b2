"""Exporters: trained models out of the notebook, as ONNX with custom functions, TorchScript and torch.export.

    from osa_runtime.exporters import export
    artifact = export(module, (example,), "out", dynamic_shapes={"x": {0: "batch"}})

For people who build graphs by hand, ``build_functions`` gives the ``ai.osa`` function definitions.
"""

from osa_runtime.exporters.checkpoint_export import export_checkpoint
from osa_runtime.exporters.export import export
from osa_runtime.exporters.functions import FunctionChoice, build_functions

__all__ = ["FunctionChoice", "build_functions", "export", "export_checkpoint"]
