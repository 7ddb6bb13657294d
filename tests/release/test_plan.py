"""An install is a function of what is there: applied to a model host, it ends and loses nothing."""

from dataclasses import replace

import pytest
from gpuwarden_installer import plan
from gpuwarden_installer.plan import (
    Bundle,
    InstalledState,
    Link,
    Refused,
    Remove,
    Run,
    Unpack,
    Wish,
    Write,
)
from hypothesis import given
from hypothesis import strategies as st

EXAMPLE = '# Address.\n# collector_url = "http://127.0.0.1:8750"\n\n# Ticks.\n# interval_s = 1.0\n'
RESTART = Run(("systemctl", "restart", "gpuwarden-agent.service"))


def bundle(version: str = "1.2.0", digest: str = "0123456789abcdef") -> Bundle:
    return Bundle("agent", version, digest, "unit", EXAMPLE, "users", "files", 60_000_000)


def applied(seen: InstalledState, steps: list[plan.Step], version: str) -> InstalledState:
    """The host after these steps."""
    files, links, folders = dict(seen.files), dict(seen.links), dict(seen.folders)
    for step in steps:
        match step:
            case Write(path, text):
                files[path] = text
            case Unpack(folder):
                folders[folder] = version
            case Link(path, target):
                links[path] = target
            case Remove(path):
                for known in (files, links, folders):
                    known.pop(path, None)
            case Run(("systemd-sysusers", *_)):
                seen = replace(seen, has_user=True)
            case Run(("systemctl", "enable", _)):
                seen = replace(seen, is_enabled=True)
            case Run(("systemctl", "restart", _)):
                seen = replace(seen, is_active=True)
            case Run(("systemctl", "disable", "--now", _)):
                seen = replace(seen, is_enabled=False, is_active=False)
    unfinished = tuple(folder for folder in seen.unfinished if Remove(folder) not in steps)
    return replace(seen, files=files, links=links, folders=folders, unfinished=unfinished)


def installed(*bundles: Bundle) -> InstalledState:
    seen = InstalledState()
    for one in bundles:
        seen = applied(seen, plan.install_steps(one, Wish(), seen), one.version)
    return seen


def test_a_second_install_has_nothing_to_do() -> None:
    assert plan.install_steps(bundle(), Wish(), installed(bundle())) == []


def test_a_file_system_without_room_is_refused_before_anything_is_done() -> None:
    with pytest.raises(Refused, match=r"/opt/gpuwarden needs 90 MB and .* has 89 MB free"):
        plan.install_steps(bundle(), Wish(), InstalledState(free_bytes=89_999_999))
    assert plan.install_steps(bundle(), Wish(), InstalledState(free_bytes=90_000_000))
    assert plan.install_steps(bundle(), Wish(), replace(installed(bundle()), free_bytes=0)) == []


@given(st.data())
def test_an_install_that_was_cut_short_is_completed_by_the_next(data) -> None:
    steps = plan.install_steps(bundle(), Wish(), InstalledState())
    done = data.draw(st.integers(0, len(steps)))
    seen = applied(InstalledState(), steps[:done], "1.2.0")
    if data.draw(st.booleans()):
        seen = replace(seen, unfinished=("/opt/gpuwarden/agent-1.2.0-dead",))
    after = applied(seen, plan.install_steps(bundle(), Wish(), seen), "1.2.0")
    assert plan.install_steps(bundle(), Wish(), after) == []
    assert after == installed(bundle())


def test_settings_that_are_there_are_never_written() -> None:
    path = plan.settings_of("agent")
    seen = InstalledState(files={path: "interval_s = 5.0\n"})
    for wish in (Wish(), Wish({"interval_s": "2.0"})):
        steps = plan.install_steps(bundle(), wish, seen)
        assert not [s for s in steps if isinstance(s, Write | Remove) and s.path == path]


def test_the_service_changes_over_only_after_the_new_version_has_read_the_settings() -> None:
    steps = plan.install_steps(bundle("1.3.0", "f" * 64), Wish(), installed(bundle()))
    new = "/opt/gpuwarden/agent-1.3.0-ffffffff"
    settings = plan.settings_of("agent")
    check = Run((f"{new}/bin/gpuwarden", "agent", "config", "--config", settings))
    link = Link("/opt/gpuwarden/agent", new)
    assert steps.index(Unpack(new)) < steps.index(check) < steps.index(link) < steps.index(RESTART)


