"""Defines the audit: what people and programs changed at a collector, or took out of it."""

from gpuwarden.metrics import Type
from gpuwarden.table import Column, Table

DETAILS_CHARACTERS_MAX = 2_000
"""Longer texts are truncated."""

# fmt: off
AUDIT = Table("audit", "action of a person or program: sign-ins, silences, tokens, notes, reloads, exports; other scopes than admin see those of their own token", ("collector", "ts", "number"), (
    Column("ts", Type.TIMESTAMP, "When it was done or refused, UTC.", required=True),
    Column("collector", Type.STRING, "Identity of the collector's store.", required=True),
    Column("number", Type.INT64, "Counts actions since the collector began.", required=True),
    Column("username", Type.STRING, "Name of who signed in, else comment or id of the token; NULL: none was sent, or a file was changed on the collector's host."),
    Column("token", Type.STRING, "Id of the token, after rotation that of the first one; of who signed in the person's; NULL: none was sent."),
    Column("scope", Type.STRING, "Scope of the token."),
    Column("address", Type.STRING, "Address of the client; NULL: on the collector's host."),
    Column("action", Type.STRING, "What was done, such as silence or token_created.", required=True),
    Column("target", Type.STRING, "What it was done to: a node, a name, an id."),
    Column("outcome", Type.STRING, "done; refused: not allowed, or wrong; failed: by a fault of the collector.", required=True),
    Column("status", Type.INT32, "HTTP status of the answer; NULL: not by HTTP."),
    Column("details", Type.STRING, f"What was made, or why not, mostly JSON; truncated at {DETAILS_CHARACTERS_MAX} characters. No secrets."),
))
# fmt: on
