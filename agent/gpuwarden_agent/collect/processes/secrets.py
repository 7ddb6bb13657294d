"""Removes secrets from command lines before they leave the node.

A secret has one of four signs: the name before it (`--api-key X`, `HF_TOKEN=X`, `Authorization: X`),
the program that is called (`mysql -pX`, `wandb login X`), its place (`https://user:X@host`), and its form
(`ghp_...`, a JWT, a long run of random letters). In doubt, a word is hidden; common options of machine
learning, such as `--max-tokens 512` or `--tokenizer X`, are known to be harmless.

detect-secrets (1.5) is made for source code: it finds 39 of the 2,807 secrets of
tests/agent/collect/processes/commands.py.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

HIDDEN = "***"
LENGTH_MAX = 512
"""Most characters of a command line."""
DEPTH_MAX = 4
"""Depth of quotes within quotes that are parsed; deeper ones are hidden completely."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_STRONG = _words(
    "secret secrets password passwords passwd passphrase passcode pwd credential credentials creds "
    "authorization bearer jwt apikey apikeys apitoken authkey authtoken accesskey accesstoken "
    "secretkey privatekey pgpassword sshpass requirepass masterauth otp dsn webhook pw psk sas"
)
_WEAK = _words("token tokens pass auth pat sig signature cookie cookies")
"""Words that often mean something else."""
_ENDINGS = re.compile(
    r"[a-z0-9]+(?:password|passwd|passphrase|secret|apikey|authtoken)"
    r"|(?:db|user|store|key|my|root|admin|smtp|mail|http|proxy|ssh|sudo|become|redis|pg|mysql|ftp|vnc|wifi)"
    r"pass(?:wd|word|phrase)?"
)
"""Words that run together: DBPASS, but not compass."""
_KEYS = frozenset(("key", "keys", "keyid"))
_KINDS_OF_KEY = _words(
    "api access secret private auth encryption decryption license account ssh signing shared master "
    "service subscription session storage client deploy aws azure gcp wandb openai anthropic hf "
    "huggingface comet neptune mlflow clearml s3 minio activation licence product"
)
_ALONE = frozenset(("key", "pin", "code", "sig", "sid"))
"""Names that stand for a secret or for something plain: the value decides."""
_PLAIN_VALUE = re.compile(
    r"""["']?(?:[a-z_]{1,12}|-?[\d.]{1,3}|[^\s"']*/[^\s"']*|[^\s"']*\.(?:pem|key|crt|json|txt|ya?ml|toml|npy))["']?"""
)
_ABOUT = _words("file path dir name type mode method enabled url uri ttl timeout")
"""Last words of names whose value is not the secret itself."""
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
    if any(_ENDINGS.fullmatch(word) for word in words):
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
_WEBHOOKS = re.compile(
    r"""(?ix)(
      hooks\.slack\.com/(?:services|workflows|triggers)/
    | discord(?:app)?\.com/api/webhooks/\d+/
    | api\.telegram\.org/(?:file/)?bot
    | \b(?:[\w-]{1,40}\.){0,3}office\.com/webhook(?:b2)?/
    )[^\s'"]*"""
)
_FED = re.compile(
    r"\b(echo|printf|yes)\s[^|;]{0,300}\|(?=[^|;]{0,100}(?:-stdin|\bsudo\s+-S|\b(?:ch)?passwd|passphrase-fd|with-token"
    r"|\b(?:kinit|cryptsetup|smbpasswd|gpg|su|login)\b))"
)
"""Text piped to a program that reads a password."""
_SENT = re.compile(r"(?i)(\bexpect\b[^;]{0,40}pass[^;]{0,20};\s{0,4}send\s{1,4})[^;\s]+")
_CALL = re.compile(r"""(\blogin\(\s*)(?:"[^"]*"?|'[^']*'?)""")
_HERE = re.compile(r"""(<<<\s*)(?:"[^"]*"?|'[^']*'?|\S+)""")
_PASS_COLON = re.compile(r"(?<![\w-])(pass:|/p:)\S+")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_RUN = re.compile(r"[A-Za-z0-9_+-]{20,}={0,2}")
_ALNUM = re.compile(r"[A-Za-z0-9]{20,}")
_CLASSES = re.compile(r"[a-z]+|[A-Z]+|[0-9]+")
_NAME = re.compile(
    r"""([A-Za-z0-9_.-]++)(["']?\s*\]?\s*(?:=>|[:=])(?!/)\s*|["'](?:\s*,|\s*\]\s)\s*(?=["']))"""
)
_VALUE = re.compile(
    r""""(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?|\([^)]*\)?|[^\s"',;&}\])]+""",
    re.DOTALL,
)
_HEADER = re.compile(r"\s*([A-Za-z][\w.-]*)\s*:\s")
_WORD = re.compile(r"""(?:"(?:\\.|[^"\\])*"?|'[^']*'?|\\.|[^\s"'\\])+|\\$""", re.DOTALL)
_ASSIGNED = re.compile(r"\s*[-+]*([A-Za-z_][A-Za-z0-9_.-]*)=")
_PAIR_FLAGS = _words(
    "-u -U --user --proxy-user --creds --src-creds --dest-creds --auth --basic-auth --login"
)
"""Flags of any program whose value may be NAME:PASSWORD."""
_IDS = re.compile(r"\d+:\d+|\w+:\w+(?=@sha)")
_USER_FLAGS = _words("-u -U -l --user --username --login /u")
_BESIDE_USER = _words("-p -pw --pwd")
"""Flags of a password, or of a port, where a flag names a user."""
_PORTS = re.compile(r"[\d.:/-]+(?:tcp|udp)?")
_OPERATORS = frozenset(("|", "||", "&&", ";", "&"))


