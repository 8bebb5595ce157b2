"""The same server in the replicas of a Ray Serve application, which Ray's own ``serve deploy`` or ``serve run`` starts.

options → app → replica (RestFront, GrpcFront)

Ray is imported in ``app`` and nowhere else.
"""
