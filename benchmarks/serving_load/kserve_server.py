"""ONNX models behind KServe, in its own environment: python kserve_server.py HTTP_PORT GRPC_PORT FOLDER..."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import onnxruntime
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer


class OnnxModel(Model):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder.name)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options)
        self._output = self._session.get_outputs()[0].name
        self.ready = True

    async def predict(self, payload: InferRequest, headers: Any = None, response_headers: Any = None) -> InferResponse:  # noqa: ARG002 - KServe's signature
        feeds = {tensor.name: tensor.as_numpy() for tensor in payload.inputs}
        (array,) = self._session.run(None, feeds)
        output = InferOutput(self._output, list(array.shape), "FP32")
        output.set_data_from_numpy(array, binary_data=payload.use_binary_outputs or payload.from_grpc)
        # its own check of JSON answers wants an id, which the protocol does not
        return InferResponse(payload.id or "0", self.name, [output], use_binary_outputs=payload.use_binary_outputs)


if __name__ == "__main__":
    http, grpc, *folders = sys.argv[1:]
    server = ModelServer(http_port=int(http), grpc_port=int(grpc), workers=1, access_log_format=None)
    server.start([OnnxModel(Path(folder)) for folder in folders])
