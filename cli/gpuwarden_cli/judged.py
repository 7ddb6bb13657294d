"""Asks a collector whether its rules have judged the fleet: where not, that nothing fires means nothing."""

from gpuwarden.judgement import unjudged
from gpuwarden_client.http import CallError, CollectorEndpoint

TIMEOUT_S = 5.0


def unjudged_at(url: str | None) -> str | None:
    """Why it is not judged, in a sentence; None: it is, or the collector does not say."""
    try:
        found = CollectorEndpoint.of(url).call("GET", "/v1/judgement", timeout_s=TIMEOUT_S)
    except CallError:
        return None
    return unjudged(found)
