"""Tries one target in this process: `python -m tests.fuzz.one NAME CORPUS FINDINGS [libFuzzer's options]`."""

import sys
from pathlib import Path

import atheris

TIMEOUT_S = 20
MEMORY_MIB = 3_072


def main() -> None:
    """Run until libFuzzer ends the process, with an exit status of not 0 for a finding."""
    name, corpus, findings, *options = sys.argv[1:]
    ours = (
        "gpuwarden",
        "gpuwarden_agent",
        "gpuwarden_collector",
        "gpuwarden_rules",
        "gpuwarden_importing",
    )
    with atheris.instrument_imports(include=[*ours]):
        from tests.fuzz.targets import TARGETS

        target = TARGETS[name]
        run = target.makes()
    for at, seed in enumerate((*target.seeds, *target.more_seeds())):
        Path(corpus, f"seed-{at}").write_bytes(seed)

    again = [option for option in options if not option.startswith("-")]

    def once(data: bytes) -> None:
        try:
            run(data)
        except Exception as error:
            if not {kind.__name__ for kind in type(error).__mro__} & {*target.refuses}:
                raise

    atheris.Setup(
        [
            sys.argv[0],
            *([] if again else [corpus]),  # files alone are each tried once
            f"-artifact_prefix={findings}/",
            f"-timeout={TIMEOUT_S}",
            f"-rss_limit_mb={MEMORY_MIB}",
            "-max_len=16384",
            "-print_final_stats=1",
            *options,
        ],
        once,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
