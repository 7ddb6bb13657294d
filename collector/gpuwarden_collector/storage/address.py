"""Parses the address of the lake: a folder of this host, or PostgreSQL and an object store for many collectors.

An address contains no secrets. PostgreSQL's client library reads a password from a file (`passfile=`,
~/.pgpass) or PGPASSWORD. Keys of an object store come from the files and variables that its own tools
read, and only DuckDB gets them.
"""

import configparser
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

FOLDER = "lake"
CATALOGUE = "catalog.sqlite"
FILES = "data"
METADATA = "__ducklake_metadata_lake"
"""DuckLake's name of the attached catalogue."""

_POSTGRES = "postgres:"
_SQLITE = "sqlite:"
_URLS = ("postgresql://", "postgres://")
_WAITS = {
    "application_name": "gpuwarden",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "tcp_user_timeout": "30000",
}
"""Without these limits a dead server would block the collector for a quarter of an hour."""
_OF_CLIENTS = frozenset(
    {
        *(
            "HOME",
            "KRB5CCNAME",
            "KRB5_CLIENT_KTNAME",
            "KRB5_CONFIG",
            "LOGNAME",
            "USER",
            "CURL_CA_BUNDLE",
            "SSL_CERT_DIR",
            "SSL_CERT_FILE",
        ),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    }
)
"""Variables that clients of PostgreSQL and of object stores read, besides `PG...`."""
_PASSWORD = re.compile(r"(^|[\s?&])password\s*=")


class AddressError(ValueError):
    """The settings `catalog` or `data` are invalid; the message says why, without a secret."""


@dataclass(frozen=True, slots=True)
class S3Keys:
    """Keys and endpoint of an object store. Its repr hides the secrets."""

    key_id: str = field(repr=False)
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    region: str = "us-east-1"
    endpoint: str | None = None
    """URL of a store other than Amazon's."""


@dataclass(frozen=True, slots=True)
class LakeAddress:
    """A lake: its catalogue, as a libpq string or a file, and the folder or prefix of its files."""

    catalog: str
    data: str
    is_shared: bool
    """Whether the catalogue is on a server, which other collectors may use too."""
    keys: S3Keys | None = None
    environment: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Variables that the clients of these servers read, for the processes that ask them."""

    @property
    def is_remote(self) -> bool:
        """Whether the files are in an object store."""
        return self.data.startswith("s3://")

    @property
    def ducklake(self) -> str:
        """The catalogue in the form of DuckLake's ATTACH."""
        return f"ducklake:{_POSTGRES if self.is_shared else _SQLITE}{self.catalog}"


def local_address(data_dir: Path) -> LakeAddress:
    """The lake in the data folder."""
    folder = data_dir / FOLDER
    return LakeAddress(str(folder / CATALOGUE), str(folder / FILES), is_shared=False)


def address_of(
    data_dir: Path, catalog: str | None, data: str | None, environment: Mapping[str, str]
) -> LakeAddress:
    """The lake of the settings; unset ones mean the local lake. Raises AddressError.

    `environment`: variables, which may name files with the keys of an object store.
    """
    local = local_address(data_dir)
    conninfo = None if catalog is None else _conninfo(catalog)
    if conninfo is not None and data is None:
        raise AddressError(
            "catalog is a server, so data must be where all collectors can write:"
            " s3://bucket/prefix, or a folder that they share"
        )
    keys = None
    if data is not None and data.startswith("s3://"):
        if not urlsplit(data).netloc:
            raise AddressError("data = s3:// needs a bucket: s3://bucket/prefix")
        keys = s3_keys(environment)
        data = data.rstrip("/") + "/"
    elif data is not None and not Path(data).is_absolute():
        raise AddressError(f"data = {data} must be an absolute path or s3://bucket/prefix")
    return LakeAddress(
        local.catalog if conninfo is None else conninfo,
        local.data if data is None else data,
        conninfo is not None,
        keys,
        {n: v for n, v in environment.items() if n.startswith("PG") or n in _OF_CLIENTS}
        if conninfo is not None or keys is not None
        else {},
    )


def _conninfo(catalog: str) -> str:
    """The libpq connection string, with time limits added."""
    text = catalog.removeprefix(_POSTGRES) if not catalog.startswith(_URLS) else catalog
    if not catalog.startswith((_POSTGRES, *_URLS)) or not text.strip():
        raise AddressError(
            "catalog must be postgres: followed by a connection string or URL:"
            " postgres:host=db.example dbname=gpuwarden user=gpuwarden"
        )
    is_url = text.startswith(_URLS)
    has_password = _PASSWORD.search(text) or (is_url and ":" in _user(text))
    if has_password:
        raise AddressError(
            "catalog contains a password, which others may read: put it into a file and set passfile=, or set"
            " PGPASSWORD"
        )
    if not is_url:
        waits = " ".join(f"{name}={value}" for name, value in _WAITS.items())
        return f"{waits} {text}"  # of two values libpq takes the last
    missing = [f"{n}={v}" for n, v in _WAITS.items() if not re.search(rf"[?&]{n}=", text)]
    return text + ("&" if "?" in text else "?") + "&".join(missing) if missing else text


def _user(url: str) -> str:
    user, at, _ = url.partition("://")[2].partition("/")[0].rpartition("@")
    return user if at else ""


def s3_keys(environment: Mapping[str, str]) -> S3Keys:
    """Keys of an object store, found as Amazon's tools do: variables, then the profile file. Raises AddressError."""
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    key_id, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    if key_id and secret:
        token = environment.get("AWS_SESSION_TOKEN") or None
        return S3Keys(key_id, secret, token, region, endpoint)
    home = Path(environment.get("HOME", "/nonexistent"))
    path = Path(environment.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials")
    profile = environment.get("AWS_PROFILE") or "default"
    # A secret may contain percent signs, which interpolation would expand.
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(path.read_text())
        section = parser[profile]
        return S3Keys(
            section["aws_access_key_id"],
            section["aws_secret_access_key"],
            section.get("aws_session_token"),
            section.get("region", region),
            section.get("endpoint_url", endpoint),
        )
    except (OSError, UnicodeDecodeError, KeyError, configparser.Error):
        # The cause could quote a secret of the file.
        raise AddressError(
            "data is s3://, but its keys are missing: set AWS_ACCESS_KEY_ID and"
            f" AWS_SECRET_ACCESS_KEY, or put them under [{profile}] in {path}"
        ) from None
