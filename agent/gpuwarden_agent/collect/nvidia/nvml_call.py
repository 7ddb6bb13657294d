"""One call to NVML through nvidia-ml-py: counted while it runs, with the driver's own pointers checked
against the library's life.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pynvml

from gpuwarden_agent.collect.nvidia.nvml_port import FUNCTION_NOT_FOUND, UNKNOWN, NvmlError
from gpuwarden_agent.collect.nvidia.session import NVML


@dataclass(frozen=True, slots=True)
class Held:
    """A pointer of NVML's, and the life of the library that it belongs to."""

    pointer: Any
    generation: int


NO_HANDLE = Held(None, -1)
"""Of no life of the library."""


def call(name: str, *arguments: Any, of: Held | None = None) -> Any:
    """Call NVML. What the library or the binding lacks is FUNCTION_NOT_FOUND, like the driver's
    own answer; bytes that are no text come from a board whose EEPROM is broken: UNKNOWN. What is
    `Held` among the arguments, or is `of` them, must be of this life of the library: else
    UNINITIALIZED.
    """
    held = of
    for argument in arguments:
        if type(argument) is Held:
            held = argument
    plain: Iterable[Any] = arguments
    if held is not None:
        plain = [a.pointer if type(a) is Held else a for a in arguments]
    NVML.enter(name, held.generation if held is not None else None)
    try:
        return getattr(pynvml, name)(*plain)
    except pynvml.NVMLError as error:
        NVML.note(error.value)
        raise NvmlError(error.value, name) from error
    except AttributeError as error:
        raise NvmlError(FUNCTION_NOT_FOUND, name) from error
    except UnicodeDecodeError as error:
        raise NvmlError(UNKNOWN, name) from error
    finally:
        NVML.leave()


def hold(name: str, *arguments: Any) -> Held:
    """Call NVML for a pointer."""
    generation = NVML.generation
    return Held(call(name, *arguments), generation)
