"""A private authority: what it signs is believed by those who trust it, also after renewal, and nothing else is."""

import asyncio
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.clock import ManualClock, SystemClock
from gpuwarden_collector.auth.authority import AuthorityError, AuthorityFiles, init, renew
from gpuwarden_collector.auth.tls import certificate_of

NAMES = ["localhost", "127.0.0.1", "gpu.example", "2001:db8::1"]


@pytest.fixture
def files(tmp_path_factory: pytest.TempPathFactory) -> AuthorityFiles:
    return AuthorityFiles(tmp_path_factory.mktemp("authority") / "tls")


async def greeted(url: str, ca: Path) -> bool:
    context = ssl.create_default_context(cafile=str(ca))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    _, writer = await asyncio.open_connection(
        "127.0.0.1", int(url.rpartition(":")[2]), ssl=context, server_hostname="127.0.0.1"
    )
    writer.close()
    return True


async def test_clients_that_trusted_the_old_certificate_trust_the_renewed_one(
    start: Any, files: AuthorityFiles, tmp_path: Path
) -> None:
    now = SystemClock().now()
    made = init(files, NAMES, now)
    assert set(made.names) == set(NAMES)
    pinned = tmp_path / "pinned.pem"
    pinned.write_bytes(files.ca.read_bytes())
    async with start(tls_cert=files.cert, tls_key=files.key, tls_ca=files.ca) as collector:
        assert await greeted(collector.url, pinned)
        renewed = renew(files, [], now)
        collector.reload()
        assert (renewed.names, renewed.fingerprint != made.fingerprint) == (made.names, True)
        assert await greeted(collector.url, pinned)


def test_keys_are_private_and_lives_are_as_said(files: AuthorityFiles, clock: ManualClock) -> None:
    init(files, NAMES, clock.now())
    modes = {p.name: p.stat().st_mode & 0o777 for p in files.folder.iterdir()}
    assert modes == {"ca.key": 0o600, "server.key": 0o600, "ca.pem": 0o644, "server.pem": 0o644}
    assert (certificate_of(files.ca).ends_at - clock.now()).days in (3652, 3653)
    assert (certificate_of(files.cert).ends_at - clock.now()).days in (364, 365)


def test_an_existing_authority_is_not_overwritten(
    files: AuthorityFiles, clock: ManualClock
) -> None:
    first = init(files, NAMES, clock.now())
    content = {p: p.read_bytes() for p in files.folder.iterdir()}
    assert init(files, ["localhost"], clock.now()) == first
    with pytest.raises(AuthorityError, match="exists and is not for other.example: --renew"):
        init(files, ["other.example"], clock.now())
    assert {p: p.read_bytes() for p in files.folder.iterdir()} == content


def test_a_server_that_is_gone_is_made_again_by_the_same_authority(
    files: AuthorityFiles, clock: ManualClock
) -> None:
    init(files, NAMES, clock.now())
    authority = files.ca.read_bytes()
    files.cert.unlink()
    init(files, NAMES, clock.now())
    assert files.ca.read_bytes() == authority


def test_a_certificate_does_not_outlive_its_authority(
    files: AuthorityFiles, clock: ManualClock
) -> None:
    init(files, NAMES, clock.now())
    later = clock.now() + timedelta(days=3600)
    assert renew(files, [], later).ends_at == certificate_of(files.ca).ends_at
    with pytest.raises(AuthorityError, match=r"ca\.pem has expired: move it"):
        renew(files, [], clock.now() + timedelta(days=3700))


@pytest.mark.parametrize(
    "name", ["", "a b", "https://x", "x:8750", "*.example", "ü.example", "a,b"]
)
def test_an_invalid_host_name_is_refused(
    files: AuthorityFiles, clock: ManualClock, name: str
) -> None:
    with pytest.raises(AuthorityError, match="neither a host name nor an address"):
        init(files, [name], clock.now())
    assert not files.cert.exists()


def test_what_is_wrong_with_the_files_is_named(files: AuthorityFiles, clock: ManualClock) -> None:
    with pytest.raises(
        AuthorityError, match=r"server\.pem: No such file.*name the collector's host"
    ):
        renew(files, [], clock.now())
    init(files, NAMES, clock.now())
    files.ca_key.write_bytes(files.key.read_bytes())
    with pytest.raises(AuthorityError, match=r"ca\.key: this is not the key of"):
        renew(files, [], clock.now())
    files.ca_key.write_text("rubbish")
    with pytest.raises(AuthorityError, match=r"ca\.key: the file has no PEM key"):
        renew(files, [], clock.now())
    files.ca_key.unlink()
    with pytest.raises(AuthorityError, match=r"ca\.key: No such file"):
        renew(files, [], clock.now())
