"""Collectors agree through a real PostgreSQL server who maintains, and who seals when."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest
from tests.cluster.conftest import Postgres

from gpuwarden.alert import SharedSilence
from gpuwarden_collector.storage import coordination
from gpuwarden_collector.storage.address import address_of, local_address
from gpuwarden_collector.storage.coordination import Coordination
from gpuwarden_collector.storage.errors import StoreUnavailableError
from gpuwarden_collector.storage.extensions import load_extension

Join = Callable[[], Coordination]


@pytest.fixture
def join(conninfo: str) -> Iterator[Join]:
    """Another collector of the test's lake."""
    joined: list[Coordination] = []

    def make() -> Coordination:
        address = address_of(Path("/srv"), f"postgres:{conninfo}", "/srv/lake", {})
        joined.append(Coordination(address))
        return joined[-1]

    yield make
    for one in joined:
        one.close()


def ask(conninfo: str, sql: str) -> object:
    with duckdb.connect() as connection:
        load_extension(connection, "postgres_scanner")
        connection.execute(f"ATTACH '{conninfo}' AS server (TYPE postgres)")
        row = connection.execute("FROM postgres_query('server', $1)", [sql]).fetchone()
    return row[0] if row else None


CUT_OFF_SQL = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
    "WHERE application_name = 'gpuwarden'"
)


def test_with_a_local_catalogue_there_is_nobody_to_agree_with(tmp_path: Path) -> None:
    alone = Coordination(local_address(tmp_path))
    assert alone.is_leader()
    assert alone.share_silences([SharedSilence("s", 0, 1, "{}")], [], 0) == []
    alone.close()


def test_one_leads_until_it_is_gone(join: Join) -> None:
    a, b = join(), join()
    assert a.is_leader()
    assert not b.is_leader()
    assert a.is_leader()
    a.close()
    assert b.is_leader()
    assert not a.is_leader()


def test_a_leader_that_is_cut_off_finds_out(join: Join, conninfo: str) -> None:
    a, b = join(), join()
    assert a.is_leader()
    assert ask(conninfo, CUT_OFF_SQL) == 1
    assert b.is_leader()
    assert not a.is_leader()
    assert not a.is_leader()
    b.close()
    assert a.is_leader()


def test_nobody_leads_while_the_server_is_away(
    join: Join, postgres: Postgres, conninfo: str
) -> None:
    a = join()
    assert a.is_leader()
    postgres.stop()
    try:
        assert not a.is_leader()
        with pytest.raises(StoreUnavailableError), a.sealing(is_exclusive=True):
            pass
    finally:
        postgres.start()
    assert a.is_leader()
    with a.sealing(is_exclusive=False) as turn:
        turn.check()


def test_many_seal_side_by_side_and_one_alone(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordination, "SEAL_WAIT_S", 0.1)
    a, b = join(), join()
    with a.sealing(is_exclusive=False), b.sealing(is_exclusive=False):
        pass
    with (
        a.sealing(is_exclusive=False),
        pytest.raises(StoreUnavailableError, match="other collectors"),
        b.sealing(is_exclusive=True),
    ):
        pass
    with (
        a.sealing(is_exclusive=True),
        pytest.raises(StoreUnavailableError, match="other collectors"),
        b.sealing(is_exclusive=False),
    ):
        pass
    with b.sealing(is_exclusive=True):
        pass


def test_a_turn_that_was_lost_is_noticed_before_the_end(join: Join, conninfo: str) -> None:
    with join().sealing(is_exclusive=True) as turn:
        turn.check()
        ask(conninfo, CUT_OFF_SQL)
        with pytest.raises(StoreUnavailableError):
            turn.check()


def test_waiting_for_a_turn_ends_when_the_collector_stops(join: Join) -> None:
    a, b = join(), join()
    failed: list[Exception] = []

    def wait() -> None:
        try:
            with b.sealing(is_exclusive=True):
                pass
        except StoreUnavailableError as error:
            failed.append(error)

    with a.sealing(is_exclusive=True):
        waiting = threading.Thread(target=wait)
        waiting.start()
        while waiting.is_alive():
            b.interrupt()
            time.sleep(0.01)
    assert len(failed) == 1


def test_an_open_turn_keeps_nothing_from_being_vacuumed(join: Join, conninfo: str) -> None:
    a = join()
    assert a.is_leader()
    sql = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'gpuwarden' "
        "AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)"
    )
    assert ask(conninfo, sql) == 0


def test_a_claim_is_of_the_first_collector_also_after_its_restart(
    join: Join, conninfo: str
) -> None:
    a, b = join(), join()
    assert a.claim("report o'clock", "A")
    assert not b.claim("report o'clock", "B")
    a.close()
    assert join().claim("report o'clock", "A"), "of the same collector"
    assert b.claim("report of the next week", "B")
    assert ask(conninfo, "SELECT count(*) FROM gpuwarden_claims") == 2


def test_of_two_versions_of_a_silence_the_newer_one_stays_and_of_equal_ones_the_earlier_end(
    join: Join, conninfo: str
) -> None:
    a, b = join(), join()
    first = SharedSilence("s'1", 0, 2_000_000_000_000, '{"comment": "it\'s “x”"}')
    assert a.share_silences([first], [], 0) == [first]
    assert b.share_silences([], [], 0) == [first]
    longer = first._replace(changes=1, ends_ms=3_000_000_000_000)
    ended = first._replace(changes=1, ends_ms=1_900_000_000_000)
    assert a.share_silences([longer], [], 0) == [longer]
    assert b.share_silences([ended], [], 0) == [ended]
    assert a.share_silences([longer, first], [], 0) == [ended], "the earlier end holds"
    # What ended before is listed only for those who know it.
    assert a.share_silences([], [], ended.ends_ms) == []
    assert a.share_silences([], [first.id, "another"], ended.ends_ms) == [ended]
    ancient = SharedSilence("old", 0, 1_000_000_000_000, "{}")
    a.share_silences([ancient], [], 0)
    assert a.share_silences([ended], [], 0) == [ended], "forgotten after 400 days"
    b.close()


def test_of_many_at_once_one_gets_the_claim(join: Join) -> None:
    collectors = {name: join() for name in "ABCD"}
    answers: dict[str, bool] = {}
    errors: list[StoreUnavailableError] = []

    def claim(name: str) -> None:
        while name not in answers:
            try:
                answers[name] = collectors[name].claim("report", name)
            except (
                StoreUnavailableError
            ) as error:  # two made the table at the same moment: as a collector, try again
                errors.append(error)

    threads = [threading.Thread(target=claim, args=[name]) for name in collectors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers.values()) == [False, False, False, True]


def test_a_claim_waits_for_the_server(tmp_path: Path) -> None:
    address = address_of(
        Path("/srv"),
        "postgres:host=127.0.0.1 port=1 dbname=x user=x connect_timeout=1",
        "/srv/lake",
        {},
    )
    away = Coordination(address)
    with pytest.raises(StoreUnavailableError):
        away.claim("report", "A")
    away.close()
    alone = Coordination(local_address(tmp_path))
    assert alone.claim("report", "A")
    alone.close()
