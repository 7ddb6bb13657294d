"""The instance of a cloud: by the firmware, and by a metadata service that answers as the clouds document it."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.clock import EPOCH, ManualClock
from gpuwarden_agent.collect.cloud import (
    ANSWER_BYTES_MAX,
    CloudFacts,
    CloudHost,
    asked_facts,
    cloud_host,
    firmware_facts,
    metadata_service,
)

AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"
FIRMWARE = {
    "aws": {"sys_vendor": "Amazon EC2", "product_name": "p5.48xlarge"},
    "gcp": {"sys_vendor": "Google", "product_name": "Google Compute Engine"},
    "azure": {
        "sys_vendor": "Microsoft Corporation",
        "product_name": "Virtual Machine",
        "chassis_asset_tag": AZURE_TAG,
    },
    "oci": {"sys_vendor": "QEMU", "chassis_asset_tag": "OracleCloud.com"},
}

# Path, header that the service demands, answer. Sources: the pages that collect/cloud.py names.
AWS = "X-aws-ec2-metadata-token"
ANSWERS: dict[str, dict[str, tuple[tuple[str, str], str]]] = {
    "aws": {
        "/latest/api/token": ((f"{AWS}-ttl-seconds", "60"), "AQAEAM8="),
        "/latest/meta-data/instance-type": ((AWS, "AQAEAM8="), "p5.48xlarge"),
        "/latest/meta-data/placement/region": ((AWS, "AQAEAM8="), "us-east-2"),
        "/latest/meta-data/instance-life-cycle": ((AWS, "AQAEAM8="), "spot"),
    },
    "gcp": {
        "/computeMetadata/v1/instance/machine-type": (
            ("Metadata-Flavor", "Google"),
            "projects/1234/machineTypes/a3-highgpu-8g",
        ),
        "/computeMetadata/v1/instance/zone": (
            ("Metadata-Flavor", "Google"),
            "projects/1234/zones/us-central1-a",
        ),
        "/computeMetadata/v1/instance/scheduling/preemptible": (
            ("Metadata-Flavor", "Google"),
            "FALSE",
        ),
    },
    "azure": {
        f"/metadata/instance/compute/{leaf}?api-version=2021-02-01&format=text": (
            ("Metadata", "true"),
            text,
        )
        for leaf, text in {
            "vmSize": "Standard_ND96isr_H100_v5",
            "location": "eastus",
            "priority": "Spot",
        }.items()
    },
    "oci": {
        "/opc/v2/instance/shape": (("Authorization", "Bearer Oracle"), "BM.GPU.H100.8"),
        "/opc/v2/instance/canonicalRegionName": (
            ("Authorization", "Bearer Oracle"),
            "us-ashburn-1",
        ),
    },
}
FACTS = {
    "aws": CloudFacts("aws", "p5.48xlarge", "us-east-2", True),
    "gcp": CloudFacts("gcp", "a3-highgpu-8g", "us-central1", False),
    "azure": CloudFacts("azure", "Standard_ND96isr_H100_v5", "eastus", True),
    "oci": CloudFacts("oci", "BM.GPU.H100.8", "us-ashburn-1", None),
}


def write_firmware(sys: Path, files: Mapping[str, str]) -> None:
    folder = sys / "class/dmi/id"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")


@contextmanager
def served(answers: Mapping[str, tuple[tuple[str, str], str]]) -> Iterator[tuple[str, int]]:
    """A metadata service: 401 without the header, 404 for other paths."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            (header, value), body = answers.get(self.path, (("", ""), ""))
            is_token = self.path == "/latest/api/token"
            status = 200
            if not header:
                status = 404
            elif self.headers.get(header) != value or (self.command == "PUT") != is_token:
                status = 401
            data = body.encode() if status == 200 else b"no"
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = answer  # noqa: N815  # names of http.server

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield ("127.0.0.1", server.server_address[1])
        finally:
            server.shutdown()


@pytest.mark.parametrize("cloud", FIRMWARE)
def test_the_firmware_names_the_cloud(tmp_path: Path, cloud: str) -> None:
    write_firmware(tmp_path, FIRMWARE[cloud])
    kind = "p5.48xlarge" if cloud == "aws" else None
    assert firmware_facts(tmp_path) == CloudFacts(cloud, kind)


