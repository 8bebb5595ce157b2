"""A Ray of three nodes on one machine, run by the tests in Ray's own environment.

Usage: ray_three_nodes.py CONFIG. It deploys the file with ``serve run`` and writes a line of JSON. Then it takes lines
of JSON with arguments of ``build``, deploys them, and answers each with a line. It ends with its input.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from osa_runtime.serving_ray.environment import tune


@contextlib.contextmanager
def three_nodes() -> Iterator[str]:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        yield cluster.address
    finally:
        cluster.shutdown()


def deploy(arguments: dict[str, Any], name: str, route: str) -> dict[str, Any]:
    from ray import serve

    from osa_runtime.serving_ray.app import build

    try:
        serve.run(build(arguments), name=name, route_prefix=route)
    except RuntimeError:
        state = serve.status().applications[name]
        return {"error": " ".join(deployment.message for deployment in state.deployments.values())}
    return {"deployed": name}


def say(content: dict[str, Any]) -> None:
    sys.stdout.write("> " + json.dumps(content) + "\n")
    sys.stdout.flush()


def main(config: str) -> None:
    with tempfile.TemporaryDirectory(prefix="osa-haproxy-", ignore_cleanup_errors=True) as files:
        tune(Path(files))
        import ray
        from ray import serve

        with three_nodes() as address:
            program = Path(sys.executable).with_name("serve")
            subprocess.run([program, "run", "--non-blocking", "--address", address, config], check=True)
            ray.init(address, log_to_driver=False)
            say({"nodes": len(ray.nodes()), "address": address})
            for line in sys.stdin:
                order = json.loads(line)
                say(deploy(order["arguments"], order.get("name", "osa"), order.get("route", "/")))
            serve.shutdown()
            ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
