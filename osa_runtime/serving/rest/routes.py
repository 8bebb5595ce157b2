"""Every path of REST but inference."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from typing import Any

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
from osa_runtime.serving.refusals import BadRequest, Unsupported
from osa_runtime.serving.rest.metrics import METRICS_TYPE, render_metrics
from osa_runtime.serving.rest.openapi import openapi

SCALARS = frozenset({bool, int, float, str})
ABSENT = ("systemsharedmemory", "cudasharedmemory", "trace", "logging")
Handler = Callable[[Request], Awaitable[Response]]


class RestRoutes:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def routes(self) -> list[Route]:
        one, version = "/v2/models/{name}", "/v2/models/{name}/versions/{version}"
        get: list[tuple[str, Handler]] = [
            ("/", self.page),
            ("/details", self.details),
            ("/metrics", self.metrics),
            ("/openapi.json", self.description),
            ("/v2", self.server),
            ("/v2/health/live", self.live),
            ("/v2/health/ready", self.ready),
            ("/v2/models/stats", self.statistics),
        ]
        for path in (one, version):
            get += [(path, self.metadata), (path + "/ready", self.model_ready)]
            get += [(path + "/config", self.config), (path + "/stats", self.statistics)]
        post: list[tuple[str, Handler]] = [
            (one + "/infer", self.absent),  # never reached; it makes other methods a 405
            (version + "/infer", self.absent),
            ("/v2/repository/index", self.index),
            ("/v2/repository/models/{name}/load", self.load),
            ("/v2/repository/models/{name}/unload", self.unload),
        ]
        routes = [Route(path, handler, methods=["GET"]) for path, handler in get]
        routes += [Route(path, handler, methods=["POST"]) for path, handler in post]
        absent = [f"/v2/{name}{rest}" for name in ABSENT for rest in ("", "/{_:path}")]
        return routes + [Route(path, self.absent, methods=["GET", "POST"]) for path in absent]

    async def live(self, _: Request) -> Response:
        return Response()

    async def ready(self, _: Request) -> Response:
        return Response(status_code=200 if self._engine.ready else 503)

    async def server(self, _: Request) -> Response:
        return json_response(descriptions.server_metadata())

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
        ready_only = (await _body(request)).get("ready", False)
        if not isinstance(ready_only, bool):
            raise BadRequest("ready must be true or false.")
        return json_response(await self._engine.repository.index(ready_only))

    async def load(self, request: Request) -> Response:
        check_load_parameters(_parameters(await _body(request)))
        await self._engine.load(request.path_params["name"])
        return json_response({})

    async def unload(self, request: Request) -> Response:
        _parameters(await _body(request))
        await self._engine.unload(request.path_params["name"])
        return json_response({})

    async def metrics(self, _: Request) -> Response:
        return Response(render_metrics(self._engine, await self._engine.snapshot()), media_type=METRICS_TYPE)

    async def description(self, _: Request) -> Response:
        return json_response(openapi())

    async def page(self, _: Request) -> Response:
        return page_response()

    async def details(self, _: Request) -> Response:
        return json_response(await page_details(self._engine))

    async def absent(self, request: Request) -> Response:
        raise Unsupported(f"{request.url.path[:100]} is not part of this server.")

    def _model(self, request: Request) -> ServedModel:
        return self._engine.repository.find(request.path_params["name"], request.path_params.get("version", ""))


async def _body(request: Request) -> dict[str, Any]:
    body = await request.body()
    try:
        fields = orjson.loads(body) if body else {}
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"The body is not valid JSON: {error}.") from error
    if not isinstance(fields, dict):
        raise BadRequest(f"The body is JSON of type {type(fields).__name__}, expected an object.")
    return fields


def _parameters(fields: dict[str, Any]) -> dict[str, Any]:
    value = fields.get("parameters")
    if value is not None and (not isinstance(value, dict) or not SCALARS.issuperset(map(type, value.values()))):
        raise BadRequest("parameters must be an object of strings, numbers, true and false.")
    return value or {}


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
