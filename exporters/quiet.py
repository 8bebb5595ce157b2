"""Silence for torch's notes to its own developers while it captures a model."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    # On an error torch also prints the graph it had got to.
    with contextlib.ExitStack() as silence:
        silence.callback(logging.disable, level)
        silence.enter_context(contextlib.redirect_stdout(io.StringIO()))
        silence.enter_context(contextlib.redirect_stderr(io.StringIO()))
        silence.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield
