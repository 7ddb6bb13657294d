"""A recording without identity tells what the hardware did, and nobody's name."""

import json
import uuid

from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.metrics import Type
from gpuwarden.schema import WIRE_TABLES
from gpuwarden_simulator.recordings.pseudonyms import KEPT, PLAIN_PROCESSES, Pseudonyms, mapped_uuid

TEXTS = {
    name: [c.name for c in table.columns if c.type is Type.STRING and c.name not in KEPT]
    for name, table in WIRE_TABLES.items()
}


def test_every_text_that_is_not_named_as_harmless_is_hidden() -> None:
    for table, columns in TEXTS.items():
        row = {column: f"secret {column}" for column in columns}
        hidden = Pseudonyms().reading({table: [row]})
        assert "secret" not in json.dumps(hidden), table
        assert set(hidden[table][0]) == set(row)


def test_what_names_people_is_not_harmless() -> None:
    owners = {
        "node",
        "username",
        "job",
        "container_id",
        "pod",
        "command",
        "cgroup",
        "owner",
    }
    assert not KEPT & (
        owners | {"serial", "gpu_uuid", "message", "details", "process_name", "labels"}
    )


@given(st.lists(st.text(min_size=1), min_size=2, max_size=6))
def test_the_same_name_is_the_same_pseudonym_and_two_are_two(names: list[str]) -> None:
    hidden = Pseudonyms()
    rows = [{"gpu": n, "username": name, "gpu_uuid": f"GPU-{name}"} for n, name in enumerate(names)]
    made = hidden.reading({"process_samples": rows})["process_samples"]
    for column in ("username", "gpu_uuid"):
        assert len({row[column] for row in made}) == len(set(names))
    assert [row["gpu"] for row in made] == list(range(len(names)))
    assert made == hidden.reading({"process_samples": rows})["process_samples"]


def test_numbers_and_what_hardware_says_stay() -> None:
    row = {"gpu_uuid": "GPU-1", "util_percent": 97.5, "memory_used_bytes": None}
    kept = {"model": "NVIDIA H200", "pci_bus_id": "0000:01:00.0", "gpu": 0}
    hidden = Pseudonyms().reading({"gpu_samples": [row], "gpus": [kept]})
    assert {**hidden["gpu_samples"][0], "gpu_uuid": ""} == {**row, "gpu_uuid": ""}
    assert hidden["gpus"] == [kept]


def test_a_uuid_stays_one_and_is_another_in_another_recording() -> None:
    one, other = Pseudonyms().uuid("MIG-1"), Pseudonyms().uuid("MIG-1")
    assert one.startswith("MIG-") and uuid.UUID(one.removeprefix("MIG-"))
    assert one != other
    space = uuid.uuid4()
    assert mapped_uuid(space, "GPU-a") == mapped_uuid(space, "GPU-a") != mapped_uuid(space, "GPU-b")


def test_events_keep_codes_and_lose_words() -> None:
    details = json.dumps({"xid": 79, "process": "alice_train", "nested": {"pid": 1}})
    event = {"kind": "xid", "severity": "critical", "message": "alice_train on GPU 0", "details": details}  # fmt: skip
    (made,) = Pseudonyms().reading({"events": [event]})["events"]
    assert made["kind"] == "xid" and made["severity"] == "critical"
    assert json.loads(made["details"]) == {"xid": 79}
    assert "alice" not in json.dumps(made)
    for odd in ("[1]", "no json", '"alice"'):
        assert Pseudonyms().reading({"events": [{"details": odd}]})["events"][0]["details"] is None


def test_executables_that_everybody_has_keep_their_names() -> None:
    rows = [{"process_name": name} for name in (*sorted(PLAIN_PROCESSES), "acme_llm")]
    made = Pseudonyms().reading({"process_samples": rows})["process_samples"]
    assert made[:-1] == rows[:-1]
    assert made[-1] == {"process_name": "process_name-1"}
