"""The ledger says "stored" exactly for what was stored or will never come."""

from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_collector.ingest.deduplicate import StoredSequences
from gpuwarden_collector.storage.state import ranges_from_text, ranges_to_text

SEQUENCES = st.integers(1, 40)
STEPS = st.lists(st.tuples(st.sampled_from(["store", "raise"]), SEQUENCES), max_size=60)


@given(STEPS)
def test_it_agrees_with_a_plain_set(steps: list[tuple[str, int]]) -> None:
    ledger, stored, floor = StoredSequences(), set[int](), 1
    for step, number in steps:
        if step == "store":
            ledger = ledger.having(number)
            stored.add(number)
        else:
            ledger = ledger.raised(number)
            floor = max(floor, number)
        for sequence in range(1, 45):
            assert ledger.has(sequence) == (sequence in stored or sequence < floor)


@given(STEPS)
def test_ranges_are_sorted_apart_and_above_the_floor(steps: list[tuple[str, int]]) -> None:
    ledger = StoredSequences()
    for step, number in steps:
        ledger = ledger.having(number) if step == "store" else ledger.raised(number)
        edges = [ledger.floor, *(edge for pair in ledger.ranges for edge in pair)]
        assert all(first <= last for first, last in ledger.ranges)
        assert all(a + 1 < b for a, b in zip(edges[2::2], edges[3::2], strict=False))
        assert not ledger.ranges or ledger.ranges[0][0] > ledger.floor


@given(STEPS)
def test_text_and_back_is_the_same(steps: list[tuple[str, int]]) -> None:
    ledger = StoredSequences()
    for _, number in steps:
        ledger = ledger.having(number)
    assert ranges_from_text(ranges_to_text(ledger.ranges)) == ledger.ranges


def test_storing_a_stored_sequence_changes_nothing() -> None:
    ledger = StoredSequences().having(5)
    assert ledger.having(5) is ledger
    assert ledger.raised(1) is ledger
