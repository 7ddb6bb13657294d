"""libtpu's metric service as a real gRPC server, with the messages that tpu-info 0.14 publishes."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TYPES = {"double": 1, "int64": 3, "string": 9, "bool": 8}
_MESSAGES = {
    "Gauge": [("as_double", 1, "double"), ("as_int", 2, "int64"), ("as_bool", 4, "bool")],
    "AttrValue": [("string_attr", 1, "string"), ("int_attr", 3, "int64")],
    "Attribute": [("key", 1, "string"), ("value", 2, "AttrValue")],
    "Metric": [("attribute", 1, "Attribute"), ("gauge", 3, "Gauge")],
    "TPUMetric": [("name", 1, "string"), ("description", 2, "string"), ("metrics", 3, "Metric")],
    "MetricRequest": [("metric_name", 1, "string")],
    "MetricResponse": [("metric", 1, "TPUMetric")],
}
_ALTERNATIVES = ("Gauge", "AttrValue")
SERVICE = "tpu.monitoring.runtime.RuntimeMetricService"


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="tpu.proto", package="tpu", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if name in _ALTERNATIVES:
            message.oneof_decl.add(name="value")
        for field, number, kind in fields:
            made = message.field.add(
                name=field,
                number=number,
                type=_TYPES.get(kind, 11),
                label=3 if field == "metrics" else 1,
            )
            if kind not in _TYPES:
                made.type_name = f".tpu.{kind}"
            if name in _ALTERNATIVES:
                made.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tpu.{name}"))
        for name in _MESSAGES
    }


CLASSES = _classes()


def answer_of(name: str, values: Mapping[int, int | float]) -> bytes:
    answer = CLASSES["MetricResponse"]()
    answer.metric.name = name
    answer.metric.description = "of libtpu"
    for device, value in values.items():
        entry = answer.metric.metrics.add()
        entry.attribute.key = "device-id"
        entry.attribute.value.int_attr = device
        if isinstance(value, int):
            entry.gauge.as_int = value
        else:
            entry.gauge.as_double = value
    return bytes(answer.SerializeToString())


@contextmanager
def libtpu(
    metrics: Callable[[], Mapping[str, Mapping[int, int | float]]], port: int = 0
) -> Iterator[int]:
    """Serve metrics on a port of loopback, which is yielded. An unknown metric is refused."""

    def get(request: Any, context: grpc.ServicerContext) -> bytes:
        values = metrics().get(request.metric_name)
        if values is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no metric {request.metric_name}")
        assert values is not None
        return answer_of(request.metric_name, values)

    handler = grpc.unary_unary_rpc_method_handler(
        get, request_deserializer=CLASSES["MetricRequest"].FromString
    )
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {"GetRuntimeMetric": handler}),)
    )
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield bound
    finally:
        server.stop(None).wait(5)