@dataclass(frozen=True, slots=True)
class _Program:
    """How a program takes secrets."""

    flags: frozenset[str] = frozenset()
    """Flags before a secret: `-p X`, `-pX`, `-p=X`, `--pass X`, `--pass=X`."""
    attached: frozenset[str] = frozenset()
    """Flags that have one only where it is attached: `-pX`."""
    pairs: frozenset[str] = frozenset()
    """Flags before NAME:PASSWORD, NAME%PASSWORD or, of a certificate, FILE:PASSWORD; attached or not."""
    words: int = 0
    """From this argument on, counted from 1 without flags, each is a secret; 0: none."""
    is_assigned: bool = False
    """Each `NAME=X` has a secret."""


def _program(
    flags: str = "", attached: str = "", pairs: str = "", words: int = 0, *, assigned: bool = False
) -> _Program:
    return _Program(_words(flags), _words(attached), _words(pairs), words, assigned)


_LOGIN = _program("-p --password", pairs="--creds")
_ORACLE = re.compile(r"(?i)((?:userid=)?[\w$#]+/)[^\s@/]+")
_ORACLES = _words("sqlplus impdp expdp imp exp sqlldr rman")
_PROGRAMS: dict[str, _Program] = {
    **dict.fromkeys(_words("curl"), _program("--oauth2-bearer --pass --tlspassword --proxy-pass", pairs="-u --user -U --proxy-user -E --cert -b --cookie")),
    **dict.fromkeys(_words("http https xh"), _program(pairs="-a --auth")),
    **dict.fromkeys(_words("mysql mysqldump mysqladmin mysqlimport mysqlcheck mariadb mariadb-dump mariadb-admin"), _program(attached="-p")),
    **dict.fromkeys(_words("mongo mongosh mongodump mongorestore mongoexport mongoimport sshpass twine"), _program("-p")),
    **dict.fromkeys(_words("7z 7za 7zz rar unrar"), _program(attached="-p -hp")),
    **dict.fromkeys(_words("zip unzip sqlcmd bcp mosquitto_pub mosquitto_sub ipmitool"), _program("-P")),
    **dict.fromkeys(_words("useradd usermod"), _program("-p --password")),
    **dict.fromkeys(_words("redis-cli valkey-cli keydb-cli"), _program("-a --pass")),
    **dict.fromkeys(_words("ldapsearch ldapmodify ldapadd ldapdelete ldapwhoami"), _program("-w")),
    **dict.fromkeys(_words("snmpget snmpwalk snmpset snmpbulkwalk snmptrap"), _program("-c -A -X")),
    "ldappasswd": _program("-w -s -a"),
    "lftp": _program(pairs="-u --user"),
    "mycli": _program("-p --pass"),
    "smbget": _program(pairs="-U --user"),
    "ssh-keygen": _program("-N -P"),
    "smbclient": _program(pairs="-U --user", words=2),
    "etcdctl": _program(pairs="--user"),
    "htpasswd": _program(words=2),
    "isql": _program(words=3),
    "wpa_passphrase": _program(words=2),
    "keytool": _program("-storepass -keypass -srcstorepass -deststorepass"),
    "vercel": _program("-t --token"),
    "openssl": _program("-k -K"),
}  # fmt: skip
_COMMANDS: dict[tuple[str, str], _Program] = {
    **{(name, "login"): _LOGIN for name in _words("docker podman nerdctl buildah skopeo oras helm az crane")},
    **{(name, "login"): _program(words=1) for name in _words("wandb vault cargo comet")},
    **{(name, "set"): _program(words=2) for name in _words("aws npm pulumi vastai")},
    **{(name, word): _program(words=3) for name in _words("mc mcli") for word in _words("add set")},
    **{("vault", name): _program(assigned=True) for name in _words("put patch write")},
    **{("rabbitmqctl", name): _program(words=2) for name in _words("add_user change_password")},
    ("poetry", "publish"): _program("-p --password"),
    ("ngrok", "authtoken"): _program(words=1),
    **{("nmcli", name): _program(words=1) for name in _words("password wifi-sec.psk")},
    ("airflow", "create"): _program("-p --password"),
    ("awscli", "set"): _program(words=2),
    ("prefect", "login"): _program("-k --key"),
    ("grafana-cli", "reset-admin-password"): _program(words=1),
    ("neo4j-admin", "set-initial-password"): _program(words=1),
    ("keyring", "set"): _program(words=3),
    ("ngrok", "add-authtoken"): _program(words=1),
    ("aws", "create-secret"): _program("--secret-string"),
    ("aws", "put-secret-value"): _program("--secret-string"),
    ("gh", "secret"): _program("-b --body"),
    ("db2", "using"): _program(words=1),
    ("dotnet", "push"): _program("-k --api-key"),
    ("fly", "set"): _program(assigned=True),
    ("flyctl", "set"): _program(assigned=True),
    ("heroku", "config:set"): _program(assigned=True),
    ("kubectl", "secret"): _program(assigned=True),
    ("poetry", "config"): _program(words=3),
    ("rclone", "obscure"): _program(words=1),
}  # fmt: skip
"""By program and a word behind it."""
_WITH_COMMANDS = frozenset(program for program, _ in _COMMANDS)
_UNPRINTABLE = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029\ud800-\udfff]+")


