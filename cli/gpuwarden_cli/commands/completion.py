"""Prints completion scripts for bash, zsh and fish, made from the parser: `gpuwarden completion`.

A script knows all commands, flags and choices, so that completing them starts nothing. For names of nodes and GPUs
it calls `gpuwarden completion names`, which asks the collector.
"""

import argparse
import shlex
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from gpuwarden_cli.parser import Commands, add_command
from gpuwarden_client.http import CallError, ask

SHELLS = ("bash", "zsh", "fish")
NAMES_MAX = 20_000
_NAMES = f"""
SELECT node FROM nodes WHERE forgotten_at IS NULL
UNION ALL SELECT format('{{}}/{{}}', node, gpu) FROM gpus WHERE replaced_by IS NULL AND gpu IS NOT NULL
LIMIT {NAMES_MAX}
"""
TIMEOUT_S = 2.0
"""Longest wait for names: a shell that waits longer seems broken."""
NAMES_COMMAND = "gpuwarden completion names 2>/dev/null"
FILES, NAMES = "files", "names"
_NAMED = {"node", "nodes", "gpu", "place", "target"}
"""Arguments that take a node or a GPU."""
_FILE_METAVARS = {"FILE", "DIR", "SRC", "DEST"}


def add_commands(commands: Commands, top: argparse.ArgumentParser) -> None:
    """Add the command to the parser `top`, from which the scripts are made."""
    made = add_command(
        commands, "completion", lambda args: run(args, top), "print the completion script of a shell",
        "It completes commands, flags, choices, tables and questions without starting anything, and"
        " names of nodes and GPUs by asking the collector.",
    )  # fmt: skip
    made.add_argument(
        "shell",
        choices=(*SHELLS, "names"),
        help="a shell; names: print names of nodes and GPUs, for the scripts",
    )


def run(args: argparse.Namespace, top: argparse.ArgumentParser) -> int:
    """Print the script, or names; no names where no collector answers."""
    if args.shell != "names":
        print(script(args.shell, top), end="")
        return 0
    with suppress(CallError):
        for (name,) in ask(_NAMES, timeout_s=TIMEOUT_S).rows:
            if name.isprintable() and " " not in name:
                print(name)
    return 0


@dataclass(frozen=True, slots=True)
class Word:
    """A word that can be typed, and its meaning."""

    text: str
    meaning: str = ""


@dataclass(slots=True)
class Level:
    """Words and flags that can follow a command."""

    path: tuple[str, ...]
    words: list[Word] = field(default_factory=list)
    """Subcommands, or choices of its argument."""
    flags: list[Word] = field(default_factory=list)
    values: dict[str, list[Word] | str] = field(default_factory=dict)
    """By flag that takes a value: its choices, FILES, NAMES or "" for any text."""
    takes: str = ""
    """What its argument takes where it has no choices: FILES, NAMES or ""."""


def levels(top: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[Level]:
    """The levels of all commands and groups, the top level first."""
    level, below = Level(path), []
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, sub in action.choices.items():
                level.words += [Word(name, helps[name])] if name in helps else []
                below.append((sub, (*path, name)))
        elif action.option_strings:
            meaning = (action.help or "").replace("%%", "%")
            level.flags += [Word(text, meaning) for text in action.option_strings]
            if action.nargs != 0:
                level.values |= dict.fromkeys(action.option_strings, _values(action))
        elif isinstance(found := _values(action, path), list):
            level.words += found
        else:
            level.takes = level.takes or found
    yield level
    for sub, words in below:
        yield from levels(sub, words)


def _values(action: argparse.Action, path: tuple[str, ...] = ()) -> list[Word] | str:
    # The catalogue, which other commands do not need.
    from gpuwarden.comments import table_comments
    from gpuwarden.cookbook import questions

    if action.choices is not None:
        return [Word(str(choice)) for choice in action.choices]
    if path == ("ask",):
        return [Word(one.name, one.title) for one in questions()]
    if path == ("schema",):
        return [Word(name, meaning) for name, meaning in table_comments().items()]
    if action.dest in _NAMED:
        return NAMES
    return FILES if action.metavar in _FILE_METAVARS else ""


def script(shell: str, top: argparse.ArgumentParser) -> str:
    """The completion script of a shell."""
    found = list(levels(top))
    made = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]
    return "\n".join(made(found)) + "\n"


def _key(level: Level) -> str:
    return " ".join(level.path)


def _paths(found: list[Level]) -> str:
    """Pattern for a shell's `case`: the paths of all levels but the top."""
    return "|".join(shlex.quote(_key(level)) for level in found if level.path)


_BASH_HEAD = """\
# Completion of gpuwarden for bash: put it into ~/.local/share/bash-completion/completions/gpuwarden
_gpuwarden() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} path= next word words= i
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        next=${path:+$path }$word
        case $next in"""
_ZSH_HEAD = """\
#compdef gpuwarden
# Completion of gpuwarden for zsh: put it as _gpuwarden into a folder of $fpath, or source it after compinit.
_gpuwarden() {
    local cur=${words[CURRENT]} prev=${words[CURRENT-1]} path_= next word i
    local -a found
    for ((i = 2; i < CURRENT; i++)); do
        word=${words[i]}
        next=${path_:+$path_ }$word
        case $next in"""


def _cases(
    found: list[Level],
    path: str,
    values_of: Callable[[list[Word] | str], str],
    words_of: Callable[[list[Word]], str],
) -> Iterator[str]:
    """The body of the function for bash and zsh; `path`: its variable with the words of the command."""
    yield f'    case "${path} $prev" in'
    for level in found:
        for flag, values in level.values.items():
            yield f"        {shlex.quote(f'{_key(level)} {flag}')}) {values_of(values)} ;;"
    yield f"    esac\n    if [[ $cur == -* ]]; then\n        case ${path} in"
    for level in found:
        yield f"            {shlex.quote(_key(level))}) {words_of(level.flags)} ;;"
    yield f"        esac\n    else\n        case ${path} in"
    for level in found:
        if level.words:
            yield f"            {shlex.quote(_key(level))}) {words_of(level.words)} ;;"
        elif level.takes:
            yield f"            {shlex.quote(_key(level))}) {values_of(level.takes)} ;;"
    yield "        esac\n    fi"


def _bash(found: list[Level]) -> Iterator[str]:
    yield _BASH_HEAD
    yield f"            {_paths(found)}) path=$next ;;\n        esac\n    done\n    COMPREPLY=()"
    yield from _cases(found, "path", _bash_values, lambda words: f"words='{_texts(words)}'")
    yield '    COMPREPLY=($(compgen -W "$words" -- "$cur"))\n}\ncomplete -F _gpuwarden gpuwarden'


def _bash_values(values: list[Word] | str) -> str:
    if values == FILES:
        return 'compopt -o filenames; COMPREPLY=($(compgen -f -- "$cur")); return'
    if values == NAMES:
        return f'COMPREPLY=($(compgen -W "$({NAMES_COMMAND})" -- "$cur")); return'
    words = _texts(values) if isinstance(values, list) else ""
    return f"COMPREPLY=($(compgen -W '{words}' -- \"$cur\")); return"


def _texts(words: list[Word]) -> str:
    return " ".join(word.text for word in words)


def _zsh(found: list[Level]) -> Iterator[str]:
    yield _ZSH_HEAD
    yield f"            {_paths(found)}) path_=$next ;;\n        esac\n    done"
    yield from _cases(found, "path_", _zsh_values, lambda words: f"found=({_described(words)})")
    # In $fpath the file is the function's body and must call it; when sourced it must register it.
    yield (
        "    _describe gpuwarden found\n}\n"
        'if [[ ${funcstack[1]-} == _gpuwarden ]]; then\n    _gpuwarden "$@"\nelse\n    compdef _gpuwarden gpuwarden\nfi'
    )


def _zsh_values(values: list[Word] | str) -> str:
    if values == FILES:
        return "_files; return"
    if values == NAMES:
        return f'compadd -- ${{(f)"$({NAMES_COMMAND})"}}; return'
    if not isinstance(values, list) or not values:
        return "_message value; return"
    return f"found=({_described(values)}); _describe gpuwarden found; return"


def _described(words: list[Word]) -> str:
    """The words as `'text:meaning'`, the form that _describe takes."""
    return " ".join(
        shlex.quote(word.text.replace(":", "\\:") + (f":{word.meaning}" if word.meaning else ""))
        for word in words
    )


_FISH_HEAD = """\
# Completion of gpuwarden for fish: put it into ~/.config/fish/completions/gpuwarden.fish
function __gpuwarden_path
    set -l path
    for word in (commandline -opc)[2..-1]
        set -l next (string join -- ' ' $path $word)
        contains -- $next $__gpuwarden_paths; and set path $next
    end
    test "$path" = "$argv"
end
complete -c gpuwarden -f"""


def _fish(found: list[Level]) -> Iterator[str]:
    paths = " ".join(shlex.quote(_key(level)) for level in found if level.path)
    yield f"set -g __gpuwarden_paths {paths}"
    yield _FISH_HEAD
    for level in found:
        start = f"complete -c gpuwarden -n {_fish_quote(f'__gpuwarden_path {_fish_quote(_key(level))}')}"
        for word in level.words:
            yield f"{start} -a {_fish_quote(word.text)}{_fish_said(word)}"
        if not level.words and level.takes:
            yield f"{start} {_fish_values(level.takes)}"
        for flag in level.flags:
            name = f"-l {flag.text[2:]}" if flag.text.startswith("--") else f"-s {flag.text[1:]}"
            values = level.values.get(flag.text)
            takes = "" if values is None else f" -r {_fish_values(values)}"
            yield f"{start} {name}{takes}{_fish_said(flag)}"


def _fish_values(values: list[Word] | str) -> str:
    if values == FILES:
        return "-F"
    if values == NAMES:
        return f"-f -a {_fish_quote(f'({NAMES_COMMAND})')}"
    words = _texts(values) if isinstance(values, list) else ""
    return f"-f -a {_fish_quote(words)}" if words else "-f"


def _fish_quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _fish_said(word: Word) -> str:
    return f" -d {_fish_quote(word.meaning)}" if word.meaning else ""
