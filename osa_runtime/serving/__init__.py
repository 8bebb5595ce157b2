"""Serving exported ONNX models over the Open Inference Protocol (KServe V2), REST and gRPC. No torch, no onnx.

settings → repository → model → batcher → session     the engine, which knows no network
rest_*, http_connection                                REST around it
grpc_*                                                 gRPC around it
server                                                 both, with signals and draining
"""
