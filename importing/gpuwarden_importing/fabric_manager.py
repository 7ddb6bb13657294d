"""Reads NVSwitch errors out of fabricmanager.log: each is the SXid that the kernel's log has too.

Checked against a log of driver 535 on eight A100; a fatal error is taken to have the words of one that is
not fatal.
"""

import json
import re
from collections.abc import Iterator

from gpuwarden_agent.events.xid_lines import Sxid, bus_id
from gpuwarden_agent.events.xid_rows import row_of
from gpuwarden_importing.instants import Instants
from gpuwarden_importing.model import ImportedRows, ImportTally, Origin, Row
from gpuwarden_importing.smi_csv import note_zone

LINE = re.compile(
    r"\[(?P<time>[A-Z][a-z]{2} +\d{1,2} \d{4} \d\d:\d\d:\d\d)\] \[(?P<level>[A-Z]+)\] \[tid \d+\] (?P<text>.*)"
)
_SXID = re.compile(
    r"detected NVSwitch (?P<fatality>non-fatal|fatal) error (?P<code>\d{1,6})\b.*?pci bus id (?P<bus>[0-9a-fA-F:.]+)"
    r"(?: physical id (?P<switch>\d{1,4}))?(?: port (?P<link>\d{1,4}))?",
    re.IGNORECASE,
)
_BAD = ("ERROR", "CRITICAL", "FATAL")


def read(lines: Iterator[str], origin: Origin, tally: ImportTally) -> Iterator[ImportedRows]:
    """A `Reader`."""
    instants = Instants(origin.zone, day_first=origin.day_first)
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        found = LINE.match(line.rstrip())
        if found is None:
            if line.strip():
                tally.skip("a line without an SXid", number)
            continue
        said = _SXID.search(found["text"])
        place = bus_id(said["bus"]) if said else None
        if said is None or place is None:
            is_bad = found["level"] in _BAD
            tally.skip(
                "an error of the fabric manager that is no SXid"
                if is_bad
                else "a line without an SXid",
                number,
            )
            continue
        sxid = Sxid(
            code=int(said["code"]),
            pci_bus_id=place,
            text=found["text"],
            is_fatal=said["fatality"].lower() == "fatal",
            switch=None if said["switch"] is None else int(said["switch"]),
            link=None if said["link"] is None else int(said["link"]),
        )
        row = row_of(sxid, {}, 0)
        details = json.loads(str(row["details"]))
        del details["kmsg_sequence"]
        details["source"] = "fabric manager"
        try:
            ts_ms = instants.parse(found["time"])
        except ValueError as error:
            tally.skip(f"timestamp {error}", number)
            continue
        node = origin.node_or(None)
        rows.append(
            {**row, "ts": ts_ms, "node": node, "details": json.dumps(details, sort_keys=True)}
        )
    if rows:
        yield ImportedRows.of("events", rows)
    note_zone(instants, origin, tally)
