"""The client of the kubelet's socket against a real gRPC server, and against what is none."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from google.protobuf.wrappers_pb2 import DoubleValue, FloatValue, StringValue
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.collect.schedulers.fake_kubelet import encoded, kubelet

from gpuwarden_agent.collect.grpc import fields, string, strings
from gpuwarden_agent.collect.schedulers.kubelet import (
    ContainerDevices,
    PodResourcesError,
    list_devices,
    parse_list,
)

TRAINING = ContainerDevices("research", "bert-0", "main", "nvidia.com/gpu", ("GPU-1", "GPU-2"))
OTHER = ContainerDevices("web", "nic", "side", "example.com/nic", ("nic0",))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kubelet.sock"


def ask(path: Path, timeout_s: float = 5.0) -> list[ContainerDevices]:
    return list_devices(path, time.monotonic, timeout_s)


def test_devices_of_containers_are_told(path: Path) -> None:
    with kubelet(path, lambda context: encoded([TRAINING, OTHER])):
        assert ask(path) == [TRAINING, OTHER]
        assert ask(path) == [TRAINING, OTHER]


def test_a_node_without_pods_has_none(path: Path) -> None:
    with kubelet(path, lambda context: b""):
        assert ask(path) == []


def test_an_answer_longer_than_the_windows_of_http_2_comes_whole(path: Path) -> None:
    many = [
        ContainerDevices("n", f"pod-{i}", "c", "nvidia.com/gpu", (f"GPU-{i}" * 20,))
        for i in range(4000)
    ]
    with kubelet(path, lambda context: encoded(many)):
        assert ask(path) == many


def test_an_old_kubelet_is_named(path: Path) -> None:
    old = kubelet(path, lambda context: b"", name="Other")
    with old, pytest.raises(PodResourcesError, match=r"older than 1\.20"):
        ask(path)


def test_a_refusal_is_told_in_the_kubelets_words(path: Path) -> None:
    def refuse(context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rate limit: 100 %")
        raise AssertionError

    words = r"rate limit: 100 % \(gRPC status 8\)"
    with kubelet(path, refuse), pytest.raises(PodResourcesError, match=words):
        ask(path)


def test_a_kubelet_that_hangs_costs_the_timeout(path: Path) -> None:
    over = threading.Event()

    def hang(context: grpc.ServicerContext) -> bytes:
        over.wait(10)
        return b""

    with kubelet(path, hang):
        try:
            with pytest.raises(PodResourcesError, match="no answer within"):
                ask(path, 0.2)
        finally:
            over.set()


def test_no_socket_and_no_permission_are_one_line(path: Path) -> None:
    with pytest.raises(PodResourcesError, match="No such file"):
        ask(path)
    path.write_text("")
    with pytest.raises(PodResourcesError, match="refused"):
        ask(path)


@contextmanager
def server(path: Path, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def run() -> None:
            connection, _ = listening.accept()
            with connection:
                serve(connection)

        thread = threading.Thread(target=run)
        thread.start()
        yield
        thread.join(5)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4, "hung up"),
        (b"", "hung up"),
        (b"\0\0\1\0\0\0\0\0\0x", "no HTTP/2"),
    ],
)
def test_what_is_no_kubelet_is_one_line(said: bytes, message: str, path: Path) -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass

    with server(path, serve), pytest.raises(PodResourcesError, match=message):
        ask(path)


def test_one_who_drips_gets_no_more_time(path: Path) -> None:
    def drip(connection: socket.socket) -> None:
        try:
            for _ in range(200):
                connection.sendall(b"\0\0\0\4\0\0\0\0\0")  # an empty SETTINGS frame
                time.sleep(0.01)
        except OSError:
            return

    with server(path, drip), pytest.raises(PodResourcesError, match="no answer within"):
        ask(path, 0.3)


_NAMES = st.text(st.characters(codec="utf-8"), max_size=8)


@settings(max_examples=40)
@given(st.lists(st.builds(ContainerDevices, _NAMES, _NAMES, _NAMES, _NAMES, st.tuples(_NAMES))))
def test_any_answer_is_read_as_it_was_written(given_: list[ContainerDevices]) -> None:
    assert parse_list(encoded(given_)) == given_


@given(st.binary(max_size=80))
def test_rubbish_is_refused_or_read(data: bytes) -> None:
    try:
        parse_list(data)
    except ValueError:
        return


def test_fields_of_fixed_size_are_passed_over() -> None:
    data = DoubleValue(value=2.5).SerializeToString() + FloatValue(value=1.5).SerializeToString()
    assert [len(bytes(value)) for _, value in fields(data)] == [8, 4]  # type: ignore[arg-type]


def test_of_several_strings_the_last_counts() -> None:
    data = StringValue(value="a").SerializeToString() + StringValue(value="b").SerializeToString()
    assert (string(data, 1), strings(data, 1), string(data, 2)) == ("b", ["a", "b"], "")


@pytest.mark.parametrize(
    "data",
    [b"\x0a", b"\x0a\x05ab", b"\x08", b"\x09abc", b"\x00\x01", b"\x0b", b"\x08" + b"\xff" * 11],
)
def test_what_is_cut_short_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"cut short|wire type|too long|number 0"):
        list(fields(data))
