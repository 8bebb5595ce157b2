"""gRPC around the engine, on grpc.aio."""
