"""Ancestors as one text and back; remarks on signals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.process_tree import (
    Ancestor,
    ancestors_of,
    ancestors_text,
    signal_remarks,
)

ANCESTORS = st.lists(st.builds(Ancestor, st.integers(1, 2**22), st.text(max_size=15)))


@given(ANCESTORS)
def test_ancestors_are_read_as_they_were_written(ancestors: list[Ancestor]) -> None:
    read = ancestors_of(ancestors_text(ancestors))
    assert [one.pid for one in read] == [one.pid for one in ancestors]
    for one, other in zip(read, ancestors, strict=True):
        assert len(one.name) == len(other.name)
        assert all(a in (b, "?") for a, b in zip(one.name, other.name, strict=True))


@given(st.text())
def test_any_text_has_ancestors_or_none(text: str) -> None:
    assert all(one.pid >= 0 for one in ancestors_of(text))


def test_names_with_parentheses_stay() -> None:
    above = [Ancestor(1, "(sd-pam)"), Ancestor(7, "tmux: server"), Ancestor(9, "a (1)")]
    assert ancestors_text(above) == "(sd-pam) (1) > tmux: server (7) > a (1) (9)"
    assert ancestors_of(ancestors_text(above)) == above
    assert ancestors_of(None) == []


def test_a_name_cannot_add_an_ancestor_nor_a_line() -> None:
    assert ancestors_text([Ancestor(1, "a (2) > b\n\x1b[0m")]) == "a (2) ? b??[0m (1)"


@pytest.mark.parametrize(
    ("process", "remarks"),
    [
        ({}, []),
        ({"signals_pending": None, "signals_ignored": "none", "state": "S"}, []),
        ({"signals_ignored": "SIGPIPE, SIGXFSZ", "signals_blocked": "none"}, []),
        ({"signals_ignored": "SIGINT, SIGQUIT"}, []),
        ({"signals_ignored": "SIGHUP, SIGINT, SIGTERM"}, ["ignores SIGTERM and SIGINT"]),
        ({"signals_blocked": "SIGTERM"}, ["main thread blocks SIGTERM"]),
        ({"signals_pending": "SIGCHLD", "state": "D"}, []),
        ({"signals_pending": "SIGTERM", "state": "S"}, ["SIGTERM pending"]),
        (
            {"signals_pending": "SIGKILL, SIGTERM", "state": "D", "signals_ignored": "SIGTERM"},
            ["SIGKILL and SIGTERM pending, in state D: waits in the kernel", "ignores SIGTERM"],
        ),
    ],
)
def test_what_matters_of_signals_is_said(process: dict[str, str], remarks: list[str]) -> None:
    assert signal_remarks(process) == remarks
