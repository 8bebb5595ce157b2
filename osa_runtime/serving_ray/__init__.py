"""The same server in the replicas of a Ray Serve application, which Ray's own ``serve deploy`` or ``serve run`` starts.

settings → app (ReplicaEngine, rest_front, GrpcFront, Replica, build)

Ray is imported in ``build`` and nowhere else.
"""
