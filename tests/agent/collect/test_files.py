"""Files of a device: read whole or by the page, folders and drivers that may not be there."""

from pathlib import Path

from gpuwarden_agent.collect.files import DeviceFiles, driver_of, first_bytes, listed, text_of


def test_an_attribute_is_a_page_and_a_binary_file_may_be_longer(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10_000)
    files = DeviceFiles({"gpu": 0})
    assert files.read(path, len) == 4096
    assert files.read_whole(path, len) == 10_000
    assert text_of(path) == "x" * 4096
    assert first_bytes(path, 2) == b"xx"


def test_what_is_not_there_is_absent_and_no_failure(tmp_path: Path) -> None:
    files = DeviceFiles({"gpu": 0})
    missing = tmp_path / "missing"
    assert files.read(missing, len) is None
    assert files.read_whole(missing, len) is None
    assert first_bytes(missing, 2) == b""
    assert listed(missing) == []
    assert driver_of(missing) is None
    assert not files.failed


def test_content_that_is_none_of_its_form_is_counted_by_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "clock"
    path.write_text("fast")
    files = DeviceFiles({"gpu": 0})
    assert files.read(path, int) is None
    assert files.read_whole(path, int) is None
    assert sum(files.failed.values()) == 2
    assert all(reason.startswith("clock: invalid literal") for reason in files.failed)


def test_the_driver_is_the_name_of_what_the_link_leads_to(tmp_path: Path) -> None:
    (tmp_path / "drivers/amdgpu").mkdir(parents=True)
    (tmp_path / "driver").symlink_to(tmp_path / "drivers/amdgpu")
    assert driver_of(tmp_path) == "amdgpu"
