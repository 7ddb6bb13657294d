"""Lists what is in a bundle as CycloneDX 1.6 (https://cyclonedx.org/docs/1.6/json/): each package with its hash.

Dated SOURCE_DATE_EPOCH, its serial number of its content: two builds of one tree are the same bytes.
"""

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from archive import source_date_epoch
from interpreter import VERSION, Interpreter


def sbom(
    part: str, wheel: Path, others: Iterable[Path], out: Path, carried: Interpreter | None
) -> Path:
    """Write it beside the bundle of `part`; `wheel` is gpuwarden's own."""
    own = _component(wheel)
    parts = [_component(path) for path in sorted(others)]
    if carried:
        parts.append(
            {
                "type": "platform",
                "name": "cpython",
                "version": VERSION,
                "bom-ref": f"pkg:generic/cpython@{VERSION}",
                "purl": f"pkg:generic/cpython@{VERSION}",
                "hashes": _hashes(carried.python),
            }
        )
    content = json.dumps([own, parts], sort_keys=True)
    made_at = datetime.fromtimestamp(source_date_epoch(), UTC)
    document: Mapping[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {
            "timestamp": made_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {**own, "type": "application"},
        },
        "components": parts,
        "dependencies": [{"ref": own["bom-ref"], "dependsOn": [c["bom-ref"] for c in parts]}],
    }
    version = wheel.name.split("-")[1]
    machine = f"-{carried.machine}" if carried else ""
    path = out / f"gpuwarden-{part}-{version}{machine}.cdx.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def _component(wheel: Path) -> dict[str, Any]:
    name, version = wheel.name.split("-")[:2]
    purl = f"pkg:pypi/{name.replace('_', '-').lower()}@{version}"
    return {
        "type": "library",
        "name": name.replace("_", "-").lower(),
        "version": version,
        "bom-ref": purl,
        "purl": purl,
        "hashes": _hashes(wheel.read_bytes()),
    }


def _hashes(content: bytes) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}]
