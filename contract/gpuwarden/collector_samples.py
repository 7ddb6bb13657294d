"""Defines the samples that a collector takes of itself every minute, so that rules can watch it."""

from gpuwarden.metrics import Type
from gpuwarden.table import Column, Table

# fmt: off
COLLECTOR_SAMPLES = Table("collector_samples", "collector and minute", ("collector", "ts"), (
    Column("ts", Type.TIMESTAMP, "When the sample was taken, UTC.", required=True),
    Column("collector", Type.STRING, "Identity of the collector's store.", required=True),
    Column("host", Type.STRING, "Name of the host that it runs on.", required=True),
    Column("version", Type.STRING, "Version of the collector.", required=True),
    Column("batches", Type.INT64, "Batches stored since the sample before.", required=True),
    Column("refused_batches", Type.INT64, "Batches not stored since then.", required=True),
    Column("commit_failures", Type.INT64, "Commits that failed since then.", required=True),
    Column("task_failures", Type.INT64, "Moves to the lake, steps of rolling up and tasks of maintenance that failed since then.", required=True),
    Column("ingest_lag_seconds", Type.FLOAT64, "Age of the newest row of a group of batches when it was stored: the median since then, NULL where nothing was stored."),
    Column("queue_bytes", Type.INT64, "Decoded batches that wait for the writer."),
    Column("disk_free_bytes", Type.INT64, "Free space of the data folder's file system, including temporary files of queries."),
    Column("disk_free_bytes_min", Type.INT64, "Free space below which batches are refused; below twice this the oldest samples are deleted."),
    Column("disk_used_bytes", Type.INT64, "Bytes in the data folder, without temporary files of queries."),
    Column("refusal", Type.STRING, "Why batches are refused; NULL: they are accepted."),
    Column("storage_trouble", Type.STRING, "Why rows do not move to the lake or are not rolled up; NULL: they are."),
    Column("rollup_lag_seconds", Type.FLOAT64, "Age of the end of the newest minute that is rolled up; NULL: none is."),
    Column("clock_doubt", Type.STRING, "Why its clock counts as wrong; NULL: it is right."),
    Column("clock_confirmed", Type.BOOL, "Whether agents or the kernel have confirmed its clock; until then nothing is dropped by age."),
    Column("late_jobs", Type.STRING, "Scheduled jobs that do not end, separated by commas; NULL: none."),
    Column(
        "over_quota",
        Type.STRING,
        "Senders whose batches wait, as they have sent `agent_bytes_per_day_max` within a day, separated by"
        " semicolons; NULL: there is none.",
    ),
    Column("certificate_ends_at", Type.TIMESTAMP, "End of its certificate; NULL: no TLS."),
    Column("authority_ends_at", Type.TIMESTAMP, "End of the authority's certificate that nodes trust (tls_ca); NULL: none."),
    Column("rules", Type.INT32, "Number of rules; NULL: it has none."),
    Column("rules_failing", Type.STRING, "Rules that fail, separated by commas; NULL: none."),
    Column("rules_slow", Type.INT32, "Rules whose last evaluation took longer than their interval."),
    Column("rules_slow_seconds", Type.FLOAT64, "Sum of the durations of these evaluations; NULL: none."),
    Column("rules_slow_intervals_seconds", Type.FLOAT64, "Sum of the intervals of these rules."),
    Column("cpu_pressure_percent", Type.FLOAT64, "Share of the minute in which something on the host waited for a CPU; NULL: the kernel does not say."),
    Column("receivers_failing", Type.STRING, "Receivers of notifications whose last message failed, separated by commas; NULL: none."),
    Column("messages_waiting", Type.INT64, "Notifications in the queue; NULL: notifications are off."),
))
# fmt: on
