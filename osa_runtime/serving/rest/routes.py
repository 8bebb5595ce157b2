"""Every path of REST but inference."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from osa_runtime.interface import TensorSpec
from osa_runtime.serving.engine.engine import Engine
from osa_runtime.serving.engine.model import ServedModel
from osa_runtime.serving.engine.repository import check_load_parameters
from osa_runtime.serving.engine.statistics import Snapshot
from osa_runtime.serving.protocol import descriptions
from osa_runtime.serving.protocol.descriptions import example_calls, example_inputs
from osa_runtime.serving.refusals import Unsupported
from osa_runtime.serving.rest.metrics import METRICS_TYPE, render_metrics
from osa_runtime.serving.rest.openapi import CALLS, openapi
from osa_runtime.serving.rest.request import Parameters, decode_json

ABSENT = ("systemsharedmemory", "cudasharedmemory", "trace", "logging")


class RestRoutes:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def routes(self) -> list[Route]:
        routes = [Route(call.path, getattr(self, call.handler), methods=[call.method]) for call in CALLS]
        absent = [f"/v2/{name}{rest}" for name in ABSENT for rest in ("", "/{_:path}")]
        return routes + [Route(path, self.absent, methods=["GET", "POST"]) for path in absent]

    async def live(self, _: Request) -> Response:
        return Response()

    async def ready(self, _: Request) -> Response:
        return Response(status_code=200 if self._engine.ready else 503)

    async def server(self, _: Request) -> Response:
        return json_response(descriptions.server_metadata(self._engine))

    async def model_ready(self, request: Request) -> Response:
        self._model(request)
        return Response()

    async def metadata(self, request: Request) -> Response:
        return json_response(descriptions.model_metadata(self._engine, self._model(request)))

    async def config(self, request: Request) -> Response:
        return json_response(descriptions.model_config(self._engine, self._model(request)))

    async def statistics(self, request: Request) -> Response:
        named = request.path_params
        return json_response(
            await descriptions.statistics(self._engine, named.get("name", ""), named.get("version", ""))
        )

    async def index(self, request: Request) -> Response:
        return json_response(await self._engine.repository.index((await _control(request)).ready))

    async def load(self, request: Request) -> Response:
        check_load_parameters((await _control(request)).parameters or {})
        await self._engine.load(request.path_params["name"])
        return json_response({})

    async def unload(self, request: Request) -> Response:
        await _control(request)  # parameters have no meaning here
        await self._engine.unload(request.path_params["name"])
        return json_response({})

    async def metrics(self, _: Request) -> Response:
        return Response(render_metrics(self._engine, await self._engine.totals()), media_type=METRICS_TYPE)

    async def description(self, _: Request) -> Response:
        return json_response(openapi())

    async def page(self, _: Request) -> Response:
        return Response(_page(), media_type="text/html; charset=utf-8", headers=HEADERS)

    async def details(self, _: Request) -> Response:
        return json_response(await page_details(self._engine))

    async def absent(self, request: Request) -> Response:
        raise Unsupported(f"{request.url.path[:100]} is not part of this server.")

    def _model(self, request: Request) -> ServedModel:
        return self._engine.repository.find(request.path_params["name"], request.path_params.get("version", ""))


class Control(msgspec.Struct):
    """The body of a call to the repository, which may be empty."""

    ready: bool = False
    parameters: Parameters | None = None


CONTROL = msgspec.json.Decoder(Control)


async def _control(request: Request) -> Control:
    body = await request.body()
    return decode_json(CONTROL, body) if body else Control()


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(content), status, headers, media_type="application/json")


# Everything is inside the page, and it talks to its own server only.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data: blob:"
)
HEADERS = {"content-security-policy": POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}


@cache
def _page() -> str:
    return (files("osa_runtime.serving.rest") / "page.html").read_text(encoding="utf-8")


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
        "queued": figures.queued.get(key, 0),
    }


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape)}
