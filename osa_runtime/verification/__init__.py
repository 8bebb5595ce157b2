"""Verification: an exported model against eager PyTorch and against the definition of OSA, layer by layer."""
