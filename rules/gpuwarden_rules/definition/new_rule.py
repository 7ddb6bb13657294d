"""Writes a rule and its test for somebody to begin with: both are valid, and the test passes."""

from gpuwarden_rules.definition.language import parse

_RULE = """\
# What each line means: docs/rules.md. Names of columns: docs/tables.md.
rules:
  - name: {name}
    severity: warning
    of: gpu                       # one alert for each GPU; or node, port, process, ...
    window: 5m
    measure: {{coolest: min(memory_temperature_celsius)}}
    when: coolest > 95 C          # begins the alert: it was hotter in all of the window
    until: coolest < 90 C         # ends it; between the two nothing changes
    summary: "GPU {{gpu}} of {{node}} ({{model}}): memory at {{coolest:.0f}} °C or more for {{window:duration}}."
    remedy: Check the air flow of {{node}}.
"""
_TEST = """\
# Made-up samples, and what the rule says of them. 80x600 is 80 six hundred times, one value for each sample.
rules: {name}.yaml
cases:
  - name: hot memory is reported after five minutes, and no longer once it is cool
    tables:
      gpu_samples:
        - {{node: n1, gpu: 0, gpu_uuid: GPU-hot, every: 5s, memory_temperature_celsius: 80x60 99x180 80x120}}
        - {{node: n1, gpu: 1, gpu_uuid: GPU-warm, every: 5s, memory_temperature_celsius: 93x360}}
    expect:
      - {{at: 8m, rule: {name}, quiet: true}}
      - {{at: 14m, rule: {name}, firing: [{{gpu: 0, summary: memory at 99 °C, remedy: air flow}}]}}
      - {{at: 29m, rule: {name}, quiet: true}}
"""


def new_rule(name: str) -> tuple[str, str]:
    """The texts of a rule file and of its test. Raises RuleFileError for a name that a rule cannot have."""
    rule = _RULE.format(name=name)
    parse(rule, f"{name}.yaml")
    return rule, _TEST.format(name=name)
