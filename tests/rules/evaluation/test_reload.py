"""An engine whose folders go wrong continues with the rules it has, and says so once in its log."""

import asyncio
import logging

from gpuwarden_rules.definition.rule_set import load_rule_set
from gpuwarden_rules.evaluation.engine import RuleEngine
from gpuwarden_rules.evaluation.reload import RuleReloader


async def test_each_request_to_reload_is_heard(database, store, clock, tmp_path, caplog) -> None:
    rule_set = load_rule_set([tmp_path])
    engine = RuleEngine(rule_set.rules, database, store, clock)
    reloader = RuleReloader(engine, [tmp_path])
    asked = asyncio.Event()
    (tmp_path / "mine.yaml").write_text("rules: 7")

    async def logged(message: str) -> None:
        async with asyncio.timeout(10):
            while message not in [record.getMessage() for record in caplog.records]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    with caplog.at_level(logging.INFO):
        async with asyncio.TaskGroup() as tasks:
            reloading = tasks.create_task(reloader.reload_whenever(asked))
            asked.set()
            await logged("rules not reloaded; the previous rules stay in force")
            assert engine.rules == list(rule_set.rules)
            (tmp_path / "mine.yaml").unlink()
            (tmp_path / "overrides.yaml").write_text(
                "overrides: [{rules: [gpu_idle_held], enabled: false}]"
            )
            asked.set()
            await logged("rules reloaded")
            reloading.cancel()
    assert len(engine.overrides["gpu_idle_held"]) == 1
