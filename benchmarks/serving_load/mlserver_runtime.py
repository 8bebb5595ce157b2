"""ONNX models behind MLServer, in its own environment; MLServer imports this."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class OnnxModel(MLModel):
    async def load(self) -> bool:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        file = Path(str(self.settings.parameters.uri)) / "model.onnx"
        self._session = onnxruntime.InferenceSession(str(file), options)
        self._output = self._session.get_outputs()[0].name
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        feeds = {tensor.name: NumpyCodec.decode_input(tensor) for tensor in payload.inputs}
        (array,) = self._session.run(None, feeds)
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output(self._output, array)])
