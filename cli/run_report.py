"""The outputs as ``osa run`` shows them, and the file it writes them to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import typer
from numpy.typing import NDArray

from osa_runtime.atomic import check_writable
from osa_runtime.errors import InputError
from osa_runtime.runtime.session import Session

Array = NDArray[Any]
DEFAULT_TOP = 5
MOST_ROWS = 10


def check_out(out: Path | None) -> None:
    if out is not None and out.suffix != ".npz":
        raise InputError(f"--out is {out}, expected a name that ends in .npz.")
    if out is not None:
        check_writable(out)


class RunReport:
    def __init__(
        self, session: Session, outputs: Mapping[str, Array], seconds: float, notes: list[str], top: int | None
    ) -> None:
        self._placement = session.placement
        self._path = session.path
        self._class_names = session.manifest.class_names if session.manifest is not None else ()
        self._outputs, self._seconds, self._top = outputs, seconds, top
        fallback = [session.placement.note] if session.placement.note else []
        self._notes = fallback + notes

    def show(self, as_json: bool, out: Path | None) -> None:
        typer.echo(json.dumps(self.as_dict(), ensure_ascii=False, indent=2) if as_json else self.text(out))

    def as_dict(self) -> dict[str, Any]:
        placement: dict[str, Any] = {"device": self._placement.device, "provider": self._placement.provider}
        if self._placement.device != "cpu":
            placement["cpu_nodes"] = self._placement.cpu_nodes
        outputs = {name: self._describe(name, array) for name, array in self._outputs.items()}
        return {
            "model": str(self._path),
            "placement": placement,
            "seconds": round(self._seconds, 6),
            "notes": self._notes,
            "outputs": outputs,
        }

    def _describe(self, name: str, array: Array) -> dict[str, Any]:
        described: dict[str, Any] = {"shape": list(array.shape), "dtype": str(array.dtype)}
        if self._has_classes(name, array):
            described["rows"] = [{"index": list(i), "top": best} for i, best in self._rows(array)]
        else:
            described |= summary(array)
        return described

    def text(self, out: Path | None) -> str:
        lines = [f"note: {note}" for note in self._notes]
        for name, array in self._outputs.items():
            lines.append(f"{name}: {array.dtype}{list(array.shape)}")
            lines += self._table(array) if self._has_classes(name, array) else [f"  {_pairs(summary(array))}"]
        lines.append(f"{self._placement.provider} on {self._placement.device}, {self._seconds * 1e3:.2f} ms")
        if self._placement.device != "cpu":
            lines.append(self._on_cpu())
        return "\n".join(lines + ([f"all outputs are in {out}"] if out else []))

    def _on_cpu(self) -> str:
        nodes = self._placement.cpu_nodes
        return "nodes on the CPU: " + ("unknown" if nodes is None else ", ".join(nodes) or "none")

    def _has_classes(self, name: str, array: Array) -> bool:
        suited = array.dtype.kind == "f" and array.ndim > 0 and array.size > 0
        return suited and (self._top is not None or (name == "logits" and array.ndim > 1))

    def _rows(self, array: Array) -> list[tuple[tuple[int, ...], list[dict[str, Any]]]]:
        top = self._top or DEFAULT_TOP
        found = [(index, best_classes(array[index], top)) for index in np.ndindex(array.shape[:-1])]
        if len(self._class_names) == array.shape[-1]:
            for _, best in found:
                for entry in best:
                    entry["name"] = self._class_names[entry["class"]]
        return found

    def _table(self, array: Array) -> list[str]:
        rows = self._rows(array[:MOST_ROWS] if array.ndim > 1 else array)
        lines = [f"  {_label(index)}{_classes(best)}" for index, best in rows[:MOST_ROWS]]
        hidden = array[..., 0].size - len(lines)
        return lines + ([f"  … and {hidden} more rows; --json or --out has all of them"] if hidden else [])


def best_classes(logits: Array, top: int) -> list[dict[str, Any]]:
    """The likeliest classes with their softmax probabilities, best first; equal ones by their number."""
    values = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):  # Inf becomes NaN, which is shown
        exponentials = np.exp(values - values.max())
        probabilities = exponentials / exponentials.sum()
    order = np.argsort(-values, kind="stable")[:top]
    return [{"class": int(i), "probability": _number(probabilities[i]), "logit": _number(values[i])} for i in order]


def summary(array: Array) -> dict[str, Any]:
    if array.size == 0:
        return {"values": "none"}
    if array.dtype.kind not in "uif":
        return {"true": int(np.count_nonzero(array)), "of": array.size}
    values = array.astype(np.float64)
    with np.errstate(invalid="ignore"):  # as above
        found = {"min": values.min(), "max": values.max(), "mean": values.mean()}
    return {key: _number(value) for key, value in found.items()}


def _number(value: Any) -> float | None:
    """A number for JSON, which has neither NaN nor infinity."""
    return float(value) if np.isfinite(value) else None


def _label(index: tuple[int, ...]) -> str:
    return f"{list(index)}  " if index else ""


def _classes(best: list[dict[str, Any]]) -> str:
    return " · ".join(f"class {c['class']}{_named(c)} {_percent(c['probability'])}" for c in best)


def _named(entry: dict[str, Any]) -> str:
    return f" ({entry['name']})" if "name" in entry else ""


def _percent(probability: float | None) -> str:
    return "NaN" if probability is None else f"{probability:.1%}"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v:.6g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items())
