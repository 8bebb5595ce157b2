"""The same server in the replicas of a Ray Serve application, which Ray's own ``serve deploy`` or ``serve run`` starts.

settings → app → replica (ReplicaEngine, rest_front, GrpcFront)

Ray is imported in ``app`` and nowhere else.
"""