def without_secrets(arguments: Sequence[str]) -> str:
    """A command line in one printable line of at most `LENGTH_MAX` characters."""
    line = " ".join(_hidden(arguments))
    line = _UNPRINTABLE.sub(" ", line).strip()
    return line if len(line) <= LENGTH_MAX else line[: LENGTH_MAX - 1] + "…"


_SCRIPT = re.compile(r"[^\s=]+\.(?:py|sh|pl|rb|R|jl|js|jar|m)")


def program_of(arguments: Sequence[str]) -> list[str]:
    """The program, and the script or module that it runs, without any other argument."""
    for number, argument in enumerate(arguments[1:], 1):
        if argument == "-m" and len(arguments) > number + 1:
            return [arguments[0], "-m", arguments[number + 1]]
        if _SCRIPT.fullmatch(argument) and number <= 2:
            return [arguments[0], argument]
        if not argument.startswith("-") or argument == "-c":
            break
    return list(arguments[:1])


def parse_command(raw: bytes, limit: int) -> list[str]:
    """Arguments of /proc/PID/cmdline, of which `limit` bytes were read.

    A word that was cut off is dropped: half a secret cannot be recognised by its form.
    """
    text = raw.decode(errors="replace")
    if len(raw) >= limit:
        text = text[: max(text.rfind("\0"), text.rfind(" "), text.rfind("\n"), 0)]
    return [part for part in text.split("\0") if part]


class _Place:
    """The program that the words belong to, and how many arguments it had so far."""

    def __init__(self) -> None:
        self.program = ""
        self.at = _Program()
        self.words = 0

    def look(self, word: str) -> None:
        """Take a word."""
        name = word.rpartition("=")[2].rpartition("/")[2]
        if word in _OPERATORS:
            self.program, self.at, self.words = "", _Program(), 0
        elif name in _PROGRAMS or name in _WITH_COMMANDS:
            self.program, self.at, self.words = name, _PROGRAMS.get(name, _Program()), 0
        elif name in _ORACLES:
            self.program, self.at = name, _Program()
        elif (found := _COMMANDS.get((self.program, word))) is not None:
            self.at, self.words = found, 0
        elif not word.startswith("-"):
            self.words += 1

    def hides(self, before: str, word: str) -> str | None:
        """The word with the program's secret hidden; None: it has none."""
        if before in self.at.flags and not _is_flag(word):
            return HIDDEN
        for flag in (*self.at.flags, *self.at.attached):
            is_long = flag.startswith("--") or len(flag) > 2
            if word.startswith(f"{flag}=") or (
                not is_long and len(word) > 2 and word.startswith(flag) and word[:2] != "--"
            ):
                end = len(flag) + (word[len(flag)] == "=")
                return f"{word[:end]}{HIDDEN}"
            if flag == "-hp" and word.startswith(flag) and len(word) > 3:
                return f"{flag}{HIDDEN}"
        if (pair := self._pair(before, word)) is not None:
            return pair
        if self.program in _ORACLES and _ORACLE.match(word):
            return _ORACLE.sub(rf"\1{HIDDEN}", word)
        if self.at.is_assigned and "=" in word:
            start = word.rpartition("=")[0] if word.startswith("-") else word.partition("=")[0]
            return f"{start}={HIDDEN}"
        if self.at.words and self.words + 1 >= self.at.words and not word.startswith("-"):
            return HIDDEN
        return None

    def _pair(self, before: str, word: str) -> str | None:
        for flag in self.at.pairs:
            value = start = None
            if before == flag:
                start, value = "", word
            elif word.startswith(f"{flag}="):
                start, value = f"{flag}=", word[len(flag) + 1 :]
            elif len(flag) == 2 and len(word) > 2 and word.startswith(flag) and word[1] != "-":
                start, value = flag, word[2:]
            elif len(flag) == 2 and re.fullmatch(f"-[a-zA-Z]+{flag[1]}", before):
                start, value = "", word  # -su NAME:PASSWORD
            if value is None:
                continue
            for separator in ("=", ":", "%") if flag in ("-b", "--cookie") else (":", "%", ","):
                name, found, secret = value.partition(separator)
                if found and secret:
                    return f"{start}{name}{separator}{HIDDEN}"
        return None


