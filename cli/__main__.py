"""``python -m osa_runtime.cli``, for environments in which the ``osa`` script is not on the path."""

from __future__ import annotations

from osa_runtime.cli.main import run

if __name__ == "__main__":
    run()
