"""Takes program and script from a command line: what follows them never leaves the node."""

import re

LENGTH_MAX = 512
"""Most characters that are sent."""
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*t?")
_PYTHON_FLAGS = re.compile(r"-[bBdEiIOPqsSuvx]+|-[WX].+")
"""Options that do not take the next word as their value."""
_INTERPRETER = re.compile(r"(?:(?:ba|da|k|z)?sh|perl|ruby|node|julia|Rscript|java)[\d.]*")
_SCRIPT = re.compile(r"[^\s=]+\.(?:sh|pl|rb|m?js|jl|R|jar)")
_UNPRINTABLE = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029\ud800-\udfff]+")


def program_and_script(raw: bytes) -> str | None:
    """Of /proc/PID/cmdline, in one printable line: the program, and the script or module that an
    interpreter runs (`python train.py`, `python -m vllm.entrypoints.openai.api_server`). In doubt whether a
    word is a script, it is not sent. None: there is no command line, as of a kernel thread.
    """
    words = [word for word in raw.decode(errors="replace").split("\0") if word]
    # A program that writes its own title has it in one word, with whatever follows its name.
    program = "".join(words[:1]).split()[:1]
    if not program:
        return None
    name = program[0].rpartition("/")[2]
    if _PYTHON.fullmatch(name):
        program += _run_by_python(words[1:])
    elif _INTERPRETER.fullmatch(name):
        program += _run_by_interpreter(words[1:])
    line = _UNPRINTABLE.sub(" ", " ".join(program)).strip()
    return line if len(line) <= LENGTH_MAX else f"{line[: LENGTH_MAX - 1]}…"


def _run_by_python(words: list[str]) -> list[str]:
    at = 0
    while at < len(words) and (words[at] in ("-W", "-X") or _PYTHON_FLAGS.fullmatch(words[at])):
        at += 2 if words[at] in ("-W", "-X") else 1
    if words[at : at + 1] == ["-m"]:
        return words[at : at + 2]
    return [word for word in words[at : at + 1] if not word.startswith("-")]


def _run_by_interpreter(words: list[str]) -> list[str]:
    """Behind an option, which may take a word as its value, only a name as of a script is one."""
    first = next((at for at, word in enumerate(words) if not word.startswith(("-", "+"))), None)
    if first is None or (first > 0 and not _SCRIPT.fullmatch(words[first])):
        return []
    return [words[first]]
