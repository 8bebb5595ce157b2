"""The OpenAPI description and the page agree with the server."""

from __future__ import annotations

import http.client
import json
import re
from typing import Any

import pytest

from osa_runtime.serving.engine.engine import Engine
from osa_runtime.serving.rest.openapi import openapi
from osa_runtime.serving.rest.routes import RestRoutes
from serving_process import ServerProcess


def get(server: ServerProcess, path: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(server.http, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    result = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    connection.close()
    return result


def test_every_route_is_described() -> None:
    described = {
        (path, method.upper()) for path, item in openapi()["paths"].items() for method in item if method != "parameters"
    }
    routes = RestRoutes(Engine.__new__(Engine)).routes()
    served = {(route.path, method) for route in routes for method in route.methods or () if method != "HEAD"}
    absent = {
        (path, method) for path, method in served if re.match(r"/v2/(systemshared|cudashared|trace|logging)", path)
    }
    assert described == served - absent


def test_references_lead_to_schemas() -> None:
    names = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(openapi()))
    assert set(names) <= set(openapi()["components"]["schemas"])


def paths_that_are_read() -> list[str]:
    return [path for path, item in openapi()["paths"].items() if "get" in item]


@pytest.mark.parametrize("path", paths_that_are_read())
def test_answers_have_the_described_fields(server: ServerProcess, path: str) -> None:
    status, headers, content = get(server, path.format(name="vit", version="1"))
    assert status == 200
    described = openapi()["paths"][path]["get"]["responses"]["200"].get("content", {})
    if not described:
        assert content == b""
        return
    (kind, body), *_ = described.items()
    assert headers["content-type"].startswith(kind)
    if kind == "application/json":
        assert_fits(json.loads(content), body["schema"])


def assert_fits(value: Any, schema: dict[str, Any]) -> None:
    """Types, required fields and items: as much of JSON Schema as the description uses."""
    if "$ref" in schema:
        schema = openapi()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    kinds: dict[str, Any] = {"object": dict, "array": list, "string": str, "integer": int}
    if schema.get("type") in kinds:
        assert isinstance(value, kinds[schema["type"]]), (value, schema)
    for name in schema.get("required", ()):
        assert name in value
    for name, inner in schema.get("properties", {}).items():
        if name in value:
            assert_fits(value[name], inner)
    for item in value if "items" in schema else ():
        assert_fits(item, schema["items"])


def test_the_page_needs_nothing_from_elsewhere(server: ServerProcess) -> None:
    status, headers, content = get(server, "/")
    page = content.decode()
    assert (status, "default-src 'none'" in headers["content-security-policy"]) == (200, True)
    addresses = set(re.findall(r"https?://[^\s\"'<>]+", page)) - {"http://www.w3.org/2000/svg"}  # a namespace
    assert addresses == set()
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", page)


def test_the_page_is_told_names_axes_and_figures(server: ServerProcess) -> None:
    models = json.loads(get(server, "/details")[2])["models"]
    assert [(m["name"], m["version"]) for m in models] == [("encoder", "1"), ("vit", "1"), ("vit", "3")]
    assert models[1]["inputs"] == [{"name": "images", "dtype": "float32", "shape": ["batch", 1, 8, 8]}]
    assert models[1]["layers"] == []
