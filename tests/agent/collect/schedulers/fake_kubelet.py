"""A kubelet's pod-resources socket: a real gRPC server with real Protocol Buffers."""

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from gpuwarden_agent.collect.schedulers import allocations
from gpuwarden_agent.collect.schedulers.kubelet import ContainerDevices, list_devices

_STRING, _INT64, _MESSAGE = 9, 3, 11
_FIELDS = {
    "NUMANode": [("ID", 1, _INT64, "")],
    "TopologyInfo": [("nodes", 1, _MESSAGE, "NUMANode")],
    "ContainerDevices": [
        ("resource_name", 1, _STRING, ""),
        ("device_ids", 2, _STRING, "*"),
        ("topology", 3, _MESSAGE, "TopologyInfo"),
    ],
    "ContainerResources": [
        ("name", 1, _STRING, ""),
        ("devices", 2, _MESSAGE, "ContainerDevices"),
        ("cpu_ids", 3, _INT64, "*"),
        ("dynamic_resources", 5, _MESSAGE, "DynamicResource"),
    ],
    "DynamicResource": [
        ("claim_name", 2, _STRING, ""),
        ("claim_namespace", 3, _STRING, ""),
        ("claim_resources", 4, _MESSAGE, "ClaimResource"),
    ],
    "ClaimResource": [
        ("driver_name", 2, _STRING, ""),
        ("pool_name", 3, _STRING, ""),
        ("device_name", 4, _STRING, ""),
    ],
    "PodResources": [
        ("name", 1, _STRING, ""),
        ("namespace", 2, _STRING, ""),
        ("containers", 3, _MESSAGE, "ContainerResources"),
    ],
    "ListPodResourcesResponse": [("pod_resources", 1, _MESSAGE, "PodResources")],
}
_REPEATED = {
    "nodes", "device_ids", "devices", "cpu_ids", "containers", "pod_resources", "dynamic_resources",
    "claim_resources",
}  # fmt: skip


def _response_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="made_up.proto", package="v1", syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind, of in fields:
            message.field.add(
                name=field,
                number=number,
                type=kind,
                label=3 if field in _REPEATED else 1,
                type_name=f".v1.{of}" if kind == _MESSAGE else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName("v1.ListPodResourcesResponse")
    return message_factory.GetMessageClass(found)


_Response = _response_class()


def encoded(given: Sequence[ContainerDevices], claims: Collection[str] = ()) -> bytes:
    """A ListPodResourcesResponse, with fields in it that nobody asked for. `claims`: resources that are
    drivers of resource claims."""
    answer = _Response()
    for devices in given:
        pod = answer.pod_resources.add(name=devices.pod, namespace=devices.namespace)
        container = pod.containers.add(name=devices.container, cpu_ids=[0, 1, 300])
        if devices.resource in claims:
            claim = container.dynamic_resources.add(claim_name="c", claim_namespace="n")
            for name in devices.ids:
                claim.claim_resources.add(
                    driver_name=devices.resource, pool_name="n1", device_name=name
                )
            continue
        made = container.devices.add(resource_name=devices.resource, device_ids=devices.ids)
        made.topology.nodes.add(ID=1)
    return bytes(answer.SerializeToString())


@contextmanager
def kubelet(path: Path, answer: Callable[[Any], bytes], name: str = "List") -> Iterator[None]:
    """Serve `answer` at the socket; it gets gRPC's context. Probes wait longer for it than for a real one."""
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: answer(context))
    service = grpc.method_handlers_generic_handler("v1.PodResourcesLister", {name: handler})
    server = grpc.server(ThreadPoolExecutor(1), options=[("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers((service,))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    patiently = partial(list_devices, timeout_s=20.0)
    try:
        with patch.object(allocations, "list_devices", patiently):
            yield
    finally:
        server.stop(None).wait(5)
