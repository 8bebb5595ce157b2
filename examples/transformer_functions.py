"""An ordinary transformer as an ONNX model with one node per layer; see docs/functions.md.

python examples/transformer_functions.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor, nn

from osa_runtime.exporters import export


class Classifier(nn.Module):
    """PyTorch's own encoder, nothing of this package."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.embed = nn.Embedding(100, 32)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(32, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(tokens)).mean(1))


def main(folder: Path) -> None:
    torch.manual_seed(0)
    model = Classifier().eval()
    artifact = export(
        model,
        torch.randint(0, 100, (2, 7)),
        folder / "classifier",
        input_names=["tokens"],
        output_names=["logits"],
        dynamic_shapes={"tokens": {0: "batch", 1: "length"}},
        value_ranges={"tokens": {"min": 0, "max": 99}},
        functions=[nn.TransformerEncoderLayer, nn.MultiheadAttention],
    )
    graph = onnx.load(artifact.model_path)
    for node in graph.graph.node:
        print(f"{node.name:40} {node.domain or 'ai.onnx'}.{node.op_type}")
    for function in graph.functions:
        print(f"{function.domain}.{function.name}: {len(function.node)} nodes, inputs {', '.join(function.input)}")
    tokens = np.random.default_rng(0).integers(0, 100, (3, 11))
    logits = onnxruntime.InferenceSession(artifact.model_path).run(None, {"tokens": tokens})[0]
    with torch.no_grad():
        distance = np.abs(logits - model(torch.from_numpy(tokens)).numpy()).max()
    print(f"ONNX Runtime and PyTorch are {distance:.1e} apart on a batch of another size")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
