"""Loads NVML, makes calls through nvidia-ml-py, and closes and opens the library again when needed.

When the kernel module was unloaded and loaded again, every call fails until NVML was shut down and
initialised anew; when the driver was upgraded meanwhile, the library that is mapped is the wrong
one and must be loaded anew too. Neither may happen while a thread is inside a call, so callers are
counted, and kept out for as long as it takes. Handles belong to one life of the library: a call
with one of an earlier life fails before it reaches NVML.
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
"""Calls about a lost GPU that may succeed, from the library's memory, before one fails."""

_ENDS = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH})
_LOSSES = frozenset({GPU_IS_LOST, GPU_NOT_FOUND, UNKNOWN})


@dataclass(slots=True)
class CallTally:
    """What calls about GPUs said since the tally was last taken."""

    answered: int = 0
    lost: int = 0
    """Calls that found no GPU where there was one, or failed without a reason: in a container whose
    devices were taken away, all do.
    """
    ended: int = 0
    """Calls that found no driver."""

    @property
    def has_ended(self) -> bool:
        """Whether no GPU answers any more, so that NVML may as well be opened anew."""
        return bool(self.ended or (self.lost and self.answered <= ANSWERS_OF_THE_LOST * self.lost))


class NvmlSession:
    """The one NVML of a process; every method may be called from any thread."""

    def __init__(self) -> None:
        self.generation = 0
        """Which life of the library this is: handles of another are worth nothing."""
        self._is_initialised = False
        self._free = threading.Condition()
        self._inside = 0
        self._is_closed = False
        self._tally = CallTally()

    def enter(self, call: str, generation: int | None = None) -> None:
        """Begin a call; `leave` must follow. `generation`: of the handle that it is about.

        Raises NvmlError with UNINITIALIZED when the handle is of another life, or NVML is being
        opened and that takes too long.
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
        """A call about a GPU had this return code."""
        tally = self._tally
        if code in _ENDS:
            tally.ended += 1
        elif code in _LOSSES:
            tally.lost += 1
        elif code == SUCCESS:
            tally.answered += 1

    def take_tally(self) -> CallTally:
        """What `note` was told since the last call of this."""
        tally, self._tally = self._tally, CallTally()
        return tally

    def renew(self, wait_s: float = RENEW_WAIT_S) -> None:
        """Open NVML, after closing it if it is open. Blocks, for seconds where GPUs wake up.

        Raises NvmlError: IN_USE when a call did not return within `wait_s`, or another thread is
        opening it: then nothing was done; else the code of nvmlInit, and the library is unloaded.
        """
        with self._free:
            if self._is_closed:
                raise NvmlError(IN_USE, "nvmlInit")
            self._is_closed = True
            if not self._free.wait_for(lambda: not self._inside, wait_s):
                self._open_door()
                raise NvmlError(IN_USE, "nvmlShutdown")
        try:
            self._restart()
            self._tally = CallTally()
        finally:
            with self._free:
                self._open_door()

    def _open_door(self) -> None:
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
            # Once more: what was mapped may be the library of an older driver.
        self._initialise()

    def _initialise(self) -> None:
        """A library that does not work is unloaded, so that the next attempt takes the one that is
        installed then.
        """
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
"""NVML's own state is the process's, and so is this."""


@dataclass(frozen=True, slots=True)
class NvmlPointer:
    """A pointer of NVML's, and the life of the library that it belongs to."""

    pointer: Any
    generation: int


NO_HANDLE = NvmlPointer(None, -1)
"""Of no life of the library."""


def call(name: str, *arguments: Any, of: NvmlPointer | None = None) -> Any:
    """Call NVML. What is `Held` among the arguments, or is `of` them, must be of this generation of
    the library: else UNINITIALIZED.
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
    """Call NVML with NVML's own pointers, which are of that `generation` of the library. What the
    library or the binding lacks is FUNCTION_NOT_FOUND, like the driver's own answer; bytes that are
    no text come from a board whose EEPROM is broken: UNKNOWN.
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


def hold(name: str, *arguments: Any) -> NvmlPointer:
    """Call NVML for a pointer."""
    generation = NVML.generation
    return NvmlPointer(call(name, *arguments), generation)
