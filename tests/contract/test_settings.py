"""Settings: who wins, and what a person reads when one is wrong."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.settings import SettingsError, changed, load, setting


@dataclass(frozen=True)
class Example:
    interval_s: float = setting(1.0, "How often.", least=0.1, most=60)
    url: str = setting("http://127.0.0.1", "Where.")
    token_file: Path | None = setting(None, "Secret.")
    verbose: bool = setting(False, "Say more.")
    level: str = setting("info", "How much.", choices=("info", "debug"))
    workers: int = setting(3, "How many.")
    prices: dict[str, float] = setting({}, "Prices.")
    urls: tuple[str, ...] = setting((), "More than one.")


def test_a_later_source_wins_and_each_value_knows_its_own(tmp_path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text('# a comment\nurl = "http://file"\nworkers = 4\nlevel = "debug"\n')
    env = {"GPUWARDEN_AGENT_WORKERS": "5", "GPUWARDEN_AGENT_LEVEL": "info", "HOME": "/"}
    loaded = load(Example, "agent", path=path, env=env, flags={"level": "debug", "verbose": None})
    assert loaded.settings == Example(url="http://file", workers=5, level="debug")
    assert loaded.sources == {
        "interval_s": "default",
        "url": f"{path}:2",
        "token_file": "default",
        "verbose": "default",
        "level": "--level",
        "workers": "environment GPUWARDEN_AGENT_WORKERS",
        "prices": "default",
        "urls": "default",
    }


def test_tables_and_lists_come_from_toml_and_from_text(tmp_path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('urls = ["a", "b"]\n[prices]\nH100 = 2\n')
    assert load(Example, "x", path=path, env={}).settings.prices == {"H100": 2.0}
    env = {"GPUWARDEN_X_PRICES": "H100=2.5, A100=1", "GPUWARDEN_X_URLS": "a, b"}
    loaded = load(Example, "x", path=path, env=env)
    assert loaded.settings.prices == {"H100": 2.5, "A100": 1.0}
    assert loaded.settings.urls == ("a", "b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\ninterval = 1\n", ":2: unknown setting 'interval'; known: interval_s, level, prices, "),
        ("interval_s = 0\n", ":1: interval_s = 0 must be at least 0.1"),
        ("interval_s = nan\n", ":1: interval_s = nan must be a number"),
        ("interval_s = 99\n", ":1: interval_s = 99 must be at most 60"),
        ("workers = 2.5\n", ":1: workers = 2.5 must be a whole number"),
        ("workers = true\n", ":1: workers = True must be a whole number"),
        ('verbose = "maybe"\n', ":1: verbose = maybe must be true or false"),
        ("url = 7\n", ":1: url = 7 must be a text"),
        ('level = "loud"\n', ":1: level = loud must be one of info, debug"),
        (
            '[prices]\nH100 = "x"\n',
            ":1: prices = {'H100': 'x'} must be a table of names and numbers",
        ),
        ("url = \n", "not valid TOML: "),
    ],
)
def test_a_wrong_value_says_where_what_and_what_it_must_be(tmp_path, text, message) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load(Example, "agent", path=path, env={})
    assert f"{path}{message}" in str(caught.value).replace(f"{path}: not", f"{path}not")
    assert "\n" not in str(caught.value).strip()


def test_a_missing_file_and_an_unknown_variable_are_named(tmp_path) -> None:
    with pytest.raises(SettingsError, match="none.toml: cannot be read: No such file"):
        load(Example, "agent", path=tmp_path / "none.toml", env={})
    with pytest.raises(
        SettingsError, match="environment GPUWARDEN_AGENT_URI: unknown setting 'uri'"
    ):
        load(Example, "agent", env={"GPUWARDEN_AGENT_URI": "x"})


@given(st.booleans(), st.sampled_from(["upper", "lower", "title"]))
def test_false_is_false_however_it_is_written(value, style) -> None:
    text = getattr("true" if value else "false", style)()
    loaded = load(Example, "x", env={"GPUWARDEN_X_VERBOSE": text})
    assert loaded.settings.verbose is value


def test_what_changed_is_named() -> None:
    assert changed(Example(), Example()) == ()
    assert changed(Example(), Example(level="debug", workers=4)) == ("level", "workers")
