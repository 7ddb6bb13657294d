from collections.abc import Callable
from datetime import datetime

import pytest
from tests.rules.notify.alerts import START, make_alert

from gpuwarden.alert import Alert


@pytest.fixture(scope="session")
def alert_of() -> Callable[..., Alert]:
    """Makes a firing alert."""
    return make_alert


@pytest.fixture(scope="session")
def start() -> datetime:
    """When alerts of `alert_of` fire."""
    return START
