"""The counters of NFS mounts, from texts as kernels with NFS 3 and 4 write them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden_agent.collect.host.mounts import (
    Mount,
    NfsMount,
    by_superblock,
    parse_mountinfo,
    parse_mountstats,
)

V4 = """\
no device mounted on / with fstype rootfs
device tmpfs mounted on /dev/shm with fstype tmpfs
device server:/data mounted on /mnt/data with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2,rsize=1048576,proto=tcp,timeo=600,retrans=2,sec=sys,local_lock=none
\tage:\t9503
\timpl_id:\tname='',domain='',date='0,0'
\tcaps:\tcaps=0x3ffd7,wtmult=512,dtsize=32768,bsize=0,namlen=255
\tnfsv4:\tbm0=0xfcff8fff,bm1=0x40f9be3e,acl=0x0,sessions,pnfs=not configured
\tsec:\tflavor=1,pseudoflavor=1
\tevents:\t35 259 2 1005 9 7 511 256000 0 66 0 26 18 2 6 4 0 3 0 0 256000 0 0 0 0 0 0
\tbytes:\t1048576000 1048576001 7 8 900 800 256000 256001
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\txprt:\ttcp 0 0 1 0 0 12755 12754 0 51500 0 32 101086 25994
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 0 0 0
\t        READ: 100 103 1 220000 1048680000 1689 503927 505677 0
\t       WRITE: 20 21 0 2097616000 288000 5178088 48850 5230077 0
\t      COMMIT: 11 11 0 2244 1144 0 615 615 0
\t        OPEN: 2 2 0 632 704 0 140 141 0
\tOPEN_CONFIRM: 9 9 0 0 0 0 0 9 0
\t OPEN_NOATTR: 1 1 0 272 316 0 18 18 0
\t      ACCESS: 13 15 0 2756 2184 0 260 261 0
\t     GETATTR: 36 36 0 7344 8640 0 668 671 0
\t      LOOKUP: 7 7 0 1556 672 0 133 133 0
\t     READDIR: 1 1 0 180 276 0 18 19 0
device cgroup2 mounted on /sys/fs/cgroup with fstype cgroup2
"""

V4_COUNTERS = {
    "nfs_read_bytes_total": 900,
    "nfs_write_bytes_total": 800,
    "nfs_retransmissions_total": 3 + 1 + 2,
    "nfs_reads_total": 100,
    "nfs_read_seconds_total": 505.677,
    "nfs_writes_total": 20,
    "nfs_write_seconds_total": 5230.077,
    "nfs_metadata_total": 2 + 1 + 13 + 36 + 7 + 1,
    "nfs_metadata_seconds_total": pytest.approx(1.243),
}

V3 = """\
device filer:/vol/home mounted on /home\\040of\\040all with fstype nfs statvers=1.0
\topts:\trw,vers=3,proto=tcp
\tbytes:\t1 2 3 4 5 6 7 8
\tRPC iostats version: 1.0  p/v: 100003/3 (nfs)
\txprt:\ttcp 832 1 1 0 11 9 9 0 9 0
\tper-op statistics
\t        READ: 4 4 0 1 2 3 4 5
\t READDIRPLUS: 6 6 0 1 2 3 4 7
"""


def test_counters_of_an_nfs_4_mount_are_read() -> None:
    assert parse_mountstats(V4) == [NfsMount("/mnt/data", V4_COUNTERS)]


def test_a_mount_of_nfs_3_on_an_old_kernel_beside_it() -> None:
    _, home = parse_mountstats(V4 + V3)
    assert home.place == "/home\\040of\\040all"
    assert home.counters["nfs_reads_total"] == 4
    assert home.counters["nfs_metadata_seconds_total"] == 0.007
    assert home.counters["nfs_write_bytes_total"] == 6
    assert "nfs_writes_total" not in home.counters


def test_an_older_server_that_answers_by_itself_loses_nothing() -> None:
    """More operations than transmissions would be less than no retransmission."""
    (mount,) = parse_mountstats(V3.replace("READ: 4 4", "READ: 5 4"))
    assert mount.counters["nfs_retransmissions_total"] == 0


@pytest.mark.parametrize(
    ("good", "bad"),
    [("READ: 4 4 0 1 2 3 4 5", "READ: 4 4"), ("READ: 4", "READ: -4"), ("bytes:\t1", "bytes:\tx")],
)
def test_counters_that_are_none_are_named(good: str, bad: str) -> None:
    with pytest.raises(ValueError, match="not counters of NFS: "):
        parse_mountstats(V3.replace(good, bad))


def test_mountinfo_is_read_with_and_without_optional_fields() -> None:
    lines = (
        "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:2 - ext3 /dev/root rw",
        "48 26 0:45 / /mnt/data rw,relatime - nfs4 server:/data rw,vers=4.2",
    )
    assert list(parse_mountinfo(lines)) == [
        Mount("98:0", "/mnt2", "ext3"),
        Mount("0:45", "/mnt/data", "nfs4"),
    ]


@pytest.mark.parametrize("line", ["", "garbage", "1 2 3 - ext4 x y", "36 35 98:0 / /mnt2 rw -"])
def test_a_line_that_is_none_of_mountinfo_is_named(line: str) -> None:
    with pytest.raises(ValueError, match="not a line of mountinfo"):
        list(parse_mountinfo((line,)))


def test_a_superblock_that_is_mounted_twice_counts_once() -> None:
    mounts = [Mount("0:45", "/a", "nfs"), Mount("0:45", "/b", "nfs"), Mount("0:46", "/c", "nfs")]
    stats = [NfsMount(place, {"n": n}) for place, n in (("/a", 1), ("/b", 1), ("/c", 5))]
    assert by_superblock(mounts, stats) == {"0:45": {"n": 1}, "0:46": {"n": 5}}


def test_a_mount_over_another_is_one_of_its_own() -> None:
    mounts = [Mount("0:45", "/a", "nfs"), Mount("0:46", "/a", "nfs")]
    stats = [NfsMount("/a", {"n": 1}), NfsMount("/a", {"n": 5})]
    assert by_superblock(mounts, stats) == {"0:45": {"n": 1}, "0:46": {"n": 5}}


def test_a_mount_that_was_made_between_the_two_looks_waits_for_the_next() -> None:
    assert by_superblock([], [NfsMount("/a", {"n": 1})]) == {}


COUNTS = st.lists(st.integers(0, 2**64), min_size=8, max_size=9)
OPERATIONS = st.dictionaries(
    st.sampled_from(["READ", "WRITE", "GETATTR", "LOOKUP", "COMMIT", "SEEK"]), COUNTS
)


@settings(max_examples=40)
@given(st.lists(OPERATIONS, max_size=5))
def test_what_is_written_is_what_is_read(mounts: list[dict[str, list[int]]]) -> None:
    text = ""
    for n, operations in enumerate(mounts):
        text += f"device s:/{n} mounted on /{n} with fstype nfs4 statvers=1.1\n"
        for name, counts in operations.items():
            text += f"\t{name}: {' '.join(map(str, counts))}\n"
    read = parse_mountstats(text)
    assert [mount.place for mount in read] == [f"/{n}" for n in range(len(mounts))]
    for mount, operations in zip(read, mounts, strict=True):
        sent_again = sum(max(0, counts[1] - counts[0]) for counts in operations.values())
        assert mount.counters.get("nfs_retransmissions_total", 0) == sent_again
        assert mount.counters.get("nfs_reads_total") == operations.get("READ", [None])[0]
        assert mount.counters.get("nfs_write_seconds_total", 0) == pytest.approx(
            operations.get("WRITE", [0] * 8)[7] / 1000
        )


@given(st.text(alphabet=st.sampled_from("READ: 0159\tbytes\n-")))
def test_no_text_is_more_than_a_value_error(text: str) -> None:
    head = "device s:/ mounted on /x with fstype nfs statvers=1.1\n"
    for parse in (lambda: parse_mountstats(head + text), lambda: list(parse_mountinfo([text]))):
        try:
            parse()
        except ValueError as error:
            assert str(error).startswith("not ")
