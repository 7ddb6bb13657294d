"""Lines of a log belong to the GPU that they name, in whatever way."""

import pytest

from gpuwarden_cli.importing.identity import Identities, ReportedIdentity


@pytest.mark.parametrize(
    ("told", "uuid"),
    [
        (ReportedIdentity("n1", "GPU-1", None, None), "GPU-1"),
        (ReportedIdentity("n1", None, "0000:3b:00.0", 7), "GPU-1"),
        (ReportedIdentity("n1", None, None, 2), "GPU-1"),
        (ReportedIdentity("n1", None, None, 3), "gpu-3@n1"),
        (ReportedIdentity("n1", None, "0000:5b:00.0", 2), "pci-0000:5b:00.0@n1"),
        (ReportedIdentity("n2", None, "0000:3b:00.0", 2), "pci-0000:3b:00.0@n2"),
        (ReportedIdentity("n1", None, None, None), None),
    ],
)
def test_a_line_is_of_the_gpu_that_was_at_its_place(
    told: ReportedIdentity, uuid: str | None
) -> None:
    known = ReportedIdentity("n1", "GPU-1", "0000:3b:00.0", 2)
    assert Identities().uuids([told, known])[0] == uuid


def test_what_was_read_before_is_remembered() -> None:
    gpus = Identities()
    gpus.learn(ReportedIdentity("n1", "GPU-1", None, 0))
    assert gpus.uuids([ReportedIdentity("n1", None, None, 0)]) == ["GPU-1"]
