"""Addresses of a lake: what is accepted, what is refused, and that no secret is shown."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_collector.storage.address import AddressError, address_of, s3_keys

HERE = Path("/srv/gw")
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "geheim"}
SERVER = "postgres:host=db dbname=gw"


def test_a_server_and_an_object_store_make_a_shared_lake() -> None:
    address = address_of(HERE, SERVER, "s3://bucket/fleet", KEYS | {"AWS_REGION": "eu-north-1"})
    assert address.is_shared
    assert address.is_remote
    assert address.data == "s3://bucket/fleet/"
    assert address.ducklake.startswith("ducklake:postgres:")
    assert address.catalog.endswith(" host=db dbname=gw")
    assert "connect_timeout=10" in address.catalog, "a server that is gone holds nobody"
    assert address.keys is not None
    assert address.keys.region == "eu-north-1"


@pytest.mark.parametrize("catalog", ["postgresql://gw@db/gw", "postgres:postgresql://gw@db/gw?a=1"])
def test_a_url_is_a_server_too(catalog: str) -> None:
    address = address_of(HERE, catalog, "/shared", {})
    assert address.is_shared
    assert address.catalog.startswith("postgresql://gw@db/gw?")
    assert "connect_timeout=10" in address.catalog


def test_what_the_operator_says_of_waiting_is_taken() -> None:
    text = address_of(HERE, f"{SERVER} connect_timeout=3", "/shared", {}).catalog
    assert text.endswith("connect_timeout=3"), "libpq takes the last"
    url = address_of(HERE, "postgresql://db/gw?connect_timeout=3", "/shared", {}).catalog
    assert url.count("connect_timeout") == 1


@pytest.mark.parametrize(
    ("catalog", "data", "why"),
    [
        ("mysql:host=db", "/shared", "must be postgres:"),
        ("postgres:", "/shared", "must be postgres:"),
        (SERVER, None, "data must be where all collectors can write"),
        (SERVER, "lake/files", "must be an absolute path"),
        (SERVER, "s3://", "needs a bucket"),
        (SERVER, "s3://bucket", "its keys are missing"),
    ],
)
def test_what_is_no_address_is_refused_in_one_line(
    catalog: str, data: str | None, why: str
) -> None:
    with pytest.raises(AddressError, match=why) as refused:
        address_of(HERE, catalog, data, {"HOME": "/nonexistent"})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "catalog",
    [
        "postgres:host=db password=geheim",
        "postgres:host=db password = 'geheim'",
        "postgresql://gw:geheim@db/gw",
        "postgresql://db/gw?password=geheim",
        "postgresql://db/gw?a=b&password=geheim",
    ],
)
def test_a_password_in_the_catalogue_is_refused_and_not_repeated(catalog: str) -> None:
    with pytest.raises(AddressError, match="passfile=") as refused:
        address_of(HERE, catalog, "/shared", {})
    assert "geheim" not in str(refused.value)


def test_keys_come_from_variables_or_a_profile(tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    path.write_text(
        "[default]\naws_access_key_id = d\naws_secret_access_key = s%d\n"
        "[fleet]\naws_access_key_id = f\naws_secret_access_key = geheim\nregion = eu-west-1\n"
    )
    file = {"AWS_SHARED_CREDENTIALS_FILE": str(path)}
    assert s3_keys(file | KEYS).key_id == "key"
    assert s3_keys(file).secret == "s%d"
    assert s3_keys(file | {"AWS_PROFILE": "fleet"}).region == "eu-west-1"
    home = tmp_path / "home"
    (home / ".aws").mkdir(parents=True)
    path.rename(home / ".aws" / "credentials")
    assert s3_keys({"HOME": str(home)}).key_id == "d"


@pytest.mark.parametrize(
    "text", ["[default]\naws_access_key_id = geheim", "geheim", "\x00", "[other]\na = geheim"]
)
def test_a_file_without_keys_is_named_and_not_quoted(tmp_path: Path, text: str) -> None:
    path = tmp_path / "credentials"
    path.write_text(text)
    with pytest.raises(AddressError, match=str(path)) as refused:
        s3_keys({"AWS_SHARED_CREDENTIALS_FILE": str(path)})
    assert "geheim" not in str(refused.value)
    assert refused.value.__suppress_context__


def test_keys_are_not_shown() -> None:
    keys = s3_keys(KEYS | {"AWS_SESSION_TOKEN": "geheim2"})
    assert "geheim" not in repr(keys)
    assert "geheim" not in repr(address_of(HERE, SERVER, "s3://bucket", KEYS))


@given(st.text(max_size=40), st.text(max_size=40))
def test_rubbish_is_an_address_or_refused(catalog: str, data: str) -> None:
    try:
        address = address_of(HERE, catalog, data, {"HOME": "/nonexistent"})
    except AddressError:
        return
    assert address.is_shared
