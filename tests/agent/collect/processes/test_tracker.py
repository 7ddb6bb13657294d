"""A process is remembered while it lives: counters that do not fall, and who it is."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.collect.processes.made_up import MadeUpProc, by, process

from gpuwarden_agent.collect.processes.procfs import Io, Process, ProcFs, Switches
from gpuwarden_agent.collect.processes.tracker import REFRESH_IN, ProcessTracker, SwitchCounter


def test_io_counters_do_not_fall_while_a_child_waits_to_be_buried() -> None:
    tracker = ProcessTracker()
    seen = [tracker.saw_io(io) for io in (Io(5, 5, 5), Io(3, 9, 5), None, Io(6, 6, 6))]
    assert seen == [Io(5, 5, 5), Io(5, 9, 5), None, Io(6, 9, 6)]


def test_workers_started_counts_each_once() -> None:
    tracker = ProcessTracker()
    first, second_, again = process(2), process(3), process(2, start=200)
    counts = [tracker.saw_workers(w) for w in ([first, second_], [first, second_], [], [again])]
    assert counts == [2, 2, 2, 3]


def threads(ticks: dict[int, int]) -> dict[int, Process]:
    return by(*(process(tid, ticks=n) for tid, n in ticks.items()))


def test_switches_are_summed_over_threads_and_stay_when_one_ends() -> None:
    counter = SwitchCounter()
    counts = {1: Switches(5, 1), 2: Switches(7, 2)}
    assert counter.look(threads({1: 0, 2: 0}), counts.get) == Switches(12, 3)
    counts[1] = Switches(9, 1)
    assert counter.look(threads({1: 1}), counts.get) == Switches(16, 3)


def test_switches_that_may_not_be_read_are_absent() -> None:
    assert SwitchCounter().look(threads({1: 0}), lambda tid: None) is None


def test_a_thread_id_used_again_is_another_thread() -> None:
    counter = SwitchCounter()
    counter.look(by(process(1, start=1)), lambda tid: Switches(100, 0))
    assert counter.look(by(process(1, start=2)), lambda tid: Switches(1, 0)) == Switches(101, 0)


def test_sleeping_threads_are_read_in_turns_and_lose_nothing() -> None:
    counter, asked = SwitchCounter(), []

    def read(tid: int) -> Switches:
        asked.append(tid)
        return Switches(tid, 0)

    sleeping = threads(dict.fromkeys(range(100), 0))
    counter.look(sleeping, read)
    asked.clear()
    for _ in range(REFRESH_IN):
        counter.look(sleeping, read)
    assert sorted(asked) == list(range(100))


@settings(max_examples=40)
@given(
    st.lists(
        st.dictionaries(st.integers(1, 9), st.tuples(st.integers(0, 3), st.integers(0, 3))),
        max_size=20,
    )
)
def test_the_sum_of_context_switches_never_falls(
    looks: list[dict[int, tuple[int, int]]],
) -> None:
    counter = SwitchCounter()
    ticks: dict[int, int] = {}
    truth: dict[int, int] = {}
    last = 0
    for grown in looks:
        for tid, (more_ticks, more_switches) in grown.items():
            ticks[tid] = ticks.get(tid, 0) + more_ticks
            truth[tid] = truth.get(tid, 0) + more_switches
        total = counter.look(
            threads({tid: ticks[tid] for tid in grown}), lambda tid: Switches(truth[tid], 0)
        )
        if total is not None:
            assert last <= total.voluntary
            last = total.voluntary


SLURM = "0::/system.slice/slurmstepd.scope/job_5/step_0/user/task_0\n"


def test_a_process_is_looked_at_again_when_it_becomes_another_program(tmp_path: Path) -> None:
    made, tracker = MadeUpProc(tmp_path), ProcessTracker()
    made.add(process(7, name="bash"), command=b"bash\0run.sh\0")
    tracker.saw(process(7, name="bash"), ProcFs(tmp_path))
    assert (tracker.command, tracker.owner.slurm_job_id) == ("bash run.sh", None)
    made.add(process(7, name="python"), command=b"python\0--token\0abc\0", cgroup=SLURM)
    tracker.saw(process(7, name="python"), ProcFs(tmp_path))
    assert (tracker.command, tracker.owner.slurm_job_id) == ("python", "5")
    assert tracker.owner.process_name == "python"


def test_a_zombie_stays_who_it_was(tmp_path: Path) -> None:
    made, tracker = MadeUpProc(tmp_path), ProcessTracker()
    made.add(process(7), command=b"python\0train.py\0", cgroup=SLURM)
    tracker.saw(process(7), ProcFs(tmp_path))
    made.add(process(7, state="Z"), cgroup="0::/\n")
    tracker.saw(process(7, state="Z"), ProcFs(tmp_path))
    assert (tracker.command, tracker.owner.slurm_job_id) == ("python train.py", "5")


def test_a_kernel_thread_has_no_command(tmp_path: Path) -> None:
    MadeUpProc(tmp_path).add(process(7))
    tracker = ProcessTracker()
    tracker.saw(process(7), ProcFs(tmp_path))
    assert tracker.command is None
