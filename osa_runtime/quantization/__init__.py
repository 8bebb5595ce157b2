"""Smaller models: an artifact in, an artifact with 8-bit weights out, by ONNX Runtime's own quantiser; without torch.

from osa_runtime.quantization import quantize
smaller = quantize("digits-onnx", "digits-int8")
"""

from osa_runtime.quantization.quantizing import Quantized, QuantizeSettings, quantize

__all__ = ["QuantizeSettings", "Quantized", "quantize"]
