"""Numbers as people read them."""

import pytest

from gpuwarden_dashboards import templates as text


@pytest.mark.parametrize(
    "render", [text.percent, text.usd, text.gigabytes, text.size, text.power, text.celsius]
)
def test_absent_is_not_zero(render) -> None:
    assert render(None) == "–"
    assert render(0.0) != "–"
