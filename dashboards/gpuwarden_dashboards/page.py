"""The page at `/`: fleet state and firing alerts as HTML, a pure function of what was read.

It reads without JavaScript (a `noscript` refresh reloads it); with it, one small script swaps the
body every five seconds, so that scrolling and opened details stay as they are.
"""

from base64 import b64encode
from hashlib import sha256
from html import escape

from gpuwarden import __version__
from gpuwarden_dashboards import text
from gpuwarden_dashboards.fleet import ALERTS_MAX, NODES_MAX, Fleet, Record

REFRESH_S = 5
SILENT_AFTER_S = 60
"""A node whose last sample is older is silent."""

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5c6670; --line: #d9dee3; --ground: #f6f7f9;
  --card: #fff; --critical: #b3261e; --warning: #9a5b00; --info: #2b5c9e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7eaee; --soft: #9aa4ae; --line: #333a42;
  --ground: #14171b; --card: #1d2127; --critical: #ff8a80; --warning: #ffb74d; --info: #90b8f0; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums; }
main { max-width: 72rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.1rem; margin: 0; } h2 { font-size: 1rem; margin: 2rem 0 .5rem; }
header { display: flex; justify-content: space-between; gap: 1rem; flex-wrap: wrap; }
.soft, th, figcaption { color: var(--soft); font-weight: normal; }
.totals { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .5rem;
  margin: 1rem 0; padding: 0; list-style: none; }
.totals li, .alert, .scroll { background: var(--card); border: 1px solid var(--line);
  border-radius: .4rem; }
.totals li { padding: .6rem .8rem; } .totals b { display: block; font-size: 1.4rem; line-height: 1.3; }
.alert { padding: .5rem .8rem; margin: .4rem 0; border-left: .3rem solid var(--soft); }
.alert summary { cursor: pointer; } .alert p { margin: .3rem 0 0; }
.critical { border-left-color: var(--critical); } .critical .level { color: var(--critical); }
.warning { border-left-color: var(--warning); } .warning .level { color: var(--warning); }
.info { border-left-color: var(--info); } .info .level { color: var(--info); }
.level { font-weight: 600; } .cost { float: right; padding-left: 1rem; font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .35rem .7rem; border-top: 1px solid var(--line);
  white-space: nowrap; vertical-align: top; }
thead th { border-top: 0; } .number { text-align: right; }
.gpus { display: flex; flex-wrap: wrap; gap: .2rem; white-space: normal; min-width: 18rem; }
.gpu { width: 2.6rem; text-align: center; border-radius: .2rem; font-size: .8rem; line-height: 1.7;
  border: 1px solid var(--line); cursor: default; }
.gpu.trouble { outline: 2px solid var(--warning); }
.tag { font-size: .75rem; border: 1px solid var(--line); border-radius: .6rem; padding: 0 .4rem;
  color: var(--soft); }
code, pre { font-family: ui-monospace, monospace; font-size: .85rem; }
pre { overflow-x: auto; background: var(--card); border: 1px solid var(--line); padding: .7rem;
  border-radius: .4rem; }
""" + "\n".join(
    # Eleven shades by utilization: the policy below allows no style attributes.
    f".u{tenth} {{ background: hsl(145 55% 42% / {0.06 + tenth * 0.06:.2f}); }}"
    for tenth in range(11)
)

_SCRIPT = f"""
setInterval(async () => {{
  if (document.hidden) return;
  try {{
    const answer = await fetch(location.pathname);
    if (!answer.ok) throw new Error(answer.status);
    const open = new Set([...document.querySelectorAll("details[open]")].map((d) => d.id));
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const d of fresh.querySelectorAll("details")) d.open = open.has(d.id);
    document.querySelector("main").replaceWith(fresh.querySelector("main"));
    document.title = fresh.title;
  }} catch {{
    document.querySelector("#as-of").textContent = "collector does not answer; figures are old";
  }}
}}, {REFRESH_S * 1000});
"""


def _hash(content: str) -> str:
    return "'sha256-" + b64encode(sha256(content.encode()).digest()).decode() + "'"


SECURITY_POLICY = (
    f"default-src 'none'; style-src {_hash(_STYLE)}; "
    f"script-src {_hash(_SCRIPT)}; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""Content-Security-Policy: names of nodes and jobs come from outside; none of them may run."""


def render(fleet: Fleet) -> str:
    """The whole page."""
    title = f"{fleet.firing} firing · gpuwarden" if fleet.firing else "gpuwarden"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<noscript><meta http-equiv="refresh" content="{REFRESH_S}"></noscript>
<style>{_STYLE}</style>
</head>
<body>
<main>
<header>
<h1>gpuwarden</h1>
<span class="soft" id="as-of">as of {fleet.now:%Y-%m-%d %H:%M:%S} UTC · version {__version__}</span>
</header>
{_totals(fleet)}
{_alerts(fleet)}
{_nodes(fleet)}
{_questions()}
</main>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _totals(fleet: Fleet) -> str:
    totals = fleet.totals
    silent = totals["gpus_known"] - totals["gpus"]
    cells = [
        (f"{totals['gpus']:,}", f"GPUs on {totals['nodes']:,} nodes"),
        (f"{totals['busy']:,}", "busy"),
        (f"{totals['idle']:,}", "idle now"),
    ]
    if totals["unknown"]:
        cells.append((f"{totals['unknown']:,}", "utilization unknown"))
    if silent > 0:
        cells.append((f"{silent:,}", "GPUs silent for a minute"))
    if totals["usd_per_hour"]:
        idle = text.usd(totals["usd_per_hour_idle"] or 0.0)
        cells.append((f"{idle}/h", f"on idle GPUs, of {text.usd(totals['usd_per_hour'])}/h"))
    cells.append((text.power(totals["power_watts"]), "drawn by GPUs"))
    items = "".join(f"<li><b>{escape(big)}</b>{escape(small)}</li>" for big, small in cells)
    return f'<ul class="totals">{items}</ul>'


