"""Loads NVML, makes calls through nvidia-ml-py, and closes and opens the library again when needed.

After the kernel module was unloaded and loaded again, every call fails until NVML is shut down and
initialised again; after an upgrade of the driver, the mapped library is the wrong one and must be loaded
again, too. Neither may happen while a thread is inside a call, so calls are counted and blocked
meanwhile. A handle belongs to one generation of the library: a call with a handle of an earlier
generation fails before it reaches NVML.
"""

import _ctypes
import contextlib
import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pynvml

from gpuwarden_agent.collect.nvidia.nvml import (
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    GPU_NOT_FOUND,
    IN_USE,
    LIB_RM_VERSION_MISMATCH,
    SUCCESS,
    UNINITIALIZED,
    UNKNOWN,
    NvmlError,
)

log = logging.getLogger(__name__)

RENEW_WAIT_S = 0.5
"""How long to wait for calls to return before NVML is shut down."""
CALL_WAIT_S = 30.0
"""How long a call waits for NVML to be opened again; GPUs that wake up take their time."""

ANSWERS_OF_THE_LOST = 3
"""Calls about a lost GPU that may succeed, from the library's cache, before one fails."""

_ENDS = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH})
_LOSSES = frozenset({GPU_IS_LOST, GPU_NOT_FOUND, UNKNOWN})


@dataclass(slots=True)
class CallTally:
    """Results of calls about GPUs since the tally was last taken."""

    answered: int = 0
    lost: int = 0
    """Calls that found no GPU, or failed without a reason, as all do in a container whose devices were
    removed.
    """
    ended: int = 0
    """Calls that found no driver."""

    @property
    def has_ended(self) -> bool:
        """Whether no GPU answers any more, so that NVML must be opened again."""
        return bool(self.ended or (self.lost and self.answered <= ANSWERS_OF_THE_LOST * self.lost))


class NvmlSession:
    """The one NVML of a process; every method may be called from any thread."""

    def __init__(self) -> None:
        self.generation = 0
        """Number of the current generation of the library; handles of others are not valid."""
        self._is_initialised = False
        self._free = threading.Condition()
        self._inside = 0
        self._is_closed = False
        self._tally = CallTally()

    def enter(self, call: str, generation: int | None = None) -> None:
        """Begin a call; `leave` must follow. `generation`: that of the handle.

        Raises NvmlError with UNINITIALIZED when the handle is of another generation, or when the
        opening of NVML takes too long.
        """
        with self._free:
            if self._is_closed:
                self._free.wait_for(lambda: not self._is_closed, CALL_WAIT_S)
            if self._is_closed or (generation is not None and generation != self.generation):
                raise NvmlError(UNINITIALIZED, call)
            self._inside += 1

    def leave(self) -> None:
        """End a call."""
        with self._free:
            self._inside -= 1
            if self._is_closed:
                self._free.notify_all()

    def note(self, code: int) -> None:
        """Add the return code of a call about a GPU."""
        tally = self._tally
        if code in _ENDS:
            tally.ended += 1
        elif code in _LOSSES:
            tally.lost += 1
        elif code == SUCCESS:
            tally.answered += 1

    def take_tally(self) -> CallTally:
        """The tally since the last call of this method."""
        tally, self._tally = self._tally, CallTally()
        return tally

    def renew(self, wait_s: float = RENEW_WAIT_S) -> None:
        """Open NVML, after closing it if it is open. Blocks, for seconds where GPUs wake up.

        Raises NvmlError: IN_USE when a call did not return within `wait_s`, or another thread opens it,
        and nothing was done; else the code of nvmlInit, and the library is unloaded.
        """
        with self._free:
            if self._is_closed:
                raise NvmlError(IN_USE, "nvmlInit")
            self._is_closed = True
            if not self._free.wait_for(lambda: not self._inside, wait_s):
                self._admit_calls()
                raise NvmlError(IN_USE, "nvmlShutdown")
        try:
            self._restart()
            self._tally = CallTally()
        finally:
            with self._free:
                self._admit_calls()

    def _admit_calls(self) -> None:
        self._is_closed = False
        self._free.notify_all()

    def _restart(self) -> None:
        was_initialised, self._is_initialised = self._is_initialised, False
        self.generation += 1
        if was_initialised:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
            with contextlib.suppress(NvmlError):
                self._initialise()
                return
            # Try again: the mapped library may be that of an older driver.
        self._initialise()

    def _initialise(self) -> None:
        """Initialise NVML; unload a library that fails, so that the next attempt loads the installed one."""
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            library, pynvml.nvmlLib = pynvml.nvmlLib, None
            pynvml._nvmlGetFunctionPointer_cache.clear()
            if library is not None:
                _ctypes.dlclose(library._handle)
            raise NvmlError(error.value, "nvmlInit") from error
        self._is_initialised = True


NVML = NvmlSession()
"""One for the process, as NVML's own state."""


@dataclass(frozen=True, slots=True)
class NvmlPointer:
    """A pointer of NVML, and the generation of the library that it belongs to."""

    pointer: Any
    generation: int


NO_HANDLE = NvmlPointer(None, -1)
"""Belongs to no generation of the library."""


def call(name: str, *arguments: Any, of: NvmlPointer | None = None) -> Any:
    """Call NVML. A pointer among the arguments, or `of`, must be of the current generation of the
    library: else UNINITIALIZED.
    """
    held = of
    for argument in arguments:
        if type(argument) is NvmlPointer:
            held = argument
    if held is None:
        return call_plain(name, None, arguments)
    plain = [a.pointer if type(a) is NvmlPointer else a for a in arguments]
    return call_plain(name, held.generation, plain)


def call_plain(name: str, generation: int | None, arguments: Iterable[Any]) -> Any:
    """Call NVML with its own pointers, of that `generation` of the library. A function that library or
    binding lacks is FUNCTION_NOT_FOUND, as the driver's own answer. Invalid text, from a board with a
    damaged EEPROM, is UNKNOWN.
    """
    NVML.enter(name, generation)
    try:
        return getattr(pynvml, name)(*arguments)
    except pynvml.NVMLError as error:
        NVML.note(error.value)
        raise NvmlError(error.value, name) from error
    except AttributeError as error:
        raise NvmlError(FUNCTION_NOT_FOUND, name) from error
    except UnicodeDecodeError as error:
        raise NvmlError(UNKNOWN, name) from error
    finally:
        NVML.leave()


def call_library(name: str, generation: int, *arguments: Any) -> None:
    """Call the C function itself, where the binding would make two calls. The caller fills `arguments`
    with C types.
    """
    NVML.enter(name, generation)
    try:
        pynvml._nvmlCheckReturn(pynvml._nvmlGetFunctionPointer(name)(*arguments))
    except pynvml.NVMLError as error:
        NVML.note(error.value)
        raise NvmlError(error.value, name) from error
    finally:
        NVML.leave()
    NVML.note(SUCCESS)


def hold(name: str, *arguments: Any) -> NvmlPointer:
    """Call NVML for a pointer, and keep its generation."""
    generation = NVML.generation
    return NvmlPointer(call(name, *arguments), generation)
