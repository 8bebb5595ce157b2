"""Running exported models. ONNX Runtime and numpy are enough; only torch's own formats need torch.

``session`` has ``load`` and ``Session``, which import numpy; importing this package does not.
"""

from __future__ import annotations

from osa_runtime.runtime.device import ProviderStatus, installed_wheels, probe_provider, probe_providers, wheel_problem

__all__ = ["ProviderStatus", "installed_wheels", "probe_provider", "probe_providers", "wheel_problem"]
