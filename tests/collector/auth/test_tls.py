"""TLS as a client sees it: new certificates without a lost connection, old protocols refused, clear words."""

import asyncio
import re
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.lifecycle import StartError
from gpuwarden_collector.auth.tls import ServerTls

V = ssl.TLSVersion
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Client:
    """One connection over which requests go."""

    async def open(self, url: str, context: ssl.SSLContext, name: str = "localhost") -> "Client":
        port = int(url.rpartition(":")[2])
        self.reader, self.writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname=name
        )
        return self

    @property
    def serial(self) -> str:
        return str(self.writer.get_extra_info("peercert")["serialNumber"])

    async def ask(self) -> bytes:
        self.writer.write(REQUEST)
        head = await self.reader.readuntil(b"\r\n\r\n")
        await self.reader.readexactly(len(b'{"status": "ok"}'))
        return head.split(b"\r\n")[0]


async def test_a_new_certificate_is_used_and_no_connection_is_lost(
    start: Any, certified: Any
) -> None:
    async with start(**certified.settings) as collector:
        assert collector.url.startswith("https://")
        before = await Client().open(collector.url, certified.trusting())
        assert await before.ask() == b"HTTP/1.1 200 OK"
        certified.issue()
        collector.reload()
        after = await Client().open(collector.url, certified.trusting())
        assert after.serial != before.serial
        nameless = await Client().open(collector.url, certified.trusting(), "127.0.0.1")
        assert nameless.serial == after.serial, "who names no host gets the new one too"
        for client in (before, after, nameless):
            assert await client.ask() == b"HTTP/1.1 200 OK"
            client.writer.close()


async def test_a_key_that_does_not_match_is_logged_once_and_the_old_certificate_stays(
    start: Any, certified: Any, caplog: Any
) -> None:
    async with start(**certified.settings) as collector:
        key = certified.key.read_text()
        certified.issue()
        new_key = certified.key.read_text()
        certified.key.write_text(key)  # the old key beside the new certificate
        collector.reload()
        collector.reload()
        [record] = [r for r in caplog.records if "new certificate is invalid" in r.message]
        assert record.why == f"{certified.key}: the key does not match the certificate"
        client = await Client().open(collector.url, certified.trusting())
        assert await client.ask() == b"HTTP/1.1 200 OK"
        certified.key.write_text(new_key)
        collector.reload()
        after = await Client().open(collector.url, certified.trusting())
        assert after.serial != client.serial
        client.writer.close()
        after.writer.close()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_protocols_before_tls_1_2_and_plain_http_are_refused(
    start: Any, certified: Any
) -> None:
    assert ServerTls(certified.cert, certified.key).context.minimum_version is V.TLSv1_2
    async with start(**certified.settings) as collector:
        for newest, is_accepted in ((V.TLSv1_1, False), (V.TLSv1_2, True), (V.TLSv1_3, True)):
            context = certified.trusting()
            context.set_ciphers("ALL:@SECLEVEL=0")
            context.minimum_version, context.maximum_version = V.TLSv1, newest
            try:
                client = await Client().open(collector.url, context)
            except (ssl.SSLError, ConnectionError):
                assert not is_accepted
                continue
            assert is_accepted
            client.writer.close()
        port = int(collector.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST)
        assert b"status" not in await reader.read()
        writer.close()


async def test_the_page_of_metrics_says_when_it_ends(
    start: Any, certified: Any, clock: Any, caplog: Any
) -> None:
    import aiohttp

    ends_at = clock.now() + timedelta(days=3)
    certified.issue(ends_at=ends_at)
    async with start(**certified.settings) as collector:
        connector = aiohttp.TCPConnector(ssl=False)  # by the machine's clock it is over
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(collector.url + "/metrics") as answer,
        ):
            text = await answer.text()
    said = re.search(r"^gpuwarden_\w*certificate_ends_timestamp_seconds (\S+)$", text, re.MULTILINE)
    assert said is not None
    assert float(said[1]) == ends_at.timestamp()
    [record] = [r for r in caplog.records if r.message == "the certificate expires soon"]
    assert record.remedy.startswith("gpuwarden collector init --renew")


@pytest.mark.parametrize(
    ("cert", "key", "says"),
    [
        (None, None, "cert.pem: No such file"),
        ("rubbish", None, "cert.pem: the file has no PEM certificate"),
        ("keep", "rubbish", "key.pem: the file has no PEM key"),
        ("keep", None, "key.pem: No such file"),
    ],
)
def test_files_that_cannot_be_used_are_named(
    certified: Any, cert: str | None, key: str | None, says: str
) -> None:
    for path, content in ((certified.cert, cert), (certified.key, key)):
        if content is None:
            path.unlink()
        elif content != "keep":
            path.write_text(content)
    with pytest.raises(StartError, match=f"{says}.*: see tls_cert and tls_key"):
        ServerTls(certified.cert, certified.key)


def test_a_key_with_a_password_causes_no_prompt(certified: Any, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    key = load_pem_private_key(certified.key.read_bytes(), None)
    certified.key.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    )
    with pytest.raises(StartError, match="without a password"):
        ServerTls(certified.cert, certified.key)


async def test_a_request_whose_head_does_not_end_is_closed(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuwarden_collector.http import listen

    monkeypatch.setattr(listen, "IDLE_S", 0.3)
    async with start() as collector:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(collector.url.rpartition(":")[2])
        )
        writer.write(REQUEST[:-2])
        async with asyncio.timeout(20):
            while True:  # a byte sometimes does not lengthen its life
                writer.write(b"X: y\r\n")
                try:
                    async with asyncio.timeout(0.1):
                        if not await reader.read(1):
                            break
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
        writer.close()
