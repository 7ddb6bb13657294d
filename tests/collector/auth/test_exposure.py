"""Settings that would admit clients without tokens are refused."""

from pathlib import Path

import pytest

from gpuwarden.lifecycle import StartError
from gpuwarden_collector.auth.exposure import Exposure, exposure_of
from gpuwarden_collector.settings import CollectorSettings

TLS = {"tls_cert": Path("c"), "tls_key": Path("k")}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_loopback_requires_no_token_by_default(host: str) -> None:
    assert exposure_of(CollectorSettings(host=host)) == Exposure(asks_tokens=False, is_local=True)
    asking = exposure_of(CollectorSettings(host=host, require_tokens=True))
    assert asking == Exposure(asks_tokens=True, is_local=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "no.such.host.invalid"])
def test_elsewhere_there_is_tls_with_tokens_or_no_start(host: str) -> None:
    with pytest.raises(StartError, match="there is no TLS: run `gpuwarden collector init`"):
        exposure_of(CollectorSettings(host=host))
    with pytest.raises(StartError, match="there is no TLS"):
        exposure_of(CollectorSettings(host=host, require_tokens=True))
    assert exposure_of(CollectorSettings(host=host, **TLS)) == Exposure(True, False)


def test_require_tokens_and_allow_insecure_work() -> None:
    insisting = {"host": "0.0.0.0", "allow_insecure": True}
    assert exposure_of(CollectorSettings(**insisting)) == Exposure(False, False)
    assert exposure_of(CollectorSettings(**insisting, require_tokens=True)) == Exposure(True, False)


@pytest.mark.parametrize(("given", "missing"), [("tls_cert", "tls_key"), ("tls_key", "tls_cert")])
def test_a_certificate_without_its_key_is_refused(given: str, missing: str) -> None:
    with pytest.raises(StartError, match=f"set {missing} as well"):
        exposure_of(CollectorSettings(**{given: Path("x")}))
