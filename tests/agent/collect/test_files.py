"""Files of a device: read whole or by the page, folders and drivers that may not be there."""

from pathlib import Path

from gpuwarden_agent.collect.files import DeviceFiles, first_bytes, text_of


def test_an_attribute_is_a_page_and_a_binary_file_may_be_longer(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10_000)
    files = DeviceFiles({"gpu": 0})
    assert files.read(path, len) == 4096
    assert files.read_whole(path, len) == 10_000
    assert text_of(path) == "x" * 4096
    assert first_bytes(path, 2) == b"xx"
