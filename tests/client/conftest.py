"""Gives tests of the client a store that was opened before."""

from tests.collector.conftest import data_dir, empty_store  # noqa: F401  fixtures
