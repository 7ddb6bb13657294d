"""Opens the page of the fleet, a node, a GPU, a job or a user in a browser: `gpuwarden open`."""

import argparse
import webbrowser
from urllib.parse import quote

from gpuwarden_cli.browser import has_display
from gpuwarden_cli.parser import Commands, add_command, add_url
from gpuwarden_client.http import CallError, CollectorEndpoint, ask

PAGES = ("alerts", "collector", "incidents", "money", "rules", "silences", "sql")
_PLACES = """
SELECT 'gpus' AS page, gpu_uuid AS name FROM gpus
WHERE format('{}/{}', node, gpu) = $name AND replaced_by IS NULL
    OR length($name) >= 4 AND starts_with(lower(gpu_uuid), lower($name))
UNION ALL SELECT 'nodes', node FROM nodes WHERE node = $name
UNION ALL SELECT DISTINCT 'jobs', job FROM gpu_holders_now WHERE job = $name
UNION ALL SELECT DISTINCT 'users', "user" FROM gpu_holders_now WHERE "user" = $name
UNION ALL SELECT 'incidents', id FROM incidents WHERE length($name) >= 4 AND starts_with(id, $name)
"""


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    made = add_command(
        commands, "open", run, "open a page of the collector in the browser",
        "Prints its address where there is no browser, as over SSH.",
    )  # fmt: skip
    made.add_argument(
        "place", metavar="PLACE", nargs="?",
        help=f"a node, NODE/INDEX, a GPU's UUID, a running job, a user, an incident, or {', '.join(PAGES)} (default: the fleet)",
    )  # fmt: skip
    made.add_argument("--print", action="store_true", help="print the address, open nothing")
    add_url(made)


def run(args: argparse.Namespace) -> int:
    """Open the page, or print its address when there is no browser. Raises CallError."""
    address = CollectorEndpoint.of(args.url).url + path_of(args.place, args.url)
    if args.print or not has_display() or not webbrowser.open(address):
        print(address)
    return 0


def path_of(place: str | None, url: str | None) -> str:
    """URL path of the page of a node, GPU, job, user or incident. Raises CallError."""
    if place is None or place in PAGES:
        return f"/{place or ''}"
    found = ask(_PLACES, {"name": place}, url=url).rows
    if not found:
        raise CallError(
            f"there is no node, GPU, running job, user or incident {place};"
            " a GPU is NODE/INDEX or its UUID"
        )
    if len(found) > 1:
        names = ", ".join(f"{page[:-1]} {name}" for page, name in found[:5])
        raise CallError(f"{place} may be {names}: say more of its name")
    page, name = found[0]
    return f"/{page}/{quote(name, safe='')}"
