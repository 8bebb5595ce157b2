"""The page for people at ``/``."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from osa_runtime.serving.protocol.example_calls import example_calls, example_inputs

if TYPE_CHECKING:
    from osa_runtime.artifact import TensorSpec
    from osa_runtime.serving.engine.engine import Engine
    from osa_runtime.serving.engine.model import ServedModel
    from osa_runtime.serving.engine.statistics import Snapshot

# Everything is inside the page, and it talks to its own server only.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data: blob:"
)
HEADERS = {"content-security-policy": POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}


@cache
def _page() -> str:
    return (files("osa_runtime.serving.rest") / "page.html").read_text(encoding="utf-8")


def page_response() -> Response:
    return Response(_page(), media_type="text/html; charset=utf-8", headers=HEADERS)


async def page_details(engine: Engine) -> dict[str, Any]:
    """Details for the page beyond the protocol: named axes, the exported settings, orthogonality, latency."""
    token, figures = engine.settings.token is not None, await engine.snapshot()
    return {"models": [_details(model, figures, token) for model in engine.repository.served()]}


def _details(model: ServedModel, figures: Snapshot, token: bool) -> dict[str, Any]:
    key = model.name, model.version
    page = figures.page(key)
    return {
        "name": model.name,
        "version": model.version_text,
        "fingerprint": model.fingerprint,
        "inputs": [_tensor(spec) for spec in model.interface.inputs],
        "outputs": [_tensor(spec) for spec in model.interface.outputs],
        "parameters": model.manifest.parameters,
        "dtype": model.manifest.dtype,
        "osa": asdict(model.manifest.osa) if model.manifest.osa is not None else {},
        "example": example_inputs(model.interface),
        "calls": example_calls(model.name, model.interface, token=token),
        "preprocessing": model.manifest.preprocessing,
        "class_names": model.manifest.class_names,
        "device": model.session.placement.device,
        "layers": model.layers,
        "requests": page.success.count,
        "failures": page.fail.count,
        "rows": page.rows,
        "executions": page.executions,
        "seconds": page.success.seconds,
        "queued": figures.queued[key],
    }


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape)}
