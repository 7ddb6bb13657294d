"""Lists what is in a bundle as CycloneDX 1.6 (https://cyclonedx.org/docs/1.6/json/).

Dated SOURCE_DATE_EPOCH, its serial number of its content: two builds of one tree are the same bytes.
"""

import hashlib
import json
import uuid
from datetime import UTC, datetime
from pathlib import Path

from archive import source_date_epoch
from bundle import manifest_of
from interpreter import SOURCES


def sbom(bundle: Path) -> Path:
    """Write it beside the bundle."""
    manifest = manifest_of(bundle)
    name = f"gpuwarden-{manifest['part']}"
    own = {
        **_component("pypi", "gpuwarden", manifest["version"], "application"),
        "name": name,
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(bundle.read_bytes()).hexdigest()}],
    }
    parts = [_component("pypi", *package) for package in manifest["packages"].items()]
    parts += [
        _component("generic", source, manifest["carried"][source])
        for source in (SOURCES if manifest["carried"] else ())
    ]
    made_at = datetime.fromtimestamp(source_date_epoch(), UTC)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([own, parts]))}",
        "version": 1,
        "metadata": {"timestamp": made_at.strftime("%Y-%m-%dT%H:%M:%SZ"), "component": own},
        "components": parts,
        "dependencies": [{"ref": own["bom-ref"], "dependsOn": [c["bom-ref"] for c in parts]}],
    }
    path = bundle.with_suffix(".cdx.json")
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def _component(kind: str, name: str, version: str, form: str = "library") -> dict[str, str]:
    purl = f"pkg:{kind}/{name}@{version}"
    return {"type": form, "name": name, "version": version, "bom-ref": purl, "purl": purl}
