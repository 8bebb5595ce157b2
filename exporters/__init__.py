"""Exporters: trained models out of the notebook, as ONNX with custom functions, TorchScript and torch.export."""
