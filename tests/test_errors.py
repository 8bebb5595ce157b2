"""The exception tree: one root, honest built-in bases, exit codes as documented."""

from __future__ import annotations

import re

import pytest

from osa_runtime import errors

TREE = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.OsaError)]


@pytest.mark.parametrize("error", TREE, ids=lambda c: c.__name__)
def test_carries_message_docstring_and_exit_code(error: type[errors.OsaError]) -> None:
    assert str(error("what to do")) == "what to do"
    assert error.__doc__
    assert error.exit_code == (2 if issubclass(error, errors.InputError) else 3)


def test_can_be_caught_as_the_built_in_errors_they_are() -> None:
    assert issubclass(errors.InputError, ValueError)
    assert issubclass(errors.ConfigError, errors.InputError)
    assert issubclass(errors.ExponentRangeError, ArithmeticError)


def test_docstring_draws_the_whole_tree() -> None:
    assert set(re.findall(r"\b[A-Z]\w+Error\b", errors.__doc__ or "")) - {"ValueError", "ArithmeticError"} == {
        error.__name__ for error in TREE
    }
