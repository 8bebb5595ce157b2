"""Verification: an exported model against eager PyTorch and against the definition of OSA, layer by layer."""

from osa_runtime.verification.comparing import compare
from osa_runtime.verification.settings import Run, VerifySettings
from osa_runtime.verification.verifying import verify

__all__ = ["Run", "VerifySettings", "compare", "verify"]
