"""Declares the settings of the collector; command line, files and docs are made from this list."""

from dataclasses import dataclass
from pathlib import Path

from gpuwarden.settings import setting

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorSettings:
    """The settings of the collector."""

    host: str = setting("127.0.0.1", "Address to listen on; 0.0.0.0 for every interface.")
    port: int = setting(8750, "TCP port to listen on; 0 takes a free one.", least=0, most=65535)
    postgres_port: int | None = setting(
        None,
        "TCP port for PostgreSQL's clients, read only; 0 takes a free one; none: not served.",
        least=0,
        most=65535,
    )
    tls_cert: Path | None = setting(
        None, "PEM file of the certificate and its chain; none: HTTP without TLS."
    )
    tls_key: Path | None = setting(None, "PEM file of the certificate's key.")
    tls_ca: Path | None = setting(None, "PEM file of the authority that enrolled nodes trust.")
    access_file: Path | None = setting(
        None, "TOML file of teams, of roles by group, and of single sign-on; none: tokens alone."
    )
    policies_path: Path | None = setting(
        None, "YAML file or folder of policies; none: nothing is done about alerts."
    )
    require_tokens: bool = setting(
        False,
        "Whether tokens are required on loopback, too, as behind a proxy; elsewhere they always are.",
    )
    allow_insecure: bool = setting(
        False,
        "Whether it may listen beyond loopback without TLS, and without tokens unless require_tokens is set.",
    )
    data_dir: Path = setting(Path("/var/lib/gpuwarden"), "Folder of the store.")
    catalog: str | None = setting(
        None,
        "Catalogue of the lake: postgres: and a connection string, for several collectors; none: in data_dir.",
    )
    data: str | None = setting(
        None, "Files of the lake: s3://bucket/prefix or a folder; none: in data_dir."
    )
    agent_bytes_per_day_max: int = setting(
        32 * 1024 * MIB,
        "Most bytes of rows, in memory, that an agent may send in a day; above it 429. The default is thirty times what"
        " an agent with eight GPUs sends; 0: no limit.",
        least=0,
    )
    memory_limit: str = setting("2GiB", "Most memory that DuckDB uses, such as 512MiB or 8GiB.")
    query_timeout_s: float = setting(
        30.0, "Most seconds that a query may take.", least=0.1, most=3600
    )
    query_processes: int = setting(
        2,
        "Clients' queries that run at the same time, each in a process; one more if all are of one user and another"
        " user's query comes.",
        least=1,
        most=64,
    )
    query_memory_limit: str | None = setting(
        None,
        "Most memory that DuckDB uses for a query, such as 512MiB; none: an eighth of the memory, at most 1GiB.",
    )
    keep_samples_days: int = setting(14, "Days for which samples are kept.", least=1)
    keep_minutes_days: int = setting(90, "Days for which rollups by the minute are kept.", least=1)
    keep_hours_days: int = setting(730, "Days for which rollups by the hour are kept.", least=1)
    keep_events_days: int = setting(365, "Days for which events and past alerts are kept.", least=1)
    disk_bytes_max: int = setting(
        0,
        "Most bytes in the data folder: the oldest days are deleted before it is reached; 0: no limit.",
        least=0,
    )
    disk_free_bytes_min: int = setting(
        1024 * MIB,
        "Free space below which batches are refused; below twice that the oldest samples are deleted, if that makes room.",
        least=0,
    )
    grafana_url: str | None = setting(
        None,
        "Grafana with the dashboards of `gpuwarden grafana export`, to which pages of nodes, GPUs and jobs link;"
        " none: no links.",
    )
    standby_url: str | None = setting(
        None,
        "Collector that keeps a second copy of segments: batches are acknowledged when it has them, too; none: no"
        " second copy.",
    )
    standby_token_file: Path | None = setting(
        None, "File of the token, scope copy, that the standby requires."
    )
    standby_tls_ca: Path | None = setting(
        None, "PEM file of the authority of the standby's certificate; none: the system's."
    )
    prices_file: Path | None = setting(
        None,
        "TOML file of prices by model, node, label and instance, for owned hardware and energy (docs/money.md).",
    )
    rules_dirs: tuple[Path, ...] = setting(
        (), "Folders of your own rules and overrides.yaml, in addition to the built-in pack."
    )
    notify_file: Path | None = setting(
        None, "Notification routing file (docs/notifications.md); none: no notifications."
    )
    log_level: str = setting(
        "info", "Lowest level that is logged.", choices=("debug", "info", "warning", "error")
    )
    log_format: str = setting("text", "Format of the log on stderr.", choices=("text", "json"))
