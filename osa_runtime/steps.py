"""The steps of long work: announced as they happen, named in every error, without output of other packages."""

from __future__ import annotations

import contextlib
import io
import logging
import time
import warnings
from collections.abc import Callable, Iterator

from osa_runtime.errors import ExportError, OsaError

Listener = Callable[[str, float | None], None]


class Progress:
    """Calls ``listener(step, None)`` when a step starts and ``listener(step, seconds)`` when it is done."""

    def __init__(self, listener: Listener | None) -> None:
        self._tell = listener or (lambda _, __: None)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        self._tell(name, None)
        start = time.perf_counter()
        try:
            yield
        except (OsaError, KeyboardInterrupt):
            raise
        except Exception as error:
            reason = " ".join(str(error).split())
            raise ExportError(f"Export failed at the step '{name}': {type(error).__name__}: {reason[:600]}") from error
        self._tell(name, time.perf_counter() - start)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    # On an error torch also prints the graph so far.
    with contextlib.ExitStack() as silence:
        silence.callback(logging.disable, level)
        silence.enter_context(contextlib.redirect_stdout(io.StringIO()))
        silence.enter_context(contextlib.redirect_stderr(io.StringIO()))
        silence.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield
