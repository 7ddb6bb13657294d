"""Removes secrets from command lines before they leave the node.

Three signs give a secret away: the name before it (`--api-key X`, `HF_TOKEN=X`, `Authorization: X`),
its place (`https://user:X@host`), and its form (`ghp_...`, a JWT, a long run of random letters).
Where in doubt it is hidden; what a machine-learning command is full of, such as `--max-tokens 512`
or `--tokenizer X`, is known to be harmless.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

HIDDEN = "***"
LENGTH_MAX = 512
"""Characters of a command line that are told."""
DEPTH_MAX = 4
"""Quotes within quotes that are looked into; what is deeper is hidden whole."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_STRONG = _words(
    "secret secrets password passwords passwd passphrase passcode pwd credential credentials creds "
    "authorization bearer jwt apikey apikeys apitoken authkey authtoken accesskey accesstoken "
    "secretkey privatekey pgpassword sshpass requirepass masterauth otp dsn webhook"
)
_WEAK = _words("token tokens pass auth pat sig signature cookie cookies")
"""Words that mean something else as often."""
_KEYS = frozenset(("key", "keys", "keyid"))
_KINDS_OF_KEY = _words(
    "api access secret private auth encryption decryption license account ssh signing shared master "
    "service subscription session storage client deploy aws azure gcp wandb openai anthropic hf "
    "huggingface comet neptune mlflow clearml"
)
_ABOUT = _words("file path dir name type mode method enabled url uri ttl timeout")
"""Last words that say that the value is not the secret but something about it."""
_HARMLESS = _ABOUT | _words(
    "pad padding eos bos unk mask sep cls stop image video audio vision text special new max min num "
    "number count per id ids len length limit size dim types level levels budget batch drop "
    "dropout shuffle input output total prompt completion context forward backward single two multi "
    "first second begin end start added extra json query head heads cache classes "
    "embedding embeddings embed chunk step steps rate files prefix suffix format column columns "
    "field fields warmup train training seen"
)
"""Words beside a weak one that make it a model's, a loop's or a column's."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NOT_ALNUM = re.compile(r"[^A-Za-z0-9]+")


def is_secret_name(name: str) -> bool:
    """Whether what follows a flag, key or variable of this name is a secret."""
    words = _NOT_ALNUM.sub(" ", _CAMEL.sub(" ", name)).lower().split()
    if not words or words[-1] in _ABOUT:
        return False
    is_key = any(a in _KINDS_OF_KEY and b in _KEYS for a, b in pairwise(words))
    is_variable = name.strip("-+") == name.upper() and "_" in name
    if is_key or _STRONG.intersection(words) or (is_variable and words[-1] in _KEYS):
        return True
    if is_variable and "token" in words and words[-1] != "id":
        return True
    return bool(_WEAK.intersection(words)) and not _HARMLESS.intersection(words)


_URL_USER = re.compile(
    r"(?<=://)(?:[^\s/?#'\"]*@|[^\s/@:'\"]*:(?!\d{1,5}(?:[/'\"\s]|$))[^\s@'\"]*@)"
)
_BEARER = re.compile(r"(?i)\b(bearer|basic|negotiate|apikey)(\s+|%20)([^\s'\",;]{6,})")
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)", re.DOTALL)
_KNOWN_FORMS = re.compile(
    r"""(?<![A-Za-z0-9])(?:
      (?:hf|api_org)_[A-Za-z0-9]{8,}
    | (?:sk|pk|rk)[-_][A-Za-z0-9_-]{8,}
    | gh[pousr]_[A-Za-z0-9]{8,} | github_pat_\w{8,} | gl(?:pat|rt|dt|cbt|ptt)-[\w-]{8,}
    | xox[a-z]-[\w-]{8,} | xapp-[\w-]{8,}
    | (?:AKIA|ASIA|AGPA|AROA|AIDA)[A-Z0-9]{12,}
    | AIza[\w-]{20,} | ya29\.[\w.-]{8,} | GOCSPX-[\w-]{8,}
    | eyJ[\w-]{8,}(?:\.[\w-]*){0,4}
    | nvapi-[\w-]{8,} | npm_\w{8,} | pypi-[\w-]{8,} | dop_v1_\w{8,} | dckr_pat_[\w-]{8,}
    | SG\.[\w.-]{8,} | gsk_\w{8,} | r8_\w{8,} | tvly-[\w-]{8,} | dapi[0-9a-f]{16,} | lin_api_\w{8,}
    | shp(?:at|ca|pa|ss)_\w{8,} | sq0\w{3}-[\w-]{8,} | hvs\.[\w-]{8,} | wandb_v1_\w{8,}
    | AGE-SECRET-KEY-\w+
    )""",
    re.VERBOSE,
)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_RUN = re.compile(r"[A-Za-z0-9_+-]{20,}={0,2}")
_ALNUM = re.compile(r"[A-Za-z0-9]{20,}")
_CLASSES = re.compile(r"[a-z]+|[A-Z]+|[0-9]+")
_NAME = re.compile(r"""([A-Za-z0-9_.-]++)(["']?\s*[:=]\s*)""")
_VALUE = re.compile(
    r""""(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?|[^\s"',;&}\])]+""",
    re.DOTALL,
)
_HEADER = re.compile(r"\s*([A-Za-z][\w.-]*)\s*:\s")
_WORD = re.compile(r"""(?:"(?:\\.|[^"\\])*"?|'[^']*'?|\\.|[^\s"'\\])+|\\$""", re.DOTALL)
_ASSIGNED = re.compile(r"\s*[-+]*([A-Za-z_][A-Za-z0-9_.-]*)=")
_COLON_FLAGS = frozenset({"-u", "--user", "--proxy-user", "-U"})
"""Flags whose value may be NAME:PASSWORD."""
_UNPRINTABLE = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029\ud800-\udfff]+")


