"""HAProxy as Ray configures it, in front of servers that a test stands up. Run in Ray's own environment.

Usage: haproxy_of_ray.py FOLDER HTTP_PORT SERVER_PORT... The servers speak HTTP; gRPC, on the next port, has none that
answers. It writes the configuration and becomes HAProxy.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from osa_runtime.serving_ray.environment import tune
from osa_runtime.serving_ray.grpc_stubs import SERVICER_FUNCTION


def main(folder: Path, port: int, servers: list[int]) -> None:
    tune(folder)
    from ray.serve._private import haproxy
    from ray.serve._private.common import RequestProtocol
    from ray.serve.config import HTTPOptions, gRPCOptions

    names = [haproxy.ServerConfig(f"s{number}", "127.0.0.1", number) for number in servers]
    backend = haproxy.BackendConfig("http-osa", "/", servers=names, app_name="osa")
    absent = [haproxy.ServerConfig("absent", "127.0.0.1", 1)]
    calls = haproxy.BackendConfig("grpc-osa", "/", servers=absent, app_name="osa", protocol=RequestProtocol.GRPC)
    config = haproxy.HAProxyConfig(
        http_options=HTTPOptions(host="127.0.0.1", port=port),
        grpc_options=gRPCOptions(port=port + 1, grpc_servicer_functions=[SERVICER_FUNCTION]),
        has_received_routes=True,
        has_received_servers=True,
    )
    written = folder / "haproxy.cfg"
    api = haproxy.HAProxyApi(config, {"osa": backend, "calls": calls}, config_file_path=str(written))
    api._generate_config_file_internal()
    program = haproxy.get_haproxy_binary()
    os.execv(program, [program, "-db", "-f", str(written)])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), [int(number) for number in sys.argv[3:]])
