"""Checks rule files and runs their test cases; the only code of this part that needs DuckDB."""

from gpuwarden_rules.testing.cases import Case, load_cases
from gpuwarden_rules.testing.check import check
from gpuwarden_rules.testing.database import MemoryDatabase
from gpuwarden_rules.testing.runner import CaseResult, run_case, run_file

__all__ = ["Case", "CaseResult", "MemoryDatabase", "check", "load_cases", "run_case", "run_file"]
