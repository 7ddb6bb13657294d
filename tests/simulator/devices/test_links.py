"""Links share what their GPU carries, to the last KiB, and ports carry what fits their node."""

from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_simulator.devices.links import (
    KIB,
    LinkBytes,
    LinkTrouble,
)

DOWN = LinkTrouble(is_down=True, downs=2)


@given(
    looks=st.lists(
        st.tuples(st.integers(0, 10**15), st.sets(st.integers(0, 17), max_size=17)), max_size=10
    )
)
def test_links_and_gpu_add_up_and_no_link_runs_backwards(
    looks: list[tuple[int, set[int]]],
) -> None:
    carried, total = LinkBytes([0] * 18, [0] * 18), 0
    for more, down in looks:
        before, total = list(carried.tx_kib), total + more
        carried.share(total, total // 2, dict.fromkeys(down, DOWN))
        assert sum(carried.tx_kib) == total // KIB
        assert sum(carried.rx_kib) == total // 2 // KIB
        assert all(new >= old for old, new in zip(before, carried.tx_kib, strict=True))
        assert all(carried.tx_kib[link] == before[link] for link in down)


def test_links_begin_anew_with_the_driver() -> None:
    carried = LinkBytes([500, 700], [500, 700])
    carried.share(10 * KIB, 10 * KIB, {})
    assert carried.tx_kib == [5, 5]
