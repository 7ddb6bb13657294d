"""A board that another one replaces is known as such, and one that was lost is not taken for it."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.collector.made_up_store import asked

from gpuwarden.wire import BatchId
from gpuwarden_collector.ingest import prices
from gpuwarden_collector.ingest.commit_plan import (
    Batch,
    Known,
    apply,
    inventory_table,
    loaded,
    plan,
)
from gpuwarden_collector.ingest.decode import Decoded
from gpuwarden_collector.ingest.inventory import Item, place_of
from gpuwarden_collector.storage.commit import Changes, commit
from gpuwarden_collector.storage.database import Database

ADDRESS = "0000:0a:00.0"
BESIDE = "0000:1a:00.0"


class Fleet:
    """What is known after agents have told of boards, one batch after the other."""

    def __init__(self, wire: Any) -> None:
        self.wire = wire
        self.known = Known()
        self.sequence = 0

    def tell(
        self,
        gpu_uuid: str,
        node: str = "n1",
        address: str | None = ADDRESS,
        *,
        sequence: int | None = None,
        is_import: bool = False,
        **more: Any,
    ) -> dict[str, str | None]:
        """An agent of the node reports a board; by which each is replaced."""
        self.sequence += 1
        row = {"gpu_uuid": gpu_uuid, "node": node, "pci_bus_id": address, "simulated": True, **more}
        number = self.sequence if sequence is None else sequence
        decoded = Decoded.of({"gpus": self.wire.table("gpus", [row])}, 100)
        batch_id = BatchId(f"agent of {node}", str(self.sequence), number, is_import=is_import)
        batch = Batch(batch_id, decoded)
        now = self.wire.now + timedelta(minutes=self.sequence)
        apply(self.known, plan(self.known, [batch], prices.PriceBook(), now))
        return self.replaced()

    def replaced(self) -> dict[str, str | None]:
        return {k: item.row.get("replaced_by") for k, item in self.known.items["gpus"].items()}


@pytest.fixture
def fleet(wire: Any) -> Fleet:
    return Fleet(wire)


def test_a_new_board_at_the_address_of_another_replaces_it(fleet: Fleet) -> None:
    assert fleet.tell("GPU-old") == {"GPU-old": None}
    assert fleet.tell("GPU-new") == {"GPU-old": "GPU-new", "GPU-new": None}
    assert fleet.tell("GPU-newer") == {
        "GPU-old": "GPU-new",
        "GPU-new": "GPU-newer",
        "GPU-newer": None,
    }


def test_a_board_from_another_node_replaces_too(fleet: Fleet) -> None:
    fleet.tell("GPU-a")
    fleet.tell("GPU-b", "n2")
    assert fleet.tell("GPU-b", "n1") == {"GPU-a": "GPU-b", "GPU-b": None}


def test_a_board_that_comes_back_is_not_replaced_any_more(fleet: Fleet) -> None:
    fleet.tell("GPU-old")
    fleet.tell("GPU-new")
    assert fleet.tell("GPU-old") == {"GPU-old": None, "GPU-new": "GPU-old"}
    assert fleet.tell("GPU-new", "n2") == {"GPU-old": None, "GPU-new": None}


def test_boards_that_are_numbered_anew_when_one_is_gone_have_not_replaced_it(fleet: Fleet) -> None:
    fleet.tell("GPU-gone", address=ADDRESS)
    fleet.tell("GPU-beside", address=BESIDE)
    assert set(fleet.tell("GPU-beside", address=ADDRESS).values()) == {None}


def test_mig_devices_boards_without_address_history_and_old_news_replace_nothing(
    fleet: Fleet,
) -> None:
    fleet.tell("GPU-old", sequence=50)
    fleet.tell("MIG-1", mig_instance="1/0", parent_gpu_uuid="GPU-old")
    fleet.tell("GPU-nowhere", address=None)
    fleet.tell("GPU-history", is_import=True)
    told = fleet.tell("GPU-before", sequence=40)
    assert set(told.values()) == {None}


def test_what_is_stored_says_who_is_where(fleet: Fleet, wire: Any) -> None:
    fleet.tell("GPU-old")
    fleet.tell("GPU-new")
    rows = [dict(item.row) for item in fleet.known.items["gpus"].values()]
    fleet.known = loaded([], {"nodes": [], "gpus": rows}, [], wire.now)
    assert fleet.tell("GPU-new") == {"GPU-old": "GPU-new", "GPU-new": None}
    assert fleet.tell("GPU-newer")["GPU-new"] == "GPU-newer"


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["n1", "n2"]),
                          st.sampled_from([ADDRESS, BESIDE, None])), max_size=12))  # fmt: skip
def test_whoever_spoke_last_is_there_and_is_replaced_by_nobody(
    wire_maker: Any, told: list[tuple[str, str, str | None]]
) -> None:
    fleet = Fleet(wire_maker())
    for name, node, address in told:
        replaced = fleet.tell(name, node, address)
        assert replaced[name] is None
        for one, other in replaced.items():
            assert other is None or (other in replaced and other != one)
    assert set(fleet.known.places.values()) <= set(fleet.replaced())
    rows = {key: dict(item.row) for key, item in fleet.known.items["gpus"].items()}
    again = loaded([], {"nodes": [], "gpus": list(rows.values())}, [], fleet.wire.now)
    for place, key in again.places.items():
        assert (place_of(rows[key]), rows[key].get("replaced_by")) == (place, None)


def test_a_row_that_is_written_again_was_heard_of_no_earlier_than_before(
    database: Database, wire: Any
) -> None:
    row = {"gpu_uuid": "GPU-0", "node": "n1", "simulated": True}
    later = wire.now + timedelta(hours=1)

    def heard(at: Any, **more: Any) -> Any:
        item = Item({**row, "last_seen_at": at, **more})
        commit(database, Changes(upserted={"gpus": inventory_table("gpus", {"GPU-0": item})}))
        return asked(database, "SELECT last_seen_at, serial FROM gpus")[0]

    assert heard(later)[0] == later.replace(tzinfo=None)
    assert heard(wire.now, serial="s1") == (later.replace(tzinfo=None), "s1")
    assert heard(None) == (later.replace(tzinfo=None), None)
