"""A call to NVML: what the binding raises, and pointers of another life. `test_nvml_life.py` has what
happens between threads.
"""

import pytest

from gpuwarden_agent.collect.nvidia.nvml_call import NO_HANDLE, call, hold
from gpuwarden_agent.collect.nvidia.nvml_driver import NvmlError
from gpuwarden_agent.collect.nvidia.session import NVML


def test_a_call_that_fails_has_left() -> None:
    inside = NVML._inside
    with pytest.raises(NvmlError, match="nvmlNoSuchCall: FUNCTION_NOT_FOUND"):
        call("nvmlNoSuchCall")
    assert NVML._inside == inside


def test_a_pointer_of_another_life_is_refused_before_anything_is_called() -> None:
    for arguments, of in (((NO_HANDLE,), None), ((1, NO_HANDLE), None), ((), NO_HANDLE)):
        with pytest.raises(NvmlError, match="nvmlNoSuchCall: UNINITIALIZED"):
            call("nvmlNoSuchCall", *arguments, of=of)


def test_without_a_library_nothing_is_held() -> None:
    with pytest.raises(NvmlError, match="nvmlEventSetCreate: UNINITIALIZED"):
        hold("nvmlEventSetCreate")
