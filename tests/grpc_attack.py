"""Calls and frames of hostile gRPC clients, and the server that they are sent to."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
from hpack import Encoder
from hyperframe import frame as frames
from tritonclient.grpc import service_pb2 as pb

from canary import Target
from protobuf_fields import field

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
BAD, TOO_MUCH = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED
HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", INFER),
    (":authority", "127.0.0.1"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]
IMAGE = np.zeros((1, 1, 8, 8), np.float32)
GREETING = PREFACE + frames.SettingsFrame(0).serialize()


@contextlib.contextmanager
def channel(target: Target) -> Iterator[Any]:
    options = [
        ("grpc.max_send_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_metadata_size", 1 << 20),
    ]
    with grpc.insecure_channel(target.server.grpc, options) as opened:
        yield opened


def valid(target: Target, **fields: Any) -> bytes:
    message = pb.ModelInferRequest(model_name=target.model, raw_input_contents=[IMAGE.tobytes()], **fields)
    message.inputs.add(name="images", datatype="FP32", shape=IMAGE.shape)
    return message.SerializeToString()


def tensor(**fields: Any) -> bytes:
    """A request with one input."""
    shape = {"name": "images", "datatype": "FP32", "shape": [1, 1, 8, 8]}
    return pb.ModelInferRequest(model_name="vit-onnx", inputs=[shape | fields]).SerializeToString()


def raw(shape: list[int], content: bytes, datatype: str = "FP32") -> bytes:
    return tensor(shape=shape, datatype=datatype) + field(7, content)


def contents(number: int, values: bytes) -> bytes:
    """Typed values for an input of 64."""
    head = pb.ModelInferRequest.InferInputTensor(name="images", datatype="FP32", shape=[1, 1, 8, 8])
    return field(1, b"vit-onnx") + field(5, head.SerializeToString() + field(5, field(number, values)))


@contextlib.contextmanager
def peer(target: Target, greet: bool = True) -> Iterator[socket.socket]:
    host, _, port = target.server.grpc.partition(":")
    with socket.create_connection((host, int(port)), 30) as sock:
        if greet:
            sock.sendall(GREETING)
        yield sock


def call(stream: int, message: bytes, end: bool = True) -> bytes:
    head = frames.HeadersFrame(stream, Encoder().encode(HEADERS, huffman=False), flags=["END_HEADERS"])
    content = struct.pack(">BI", 0, len(message)) + message
    return head.serialize() + frames.DataFrame(stream, content, flags=["END_STREAM"] if end else []).serialize()


def said(sock: socket.socket, seconds: float = 10) -> bytes:
    """The bytes that the server sends until it closes or is silent for so long."""
    sock.settimeout(seconds)
    reply = b""
    with contextlib.suppress(TimeoutError, ConnectionError):
        while part := sock.recv(65536):
            reply += part
    return reply


def push(sock: socket.socket, *parts: bytes) -> None:
    """Send all of it, if the server still listens; it may close at any time."""
    with contextlib.suppress(ConnectionError):
        for part in parts:
            sock.sendall(part)


def frame(kind: int, flags: int, stream: int, content: bytes, size: int | None = None) -> bytes:
    """Any frame, also one that hyperframe would not write."""
    return (
        (len(content) if size is None else size).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + content
    )
