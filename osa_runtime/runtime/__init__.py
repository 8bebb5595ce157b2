"""Running exported models. Nothing here imports torch: ONNX Runtime and numpy are enough to serve an artifact."""

from __future__ import annotations

from osa_runtime.runtime.providers import ProviderStatus, probe_provider, probe_providers
from osa_runtime.runtime.wheels import installed_wheels, wheel_problem

__all__ = ["ProviderStatus", "installed_wheels", "probe_provider", "probe_providers", "wheel_problem"]
