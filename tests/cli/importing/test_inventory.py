"""What is known of GPUs and nodes at the end of a file."""

from gpuwarden_cli.importing.inventory import ImportedInventory


def test_the_last_word_counts_and_absence_says_nothing() -> None:
    inventory = ImportedInventory()
    inventory.add_gpu("GPU-1", "n1", {"model": "A", "serial": "1"})
    inventory.add_gpu("GPU-1", "n1", {"model": "B", "serial": None})
    inventory.add_node("n1", {"driver_version": "590"})
    nodes, gpus = inventory.rows()
    assert (gpus.columns["model"], gpus.columns["serial"]) == (["B"], ["1"])
    assert nodes.columns["agent_id"] == ["import"]
    assert list(ImportedInventory().rows()) == []