def test_an_upgrade_keeps_the_version_before_and_removes_those_before_it() -> None:
    first, second, third = bundle("1.0.0", "a" * 64), bundle("1.1.0", "b" * 64), bundle()
    after = installed(first, second, third)
    assert set(after.folders) == {second.folder, third.folder}
    assert after.links["/opt/gpuwarden/agent-previous"] == second.folder


def test_a_rollback_and_another_come_out_where_they_began() -> None:
    seen = installed(bundle("1.0.0", "a" * 64), bundle())
    back = applied(seen, plan.rollback_steps("agent", seen), "")
    assert back.links["/opt/gpuwarden/agent"] == bundle("1.0.0", "a" * 64).folder
    assert applied(back, plan.rollback_steps("agent", back), "") == seen
    with pytest.raises(Refused, match="no version to go back to"):
        plan.rollback_steps("agent", installed(bundle()))


def test_an_older_version_is_refused_unless_it_is_asked_for() -> None:
    seen = installed(bundle("1.10.0"))
    older = bundle("1.9.0", "b" * 64)
    with pytest.raises(Refused, match=r"agent 1\.10\.0 is installed and this is 1\.9\.0"):
        plan.install_steps(older, Wish(), seen)
    assert Unpack(older.folder) in plan.install_steps(older, Wish(allow_downgrade=True), seen)


def test_versions_sort_as_they_were_published() -> None:
    published = ["0.9.0", "0.10.0.dev1", "0.10.0a1", "0.10.0rc1", "0.10.0rc2", "0.10.0", "1.0.0"]
    assert sorted([*published[3:], *published[:3]], key=plan.version_key) == published
    with pytest.raises(Refused, match="'1.0' is not of the form"):
        plan.version_key("1.0")


def test_settings_are_set_in_the_example_as_toml() -> None:
    wish = {"collector_url": "https://c:8750", "interval_s": "2.5"}
    text = plan.with_settings(EXAMPLE, wish)
    assert text == '# Address.\ncollector_url = "https://c:8750"\n\n# Ticks.\ninterval_s = 2.5\n'
    assert 'collector_url = "1\\nx = 2"' in plan.with_settings(
        EXAMPLE, {"collector_url": "1\nx = 2"}
    )
    with pytest.raises(Refused, match="--set url: no such setting"):
        plan.with_settings(EXAMPLE, {"url": "x"})


def test_enrolment_comes_before_the_start_and_once() -> None:
    wish = Wish(enroll=("--collector", "https://c:8750", "--token", "gw_secret"))
    steps = plan.install_steps(bundle(), wish, InstalledState())
    (enroll,) = [s for s in steps if isinstance(s, Run) and "enroll" in s.argv]
    assert steps.index(enroll) < steps.index(RESTART)
    assert "gw_secret" not in str(enroll) and "--token '***'" in str(enroll)
    files = {**installed(bundle()).files, plan.settings_of("agent"): 'token_file = "t"\n'}
    assert plan.install_steps(bundle(), wish, replace(installed(bundle()), files=files)) == []


def test_an_uninstall_leaves_settings_data_and_user() -> None:
    seen = installed(bundle("1.0.0", "a" * 64), bundle())
    steps = plan.uninstall_steps("agent", seen, purge=False)
    after = applied(seen, steps, "")
    assert set(after.files) == {plan.settings_of("agent")}
    assert (after.folders, after.links, after.is_active, after.has_user) == ({}, {}, False, True)
    assert plan.uninstall_steps("agent", after, purge=False) == []


def test_a_purge_spares_what_the_other_part_needs() -> None:
    seen = installed(bundle())
    alone = plan.uninstall_steps("agent", seen, purge=True)
    beside = plan.uninstall_steps("agent", replace(seen, has_other_part=True), purge=True)
    assert Run(("userdel", "gpuwarden")) in alone and Remove("/etc/gpuwarden") in alone
    kept = {plan.SYSUSERS, plan.TMPFILES, "/etc/gpuwarden"}
    assert not [s for s in beside if isinstance(s, Remove) and s.path in kept]
    assert Run(("userdel", "gpuwarden")) not in beside
    assert {Remove("/var/lib/gpuwarden-agent"), Remove(plan.settings_of("agent"))} <= {*beside}
