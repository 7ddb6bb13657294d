"""A store is read without being changed, and what would keep a collector from starting is said."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gpuwarden.lifecycle import StartError
from gpuwarden_collector.doctor import store_version
from gpuwarden_collector.storage.address import CATALOGUE, FOLDER
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import EngineLimits
from gpuwarden_collector.storage.segment import FOLDER as SEGMENTS
from gpuwarden_collector.storage.segment_log import LOCK_NAME
from gpuwarden_collector.storage.state import FILE_NAME, SCHEMA_VERSION


@pytest.fixture
def store(tmp_path: Path) -> Path:
    Database.open(tmp_path, EngineLimits(threads=1)).close()
    return tmp_path


def test_a_store_has_its_version_and_an_empty_folder_none(store: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    before.pop(store / LOCK_NAME)
    assert store_version(store) == SCHEMA_VERSION
    assert {path: path.read_bytes() for path in before} == before
    assert store_version(tmp_path / "nothing") is None


def test_a_newer_store_is_refused_with_both_versions_and_left_as_it_is(store: Path) -> None:
    with closing(sqlite3.connect(store / FILE_NAME)) as state, state:
        state.execute("UPDATE meta SET value = value + 1 WHERE name = 'schema_version'")
    content = (store / FILE_NAME).read_bytes()
    for opening in (store_version, lambda folder: Database.open(folder, EngineLimits(threads=1))):
        with pytest.raises(StartError) as refused:
            opening(store)
        text = str(refused.value)
        assert f"schema version {SCHEMA_VERSION + 1}" in text
        assert "install the newer gpuwarden again" in text and "\n" not in text
    assert (store / FILE_NAME).read_bytes() == content


@pytest.mark.parametrize(
    "damaged", [FILE_NAME, f"{FOLDER}/{CATALOGUE}", f"{SEGMENTS}/000000000007.seg"]
)
def test_damage_is_one_line_with_the_command_that_looks_closer(store: Path, damaged: str) -> None:
    (store / damaged).write_bytes(b"no database at all " * 1000)
    with pytest.raises(StartError, match="collector check") as refused:
        store_version(store)
    assert "\n" not in str(refused.value)
