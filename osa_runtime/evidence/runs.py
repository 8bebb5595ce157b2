"""The bench of an experiment: its settings, and the runs that are finished, one file each.

OUT/experiment.json     which experiment the folder belongs to
OUT/runs/NAME.json      a finished run: what was asked, and what came out
OUT/runs/NAME/          a training run, which has a state of its own
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osa_runtime.atomic import atomic_file
from osa_runtime.errors import InputError, StorageError

MARKER = "experiment.json"
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Bench:
    """The folder and the settings of an experiment. ``tell`` shows a line of progress."""

    experiment: str
    out: Path
    quick: bool
    tell: Tell
    data: str | None = None
    data_folder: Path | None = None

    def open(self) -> None:
        """Claim the folder; one that holds another experiment, or runs of the other size, is refused."""
        mine = {"experiment": self.experiment, "quick": self.quick}
        marker = self.out / MARKER
        found = _read(marker) if marker.exists() else None
        if found not in (None, mine):
            raise InputError(f"out={self.out} holds {_words(found)}, not {_words(mine)}; choose another folder.")
        if found is None:
            if self.out.is_dir() and any(self.out.iterdir()):
                raise InputError(f"out={self.out} holds other files; choose a new folder, or an empty one.")
            write_json(marker, mine)

    def folder(self, name: str) -> Path:
        return self.out / "runs" / name

    def once(self, name: str, asked: dict[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result of ``make``, from now or from an earlier finished call with the same ``asked``."""
        path = self.folder(f"{name}.json")
        asked = json.loads(json.dumps(asked))  # as it is read back: tuples are lists
        if path.exists():
            found = _read(path)
            if not isinstance(found, dict) or found.get("asked") != asked:
                raise InputError(
                    f"{path} is from a run with other settings; choose another folder, or remove the file to repeat it."
                )
            result: dict[str, Any] = found["result"]
            return result
        self.tell(name)
        made = finite(make())
        write_json(path, {"asked": asked, "result": made})
        return json.loads(json.dumps(made))  # as a resumed experiment reads it


def write_json(path: Path, content: Any) -> None:
    with atomic_file(path) as temporary:
        text = json.dumps(finite(content), indent=1, ensure_ascii=False, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")


def finite(value: Any) -> Any:
    """The same with None for NaN and infinities, which JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StorageError(f"Cannot read {path}: {error}; remove it to repeat what it holds.") from error


def _words(marker: Any) -> str:
    if not isinstance(marker, dict) or "experiment" not in marker:
        return "something else"
    return f"a {'quick' if marker.get('quick') else 'whole'} run of {marker['experiment']}"
