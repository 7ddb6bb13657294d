"""Names, times and rows that all readers share; what is skipped is counted."""

import pytest

from gpuwarden_importing.model import (
    ImportedInventory,
    Origin,
    UnreadableError,
)


def test_the_call_names_the_node_before_the_file_does() -> None:
    assert Origin(node="n1").node_or("n2") == "n1"
    assert Origin().node_or("n2") == "n2"
    with pytest.raises(UnreadableError, match="--node"):
        Origin().node_or(None)
    with pytest.raises(UnreadableError, match="--at"):
        Origin().at()


def test_the_last_word_counts_and_absence_says_nothing() -> None:
    inventory = ImportedInventory()
    inventory.add_gpu("GPU-1", "n1", {"model": "A", "serial": "1"})
    inventory.add_gpu("GPU-1", "n1", {"model": "B", "serial": None})
    inventory.add_node("n1", {"driver_version": "590"})
    (_, node), (table, gpu) = inventory.rows()
    assert (table, gpu["model"], gpu["serial"]) == ("gpus", "B", "1")
    assert node["agent_id"] == "import"
    assert list(ImportedInventory().rows()) == []
