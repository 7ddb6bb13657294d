"""The socket of the data folder: who may write there may ask."""

import asyncio
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from gpuwarden_collector.processes.control_socket import NAME, ask, serving


async def hello() -> dict[str, Any]:
    return {"path": "here"}


async def asked(folder: Path, command: str) -> dict[str, Any] | None:
    return await asyncio.to_thread(ask, folder, command, 5.0)


@pytest.mark.parametrize("depth", [0, 12])
async def test_a_question_has_an_answer_however_long_the_path_is(
    tmp_path: Path, depth: int
) -> None:
    folder = tmp_path.joinpath(*["long-folder-name"] * depth)
    folder.mkdir(parents=True, exist_ok=True)
    async with serving(folder, {"hello": hello}):
        assert await asked(folder, "hello") == {"path": "here"}
        assert await asked(folder, "delete all") == {"error": "no such command"}
        assert await asked(folder, "hello") == {"path": "here"}
    assert await asked(folder, "hello") is None
    assert not (folder / NAME).exists()


async def test_only_the_owner_may_ask(tmp_path: Path) -> None:
    async with serving(tmp_path, {}):
        assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600


async def test_a_socket_that_a_kill_left_is_in_nobodys_way(tmp_path: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / NAME))
    left.close()
    assert await asked(tmp_path, "hello") is None
    async with serving(tmp_path, {"hello": hello}):
        assert await asked(tmp_path, "hello") == {"path": "here"}


async def test_rubbish_ends_its_own_connection_alone(tmp_path: Path) -> None:
    async with serving(tmp_path, {"hello": hello}):
        for rubbish in (b"\xff\xfe\n", b"\0" * 5_000, b""):
            _, writer = await asyncio.open_unix_connection(tmp_path / NAME)
            writer.write(rubbish)
            writer.close()
        assert await asked(tmp_path, "hello") == {"path": "here"}


async def test_an_answer_that_never_comes_is_said(tmp_path: Path) -> None:
    async def slow() -> dict[str, Any]:
        raise ConnectionError

    async with serving(tmp_path, {"slow": slow}):
        with pytest.raises(ConnectionError, match="ended before it answered"):
            await asked(tmp_path, "slow")
