"""A kubelet and an API server: real HTTPS servers that answer as Kubernetes 1.33 does, and misbehave on request."""

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import trustme

UID = "4b1c9f5e-7d0a-4a63-9c0e-0f1b2c3d4e5f"


def pod(
    name: str, *, uid: str = UID, namespace: str = "research", **metadata: Any
) -> dict[str, Any]:
    """A pod of a PodList; `metadata`: labels, annotations, ownerReferences."""
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": uid, **metadata},
        "spec": {"containers": [{"name": "main", "env": [{"name": "SECRET", "value": "x"}]}]},
        "status": {"phase": "Running"},
    }


def owner(kind: str, name: str, api: str = "kubeflow.org/v1", **more: Any) -> dict[str, Any]:
    """An owner reference of the controller."""
    return {"apiVersion": api, "kind": kind, "name": name, "uid": "1", "controller": True, **more}


def answer_of(pods: Sequence[Mapping[str, Any]]) -> bytes:
    """A PodList."""
    return json.dumps(
        {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": list(pods)}
    ).encode()


@dataclass
class ClusterServer:
    """One server. `answers`: body by path, without query; what is not there is 404."""

    port: int = 0
    token: str = "first"
    answers: dict[str, bytes] = field(default_factory=dict)
    fault: Callable[[str], tuple[int, bytes] | None] = lambda path: None
    """Status and body instead of an answer."""
    hang_s: float = 0.0
    cut: bool = False
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Path with query, and Accept."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


class Account:
    """A service account's folder, and the authority of the cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = trustme.CA()
        folder.mkdir()
        self.authority.cert_pem.write_to_path(folder / "ca.crt")
        self.write("first")

    def write(self, token: str) -> None:
        (self.folder / "token").write_text(token)


def environ_of(api: ClusterServer) -> dict[str, str]:
    """The environment of a pod whose API server this is."""
    return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT_HTTPS": str(api.port)}


def _handler(server: ClusterServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            server.requests.append((self.path, self.headers["Accept"]))
            time.sleep(server.hang_s)
            status, body = self._answer()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) + (10 if server.cut else 0)))
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = True

        def _answer(self) -> tuple[int, bytes]:
            if self.headers["Authorization"] != f"Bearer {server.token}":
                return 401, b"Unauthorized"
            if (fault := server.fault(self.path)) is not None:
                return fault
            body = server.answers.get(self.path.partition("?")[0])
            return (404, b"404 page not found") if body is None else (200, body)

        def log_message(self, *args: Any) -> None:
            pass

    return Handler


@contextmanager
def served(account: Account, *, authority: trustme.CA | None = None) -> Iterator[ClusterServer]:
    """A server on loopback with a certificate of the cluster's authority, or of another."""
    server = ClusterServer()
    listener = ThreadingHTTPServer(("127.0.0.1", 0), _handler(server))
    listener.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (authority or account.authority).issue_cert("127.0.0.1").configure_cert(context)
    listener.socket = context.wrap_socket(
        listener.socket, server_side=True, do_handshake_on_connect=False
    )
    server.port = listener.server_address[1]
    thread = threading.Thread(target=listener.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()
