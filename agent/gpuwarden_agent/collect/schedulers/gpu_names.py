"""Maps schedulers' names of a GPU to UUIDs: UUID, replica, number of the device file, PCI bus id."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from gpuwarden_agent.collect.files import read_text

DRIVER = Path("/proc/driver/nvidia")
"""Folder in which NVIDIA's kernel module has the numbers of device files, readable by everyone."""

_HEX = "[0-9a-fA-F]"
_UUID = re.compile(rf"((?:GPU|MIG)-{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}})(?:::.*)?")
_OLD_MIG = re.compile(rf"MIG-GPU-{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}/\d+/\d+")
_FILE = re.compile(r"(?:/dev/)?(?:nvidia|gpu-)?(\d+)(?:/(?:vgpu|gi)\d+)?")
_BUS = re.compile(rf"{_HEX}{{4,8}}:{_HEX}{{2}}:{_HEX}{{2}}\.{_HEX}")
_MINOR = re.compile(r"^Device Minor:\s*(\d+)", re.MULTILINE)

Gpu = tuple[int | None, str]
"""Index on the node, where known, and UUID."""


class GpuNames:
    """Finds GPUs by their names in schedulers."""

    def __init__(
        self,
        bus_ids: Mapping[str, tuple[int, str]],
        driver: Path = DRIVER,
        *,
        others: Callable[[], Mapping[str, tuple[int, str]]] = dict,
    ) -> None:
        """`bus_ids`: index and UUID by PCI bus id; may grow while GPUs are opened. `others`: the same for
        GPUs of other makers.
        """
        self._others = others
        self._bus_ids = bus_ids
        self._driver = driver
        self._minors: dict[str, int] = {}

    def find(self, name: str) -> Gpu | None:
        """GPU-..., GPU-...::2 (a replica), MIG-..., 3, nvidia3, nvidia3/vgpu1, gpu-3 (of a resource claim),
        0000:03:00.0 (AMD); None: none of ours.
        """
        if _BUS.fullmatch(name):
            return self._others().get(name.lower()) or self._gpus().get(name.lower())
        if (file := _FILE.fullmatch(name)) is not None:
            return self._by_minor(int(file.group(1)))
        if _OLD_MIG.fullmatch(name):
            return None, name
        if (found := _UUID.fullmatch(name)) is None:
            return None
        uuid = found.group(1)
        indices = {known: index for index, known in self._gpus().values()}
        return indices.get(uuid), uuid

    def _gpus(self) -> dict[str, tuple[int, str]]:
        return dict(self._bus_ids)  # a copy: other threads add to it

    def _by_minor(self, minor: int) -> Gpu | None:
        gpus = self._gpus()
        for bus_id in gpus.keys() - self._minors.keys():
            text = read_text(f"{self._driver}/gpus/{bus_id}/information")
            told = _MINOR.search(text or "")
            # Without the module's file: both number the GPUs in the order of their buses.
            self._minors[bus_id] = int(told.group(1)) if told else gpus[bus_id][0]
        return next((gpu for bus, gpu in gpus.items() if self._minors.get(bus) == minor), None)
