"""Serving exported ONNX models over the Open Inference Protocol (KServe V2), REST and gRPC. No torch, no onnx.

operations   processes: start, signals, workers, drain
rest, grpc   the two transports, which do not import each other
protocol     tensors, descriptions and limits that both share
engine       repository → model → batcher → session, without a network

settings, refusals, guard and logs belong to all of them.
"""