def _hidden(arguments: Sequence[str], depth: int = 0) -> Iterator[str]:
    before = ""
    place = _Place()
    names_user = any(argument in _USER_FLAGS for argument in arguments)
    for argument in arguments:
        plain = argument.strip("\"'")
        name, is_set, value = argument.partition("=")
        found = place.hides(before, plain)
        if _asks_for_secret(before) and not _is_flag(argument):
            yield HIDDEN
        elif found is not None:
            yield found
        elif (
            (
                _names_alone(before)
                and not _PLAIN_VALUE.fullmatch(argument)
                and not _is_flag(argument)
            )
            or names_user
            and before in _BESIDE_USER
            and not _PORTS.fullmatch(plain)
        ):
            yield HIDDEN
        elif before in _PAIR_FLAGS and ":" in plain and not _IDS.fullmatch(plain):
            yield f"{plain.partition(':')[0]}:{HIDDEN}"
        elif is_set and name in _PAIR_FLAGS and ":" in value:
            yield f"{name}={value.partition(':')[0]}:{HIDDEN}"
        else:
            yield _hidden_within(argument, depth)
        place.look(plain)
        before = argument


def _names_alone(word: str) -> bool:
    """Whether it is a flag whose value decides: `--key`, `--pin`."""
    return word.startswith("--") and word[2:] in _ALONE


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
    for pattern, by in _SHAPES:
        argument = pattern.sub(by, argument)
    argument = _URL_USER.sub(f"{HIDDEN}@", argument)
    argument = _BEARER.sub(rf"\1\2{HIDDEN}", argument)
    if " " in argument:
        argument = _values_hidden(argument)
    words = _WORD.findall(argument)
    if len(words) > 1:
        return " ".join(_hidden(words, depth + 1))
    argument = _values_hidden(argument)
    argument = _KNOWN_FORMS.sub(HIDDEN, argument)
    return _RUN.sub(_random_hidden, argument)


_SHAPES = (
    (_WEBHOOKS, rf"\1{HIDDEN}"),
    (_FED, rf"\1 {HIDDEN} |"),
    (_SENT, rf"\1{HIDDEN}"),
    (_CALL, rf"\1{HIDDEN}"),
    (_HERE, rf"\1{HIDDEN}"),
    (_PASS_COLON, rf"\1{HIDDEN}"),
)


def _values_hidden(argument: str) -> str:
    """`name=value` and `"name": value`, anywhere: in URLs, JSON, overrides."""
    parts: list[str] = []
    at = 0
    while found := _NAME.search(argument, at):
        parts.append(argument[at : found.end()])
        at = found.end()
        value = _VALUE.match(argument, at)
        name = found.group(1)
        is_plain = value is None or _PLAIN_VALUE.fullmatch(value.group())
        if value and (is_secret_name(name) or (name.lstrip("-") in _ALONE and not is_plain)):
            parts.append(HIDDEN)
            at = value.end()
    return "".join([*parts, argument[at:]])


def _random_hidden(found: re.Match[str]) -> str:
    text = found.group()
    if _UUID.search(text) or found.string[: found.start()].endswith("sha256:"):
        return text
    return HIDDEN if looks_random(text) else text


def looks_random(text: str) -> bool:
    """Whether letters and digits alternate as in a key.

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
