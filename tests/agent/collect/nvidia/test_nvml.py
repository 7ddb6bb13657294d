"""Return codes are those of the binding, and errors name call and code."""

import pynvml

from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.nvml import CODE_NAMES, NvmlError


def test_return_codes_are_those_of_the_binding() -> None:
    named = {
        getattr(pynvml, name): name.removeprefix("NVML_ERROR_")
        for name in dir(pynvml)
        if name.startswith("NVML_ERROR_")
    }
    assert {code: CODE_NAMES.get(code) for code in named} == named
    for code, name in CODE_NAMES.items():
        assert getattr(nvml, name, code) == code


def test_an_error_names_call_and_code() -> None:
    assert str(NvmlError(nvml.GPU_IS_LOST, "nvmlX")) == "nvmlX: GPU_IS_LOST"
    assert str(NvmlError(12345, "nvmlX")) == "nvmlX: code 12345"
