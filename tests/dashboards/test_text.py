"""Numbers as people read them."""

from datetime import UTC, datetime, timedelta

import pytest

from gpuwarden_dashboards import templates as text

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_figures_carry_their_unit() -> None:
    assert text.percent(36.6) == "37 %"
    assert text.usd(2.951) == "$2.95"
    assert text.usd(12044.6) == "$12,045"
    assert text.gigabytes(85899345920) == "80.0 GiB"
    assert (text.size(5 * 2**20), text.size(5 * 2**30)) == ("5.0 MiB", "5.0 GiB")
    assert text.power(412.4) == "412 W"
    assert text.power(31_200) == "31.2 kW"
    assert text.celsius(61.2) == "61 °C"


@pytest.mark.parametrize(
    "render", [text.percent, text.usd, text.gigabytes, text.size, text.power, text.celsius]
)
def test_absent_is_not_zero(render) -> None:
    assert render(None) == "–"
    assert render(0.0) != "–"


def test_an_instant_is_told_from_now() -> None:
    assert text.ago(NOW - timedelta(seconds=3), NOW) == "3 s ago"
    assert text.ago(None, NOW) == "never"
