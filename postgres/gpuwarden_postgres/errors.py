"""Maps errors to PostgreSQL's error fields: SQLSTATE, message, hint and position. Pure."""

import re
from collections.abc import Mapping

from gpuwarden.query import QueryError, QueryTimeoutError
from gpuwarden_postgres.statements import StatementError
from gpuwarden_postgres.types import ParameterValueError

CANCELLED = "57014"

_STATES = tuple(
    (re.compile(pattern, re.IGNORECASE), state)
    for pattern, state in (
        (r"^only SELECT|EXPLAIN of anything but|^PRAGMA is not", "25006"),
        (r"^only one statement", "42601"),
        (r"^the query is empty", "42601"),
        (r"^(table|relation) .* does not exist|Table with name .* does not exist", "42P01"),
        (r"^Catalog Error: .*(Scalar |Aggregate |Table )?Function", "42883"),
        (r"^Catalog Error: Type with name|type \".*\" does not exist", "42704"),
        (r"unrecognized configuration parameter", "42704"),
        (r"schema .* is not open|schema \".*\" does not exist", "3F000"),
        (r"is not allowed|is not open to queries", "42501"),
        (r"^function \".*\" does not exist", "42883"),
        (r"^function .* needs a constant length", "54000"),
        (r"relation \".*\" does not exist", "42P01"),
        (r"Ambiguous reference|is ambiguous", "42702"),
        (r"Referenced column|column .* not found|does not have a column", "42703"),
        (r"Referenced table .* not found", "42P01"),
        (r"must appear in the GROUP BY", "42803"),
        (r"No function matches|Could not choose a best candidate", "42883"),
        (r"^Binder Error", "42P10"),
        (r"syntax error|^Parser Error|nested too deeply", "42601"),
        (r"^the query has \d+ characters|larger than|more than", "54000"),
        (r"NUL character", "22021"),
        (r"^Conversion Error.*(timestamp|date|time|interval)", "22007"),
        (r"^Conversion Error", "22P02"),
        (r"^Out of Range Error|overflow", "22003"),
        (r"^Invalid Input Error", "22023"),
        (r"needs values? for|parameters are written", "42P02"),
        (r"memory", "53200"),
        (r"ended its process", "57P01"),
        (r"cannot be read now|no query process|is missing or damaged", "58030"),
        (r"^no query could start|queries wait", "53300"),
    )
)
_RAISED = re.compile(r"^Invalid Input Error: (?=(relation|type|schema|function|unrecognized) )")
"""Prefix of errors that `catalog.sql` raises."""


def fields(
    sqlstate: str, message: str, *, hint: str = "", position: int = 0, severity: str = "ERROR"
) -> Mapping[str, str]:
    """Error fields by the protocol's letters. `position`: of a character, from 1; 0: unknown."""
    found = {"S": severity, "V": severity, "C": sqlstate, "M": message}
    if hint:
        found["H"] = hint
    if position:
        found["P"] = str(position)
    return found


def of_error(error: Exception, start: int = 0) -> Mapping[str, str]:
    """Error fields of an error. `start`: position of the statement in the client's text."""
    if isinstance(error, StatementError):
        return fields(error.sqlstate, str(error), hint=error.hint)
    if isinstance(error, ParameterValueError):
        return fields(error.sqlstate, str(error))
    if not isinstance(error, QueryError):
        return fields("XX000", str(error))
    message = _RAISED.sub("", error.reason)
    if isinstance(error, QueryTimeoutError) and not message.startswith("no query"):
        state = CANCELLED
    else:
        state = next((s for pattern, s in _STATES if pattern.search(message)), "XX000")
    position = 0 if error.offset is None else start + error.offset + 1
    return fields(state, message, hint=error.hint or "", position=position)
