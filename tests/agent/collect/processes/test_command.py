"""Program and script of a process are sent, and no argument."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden_agent.collect.processes.command import LENGTH_MAX, program_and_script

SECRET = "SeCrEt"


@pytest.mark.parametrize(
    ("line", "sent"),
    [
        (f"python train.py --token {SECRET}", "python train.py"),
        (f"/opt/venv/bin/python3.11 -u /a/train.py {SECRET}", "/opt/venv/bin/python3.11 /a/train.py"),
        (f"python /usr/local/bin/vllm serve {SECRET}", "python /usr/local/bin/vllm"),
        (f"python -m ipykernel_launcher -f {SECRET}", "python -m ipykernel_launcher"),
        (f"python -X utf8 -Wignore -m sglang.launch_server {SECRET}", "python -m sglang.launch_server"),
        (f"python -W {SECRET} run", "python run"),
        (f"python -c {SECRET}", "python"),
        (f"python -uc {SECRET}", "python"),
        (f"python --check-hash-based-pycs {SECRET} x.py", "python"),
        (f"bash run.sh {SECRET}", "bash run.sh"),
        (f"bash -c {SECRET} {SECRET}.sh", "bash"),
        (f"bash -ex run.sh {SECRET}", "bash run.sh"),
        (f"perl -E {SECRET}", "perl"),
        (f"julia -t {SECRET} train.jl", "julia"),
        (f"julia --project=. train.jl {SECRET}", "julia train.jl"),
        (f"java -Xmx4g -jar /opt/server.jar {SECRET}", "java /opt/server.jar"),
        (f"mysql -p{SECRET}", "mysql"),
        (f"vault login {SECRET}", "vault"),
        ("trtllm-serve", "trtllm-serve"),
    ],
)  # fmt: skip
def test_arguments_are_not_sent(line: str, sent: str) -> None:
    assert program_and_script("\0".join(line.split(" ")).encode() + b"\0") == sent


def test_of_a_title_that_a_program_wrote_itself_the_first_word_is_sent() -> None:
    assert program_and_script(f"ray::train --token={SECRET}\0\0\0".encode()) == "ray::train"
    assert program_and_script(f"python train.py --token={SECRET}\0".encode()) == "python"


def test_a_command_is_one_printable_line_of_limited_length() -> None:
    assert program_and_script(b"caf\xe9\0") == "caf\ufffd"
    assert program_and_script(b"python\0my\n\x1b[31m script.py\0") == "python my [31m script.py"
    long = program_and_script(b"python\0" + b"x" * 4_000)
    assert long is not None and len(long) == LENGTH_MAX and long.endswith("…")
    assert program_and_script(b"") is program_and_script(b" \0") is None


@settings(max_examples=50)
@given(st.lists(st.text(max_size=8), max_size=5))
def test_of_other_programs_nothing_but_the_program_is_sent(arguments: list[str]) -> None:
    raw = b"\0".join([b"/usr/bin/tool", *(one.encode(errors="replace") for one in arguments)])
    assert program_and_script(raw) == "/usr/bin/tool"