def _alerts(fleet: Fleet) -> str:
    if not fleet.alerts:
        return "<h2>Alerts</h2>\n<p>Nothing is firing.</p>"
    more = fleet.firing - len(fleet.alerts)
    rest = (
        f"<p class='soft'>and {more:,} more: <code>gpuwarden alerts list</code></p>" if more else ""
    )
    listed = "\n".join(_alert(alert, fleet) for alert in fleet.alerts[:ALERTS_MAX])
    return f"<h2>{fleet.firing:,} firing</h2>\n{listed}\n{rest}"


def _alert(alert: Record, fleet: Fleet) -> str:
    cost = ""
    if alert["usd_per_hour"] is not None:
        so_far = text.usd(alert["usd_so_far"])
        cost = f'<span class="cost">{so_far} so far, {text.usd(alert["usd_per_hour"])}/h</span>'
    gpu = "" if alert["gpu"] is None else f" GPU {alert['gpu']}"
    place = f"{alert['node'] or ''}{gpu}".strip()
    began = text.ago(alert["began_at"], fleet.now)
    key = escape(f"{alert['rule']}-{place}".replace(" ", "-"), quote=True)
    return (
        f'<details class="alert {escape(alert["severity"])}" id="{key}"><summary>{cost}'
        f'<span class="level">{escape(alert["severity"])}</span> {escape(alert["summary"])}'
        f"{_simulated(alert)}</summary>"
        f"<p>{escape(alert['remedy'])}</p>"
        f'<p class="soft">{escape(place)} · rule {escape(alert["rule"])} · began {began}</p>'
        "</details>"
    )


def _simulated(record: Record) -> str:
    return ' <span class="tag">simulated</span>' if record["simulated"] else ""


def _nodes(fleet: Fleet) -> str:
    if not fleet.nodes:
        return "<h2>Nodes</h2>\n<p>No agent has reported yet.</p>"
    rows = "\n".join(_node(node, fleet) for node in fleet.nodes)
    shown = len(fleet.nodes)
    total = fleet.totals["nodes"]
    note = f" (first {NODES_MAX} of {total:,}, alerts first)" if total > shown else ""
    return f"""<h2>Nodes{note}</h2>
<div class="scroll"><table>
<thead><tr><th>node</th><th>GPU utilization %</th><th class="number">power</th>
<th class="number">CPU</th><th class="number">I/O wait</th><th class="number">memory</th>
<th>last sample</th></tr></thead>
<tbody>
{rows}
</tbody></table></div>"""


def _node(node: Record, fleet: Fleet) -> str:
    gpus = fleet.gpus.get(node["node"], [])
    watts = [gpu["power_watts"] for gpu in gpus if gpu["power_watts"] is not None]
    seen = node["last_seen_at"]
    silent = seen is None or (fleet.now - seen).total_seconds() > SILENT_AFTER_S
    heard = f"<b>{text.ago(seen, fleet.now)}</b>" if silent else text.ago(seen, fleet.now)
    tiles = "".join(_tile(gpu) for gpu in gpus) or '<span class="soft">no GPU</span>'
    cells = (
        text.power(sum(watts) if watts else None),
        text.percent(node["cpu_util_percent"]),
        text.percent(node["cpu_iowait_percent"]),
        text.gigabytes(node["memory_used_bytes"]),
    )
    numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
    return (
        f"<tr><td>{escape(node['node'])}{_simulated(node)}</td>"
        f'<td><div class="gpus">{tiles}</div></td>{numbers}<td>{heard}</td></tr>'
    )


def _tile(gpu: Record) -> str:
    util = gpu["util_percent"]
    shown = text.ABSENT if util is None else f"{util:.0f}"
    shade = "" if util is None else f" u{round(util / 10)}"
    rules = gpu["rules"] or []
    says = ", ".join(
        (
            f"GPU {gpu['gpu']} {gpu['model'] or ''}".strip(),
            f"utilization {text.percent(util)}",
            f"memory {text.gigabytes(gpu['memory_used_bytes'])}",
            text.power(gpu["power_watts"]),
            text.celsius(gpu["temperature_celsius"]),
            *rules,
        )
    )
    trouble = " trouble" if rules else ""
    return f'<span class="gpu{shade}{trouble}" title="{escape(says, quote=True)}">{shown}</span>'


def _questions() -> str:
    return """<h2>Ask</h2>
<pre>gpuwarden sql "select node, gpu, util_percent, power_watts from gpus_now order by node, gpu"
gpuwarden sql "select node, avg(util_percent) from gpu_samples group by node"
gpuwarden alerts list</pre>"""
