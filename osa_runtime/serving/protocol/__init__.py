"""The Open Inference Protocol, as far as REST and gRPC share it."""
