"""The same server in the replicas of a Ray Serve application. Ray is imported here and nowhere else.

options → app → replica (rest_front, grpc_front)     the application, for ``serve deploy`` and ``serve run``
environment → cluster                                 ``osa serve --engine ray``: a local Ray from start to end
"""
