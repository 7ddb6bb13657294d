"""The binding and the fake fill the port, and its numbers are NVML's."""

import pynvml
from tests.agent.probes.fake_driver import FakeDevice
from tests.each import each

from gpuwarden_agent.probes import nvml_port
from gpuwarden_agent.probes.nvml_device import NvmlDevice
from gpuwarden_agent.probes.nvml_port import CODE_NAMES, Device, NvmlError


def methods_of_the_port() -> list[str]:
    return sorted(
        {
            name
            for part in Device.__mro__
            for name, member in vars(part).items()
            if callable(member) and not name.startswith("_")
        }
    )


@each("name", methods_of_the_port())
def test_binding_and_fake_have_each_method_of_the_port(name: str) -> None:
    assert callable(getattr(NvmlDevice(0), name))
    # A fake board answers a call or says why not; what no board has is in none of them.
    assert callable(getattr(FakeDevice({"fan_percent": {}, **FakeDevice().answers}), name))


def test_return_codes_are_those_of_the_binding() -> None:
    named = {
        getattr(pynvml, name): name.removeprefix("NVML_ERROR_")
        for name in dir(pynvml)
        if name.startswith("NVML_ERROR_")
    }
    assert {code: CODE_NAMES.get(code) for code in named} == named
    for code, name in CODE_NAMES.items():
        assert getattr(nvml_port, name, code) == code


def test_an_error_names_call_and_code() -> None:
    assert str(NvmlError(nvml_port.GPU_IS_LOST, "nvmlX")) == "nvmlX: GPU_IS_LOST"
    assert str(NvmlError(12345, "nvmlX")) == "nvmlX: code 12345"
