from __future__ import annotations

import random
from pathlib import Path

import pytest

from osa_runtime.evidence.list_operations import TOKENS, expression, value_of, write_list_operations
from osa_runtime.training import load_sequences


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("[MAX 4 [MIN 7 2 ] 3 ]", 4), ("[SM 9 8 [MED 1 5 9 ] ]", 2), ("[MED 1 2 ]", 1), ("[MIN [MAX 1 ] ]", 1)],
)
def test_the_value_of_an_expression(text: str, value: int) -> None:
    assert value_of(text.split()) == value


@pytest.mark.parametrize("length", [1, 2, 3, 4, 17, 200])
def test_expressions_are_whole_and_no_longer_than_asked(length: int) -> None:
    for seed in range(20):
        tokens = expression(length, random.Random(seed))
        assert len(tokens) <= length
        assert 0 <= value_of(tokens) <= 9
        assert sum(token.startswith("[") for token in tokens) == tokens.count("]")


def test_the_file_is_data_for_an_encoder(tmp_path: Path) -> None:
    write_list_operations(tmp_path / "ops.npz", 30, 20, 40)
    data = load_sequences(tmp_path / "ops.npz")
    assert (data.x_train.shape, data.x_test.shape) == ((30, 40), (20, 40))
    for row in range(20):
        tokens = [TOKENS[i] for i in data.x_test[row, data.mask_test[row]]]
        assert value_of(tokens) == data.y_test[row]
