"""The file of receivers: what is wrong is one line with file, receiver and key."""

from pathlib import Path

import pytest

from gpuwarden.collector_metrics import SOURCES
from gpuwarden.lifecycle import StartError
from gpuwarden_prometheus.remote_write.settings import KEEP_BYTES_MAX, load_receivers

GOOD = '[[receiver]]\nname = "a"\nurl = "http://127.0.0.1:9090/api/v1/write"\n'


def test_a_receiver_needs_a_name_and_a_url(tmp_path: Path) -> None:
    path = tmp_path / "receivers.toml"
    path.write_text(GOOD)
    plan = load_receivers(path)
    (receiver,) = plan.settings
    assert plan.names == ("a",)
    assert plan.keep_bytes_max == KEEP_BYTES_MAX
    assert (receiver.version, receiver.names, receiver.metrics) == (1, ("own", "collector"), ("*",))
    assert set(receiver.sources) == set(SOURCES)


def test_every_key_is_read(tmp_path: Path) -> None:
    path = tmp_path / "receivers.toml"
    path.write_text(
        "keep_bytes_max = 1000\n"
        + GOOD
        + 'version = 2\nnames = ["dcgm", "own"]\nmetrics = ["DCGM_*"]\nlabels = {cluster = "c"}\n'
        + 'basic_auth = {username = "u", password_file = "/p"}\ntls_ca = "/ca"\nheaders = {X-Scope-OrgID = "t"}\n'
    )
    plan = load_receivers(path)
    (receiver,) = plan.settings
    assert plan.keep_bytes_max == 1000
    assert (receiver.version, receiver.username) == (2, "u")
    assert receiver.password_file == Path("/p")
    assert receiver.sources == ()
    assert receiver.is_wanted("DCGM_FI_DEV_GPU_TEMP")
    assert not receiver.is_wanted("gpuwarden_gpu_power_watts")


def test_a_receiver_may_get_the_collectors_metrics_alone(tmp_path: Path) -> None:
    path = tmp_path / "receivers.toml"
    path.write_text(GOOD + 'names = ["collector"]\nmetrics = ["ALERTS", "gpuwarden_waste_*"]')
    (receiver,) = load_receivers(path).settings
    assert receiver.sources == ("waste_metrics", "alerts_metrics")
    path.write_text(GOOD + 'names = ["own"]\nmetrics = ["ALERTS"]')
    with pytest.raises(StartError, match="no name of its name sets fits"):
        load_receivers(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no [[receiver]]"),
        ("receiver = 1", "no [[receiver]]"),
        ("x = 1", "unknown key 'x'"),
        ("keep_bytes_max = -1\n" + GOOD, "number of bytes"),
        ("receiver = [1]", "[[receiver]]"),
        ("[[receiver]]\nurl = 'http://a'", "needs a name"),
        ("[[receiver]]\nname = 'a/b'\nurl = 'http://a'", "needs a name"),
        ("[[receiver]]\nname = 'a'\nurl = 'ftp://a'", "receiver a: url must be"),
        ("[[receiver]]\nname = 'a'\nurl = 'http://u:p@a'", "use basic_auth"),
        (GOOD + GOOD, "same name"),
        (GOOD + "versoin = 1", "unknown key 'versoin'"),
        (GOOD + "version = 3", "version must be 1 or 2"),
        (GOOD + "names = ['other']", "no name set 'other'"),
        (GOOD + "metrics = ['nothing_*']", "no name of its name sets fits"),
        (GOOD + "labels = {__name__ = 'x'}", "'__name__' cannot be"),
        (GOOD + "labels = {a = 1}", "labels must be a table of texts"),
        (GOOD + "headers = {'a b' = 'x'}", "'a b' cannot be"),
        (GOOD + "basic_auth = {username = 'u'}", "password_file"),
        (GOOD + "bearer_token_file = 1", "bearer_token_file must be a path"),
        ("[[receiver", "remote_write_file"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "receivers.toml"
    path.write_text(text)
    with pytest.raises(StartError) as refused:
        load_receivers(path)
    assert says in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"no-file\.toml"):
        load_receivers(tmp_path / "no-file.toml")
