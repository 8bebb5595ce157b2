"""The text format, read back by protobuf itself."""

from __future__ import annotations

import pytest

from osa_runtime.packaging.triton_config import Word, map_entries, to_text

pytest.importorskip("tritonclient.grpc")
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig


def parsed(message: dict[str, object]) -> ModelConfig:
    return text_format.Parse(to_text(message), ModelConfig())


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        'a "quote"',
        "back\\slash",
        "\\n",
        "line\nbreak\r\ttab",
        "\x00\x017",
        "naïve ‖S‖ 😀",
        "",
        " {}[]:#' ",
        "?",
    ],
    ids=ascii,
)
def test_strings_come_back_as_they_were(text: str) -> None:
    assert parsed({"name": text}).name == text
    assert to_text({"name": text}).isascii()


def test_fields_of_every_kind() -> None:
    config = parsed(
        {
            "name": "m",
            "max_batch_size": 4,
            "input": [
                {"name": "a", "data_type": Word("TYPE_FP16"), "dims": [-1, 3], "optional": True},
                {"name": "b", "data_type": Word("TYPE_BOOL"), "dims": [1], "reshape": {"shape": []}},
            ],
            "dynamic_batching": {},
            "parameters": map_entries({"threads": {"string_value": "2"}}),
        }
    )
    assert [list(tensor.dims) for tensor in config.input] == [[-1, 3], [1]]
    assert [tensor.optional for tensor in config.input] == [True, False]
    assert [tensor.HasField("reshape") for tensor in config.input] == [False, True]
    assert config.HasField("dynamic_batching")
    assert config.parameters["threads"].string_value == "2"


@pytest.mark.parametrize("value", [1.5, None, b"bytes"], ids=repr)
def test_what_has_no_text_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="cannot be written to a configuration"):
        to_text({"name": value})