def test_a_host_of_no_cloud_is_never_asked(tmp_path: Path) -> None:
    clock = ManualClock(EPOCH)
    assert cloud_host(tmp_path, clock, ask_metadata=True) is None
    # Hyper-V elsewhere, and a workstation of Google's.
    write_firmware(tmp_path, {"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": "None"})
    assert cloud_host(tmp_path, clock, ask_metadata=True) is None
    write_firmware(tmp_path, {"sys_vendor": "Google", "product_name": "Kevin"})
    assert cloud_host(tmp_path, clock, ask_metadata=True) is None


@pytest.mark.parametrize("cloud", ANSWERS)
def test_the_metadata_service_tells_type_region_and_spot(cloud: str) -> None:
    with served(ANSWERS[cloud]) as address:
        assert asked_facts(cloud, metadata_service(address)) == FACTS[cloud]


@pytest.mark.parametrize("cloud", ANSWERS)
def test_what_refuses_or_answers_rubbish_is_an_error(cloud: str) -> None:
    with served({}) as address, pytest.raises(OSError, match="status 404"):
        asked_facts(cloud, metadata_service(address))
    page = {
        path: (header, "<html>log in first</html>") for path, (header, _) in ANSWERS[cloud].items()
    }
    token = ANSWERS["aws"]["/latest/api/token"]
    with (
        served({**page, "/latest/api/token": token}) as address,
        pytest.raises(ValueError, match="is not a name of a cloud"),
    ):
        asked_facts(cloud, metadata_service(address))


@given(st.text() | st.text(alphabet="/-"))
def test_any_text_is_a_name_or_an_error(text: str) -> None:
    for cloud in ANSWERS:
        try:
            facts = asked_facts(cloud, lambda *_: text)
        except ValueError:
            continue
        for value in (facts.instance_type, facts.region):
            assert value is None or (value and value.isascii() and len(value) <= 100)


def test_an_answer_without_end_is_cut() -> None:
    path = "/opc/v2/instance/shape"
    long = {path: (("Authorization", "Bearer Oracle"), "x" * 10 * ANSWER_BYTES_MAX)}
    with served(long) as address:
        ask = metadata_service(address)
        assert len(ask("GET", path, {"Authorization": "Bearer Oracle"})) == ANSWER_BYTES_MAX


def test_a_service_that_is_away_is_asked_again_later_and_then_never_more() -> None:
    clock, asked = ManualClock(EPOCH), 0
    is_away = True

    def ask(method: str, path: str, headers: Mapping[str, str]) -> str:
        nonlocal asked
        if path == "/opc/v2/instance/shape":
            asked += 1
        if is_away:
            raise OSError(101, "Network is unreachable")
        return ANSWERS["oci"][path][1]

    host = CloudHost(CloudFacts("oci"), clock, ask, retry_s=(60.0, 600.0))

    def row() -> dict[str, Any]:
        found = host.row()
        assert host._thread
        host._thread.join()
        return found

    assert row() == {"cloud": "oci"}
    assert (asked, host.error) == (1, "Network is unreachable")
    for pause_s, count in ((59, 1), (1, 2), (599, 2), (1, 3), (600, 4)):
        clock.advance(pause_s)
        assert row() == {"cloud": "oci"}
        assert asked == count
    is_away = False
    clock.advance(600)
    row()
    assert host.row() == {
        "cloud": "oci",
        "instance_type": "BM.GPU.H100.8",
        "region": "us-ashburn-1",
    }
    assert host.error is None
    clock.advance(86_400)
    row()
    assert asked == 5


def test_without_permission_only_the_firmware_is_read(tmp_path: Path) -> None:
    write_firmware(tmp_path, FIRMWARE["aws"])
    host = cloud_host(tmp_path, ManualClock(EPOCH), ask_metadata=False)
    assert host
    assert host.row() == {"cloud": "aws", "instance_type": "p5.48xlarge"}
    assert host._thread is None