def without_secrets(arguments: Sequence[str]) -> str:
    """A command line in one printable line of at most `LENGTH_MAX` characters."""
    line = " ".join(_hidden(arguments))
    line = _UNPRINTABLE.sub(" ", line).strip()
    return line if len(line) <= LENGTH_MAX else line[: LENGTH_MAX - 1] + "…"


def parse_command(raw: bytes, limit: int) -> list[str]:
    """Arguments of /proc/PID/cmdline, of which `limit` bytes were read.

    What was cut off is left out up to the end of the word before: half a secret has no form.
    """
    text = raw.decode(errors="replace")
    if len(raw) >= limit:
        text = text[: max(text.rfind("\0"), text.rfind(" "), text.rfind("\n"), 0)]
    return [part for part in text.split("\0") if part]


def _hidden(arguments: Sequence[str], depth: int = 0) -> Iterator[str]:
    before = ""
    for argument in arguments:
        if _asks_for_secret(before) and not _is_flag(argument):
            yield HIDDEN
        elif before in _COLON_FLAGS and ":" in argument:
            yield f"{argument.partition(':')[0]}:{HIDDEN}"
        elif before == "-p" and arguments[0].rpartition("/")[2] == "sshpass":
            yield HIDDEN
        else:
            yield _hidden_within(argument, depth)
        before = argument


def _is_flag(argument: str) -> bool:
    """`--flag` or `-f`; a secret may begin with a dash as well, but then it is long."""
    return re.fullmatch(r"--?[A-Za-z][A-Za-z-]{0,20}(=.*)?", argument, re.DOTALL) is not None


def _asks_for_secret(word: str) -> bool:
    """Whether the next word is the value of a secret flag: `--token`, `"api_key":`, `-token`."""
    if word.startswith("-") and "=" not in word and " " not in word:
        return is_secret_name(word)
    name = word.rstrip()
    return name.endswith(("=", ":")) and is_secret_name(name.rpartition(" ")[2])


def _hidden_within(argument: str, depth: int) -> str:
    """An argument without the secrets in it: it may be a header, a script, JSON, or one value."""
    if depth > DEPTH_MAX:
        return HIDDEN
    if len(argument) > 1 and argument[0] in "\"'" and argument[0] == argument[-1]:
        return f"{argument[0]}{_hidden_within(argument[1:-1], depth + 1)}{argument[0]}"
    header = _HEADER.match(argument)
    if header and is_secret_name(header.group(1)):
        return f"{header.group(1)}: {HIDDEN}"
    assigned = _ASSIGNED.match(argument)
    if assigned and is_secret_name(assigned.group(1)):
        return f"{argument[: assigned.end()]}{HIDDEN}"
    argument = _PEM.sub(HIDDEN, argument)
    argument = _URL_USER.sub(f"{HIDDEN}@", argument)
    argument = _BEARER.sub(rf"\1\2{HIDDEN}", argument)
    words = _WORD.findall(argument)
    if len(words) > 1:
        return " ".join(_hidden(words, depth + 1))
    argument = _values_hidden(argument)
    argument = _KNOWN_FORMS.sub(HIDDEN, argument)
    return _RUN.sub(_random_hidden, argument)


def _values_hidden(argument: str) -> str:
    """`name=value` and `"name": value`, wherever they stand: in URLs, JSON, overrides."""
    parts: list[str] = []
    at = 0
    while found := _NAME.search(argument, at):
        parts.append(argument[at : found.end()])
        at = found.end()
        if is_secret_name(found.group(1)) and (value := _VALUE.match(argument, at)):
            parts.append(HIDDEN)
            at = value.end()
    return "".join([*parts, argument[at:]])


def _random_hidden(found: re.Match[str]) -> str:
    text = found.group()
    if _UUID.search(text) or found.string[: found.start()].endswith("sha256:"):
        return text
    return HIDDEN if looks_random(text) else text


def looks_random(text: str) -> bool:
    """Whether letters and digits alternate as in a key, and not as in a name.

    In 24 random letters and digits six of ten neighbours are of different classes (lower case, upper
    case, digit); in names that people make hardly more than three are.
    """
    for run in _ALNUM.findall(text):
        changes = (len(_CLASSES.findall(run)) - 1) / len(run)
        is_mixed = re.search("[a-z]", run) and re.search("[A-Z]", run)
        if is_mixed and len(run) >= 20 and changes >= 0.42 and re.search("[0-9]", run):
            return True
        if not is_mixed and len(run) >= 32 and changes >= 0.25:
            return True
    joined = re.sub("[^A-Za-z0-9]", "", text)
    changes = (len(_CLASSES.findall(joined)) - 1) / max(1, len(joined))
    return len(joined) >= 32 and changes >= 0.48 and re.search("[0-9]", joined) is not None
