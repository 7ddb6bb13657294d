"""Runs the whole product on a real GPU, and compares what it says in SQL with what is known of the work.

    python bench/gpu/product.py --output DIR                          on a machine with an NVIDIA GPU, from a checkout
    python bench/gpu/product.py --output DIR --simulator --short      without one: all except the numbers

`gpuwarden up` stores while workloads of known truth run as jobs of their own: pulses of 100 ms under a burst, a
transformer that reports its tokens, two processes that share the GPU, and memory that is held for nothing. With
`--work-only` it ends there; `--judge DIR` starts `up` on what that left, on any machine, and compares.
"""

import argparse
import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

PARTS = ("", "contract", "agent", "simulator", "collector", "postgres", "prometheus", "rules", "dashboards", "client", "importing", "cli")  # fmt: skip

SCENE_S = 80.0
"""A whole minute of work lies in it, or nearly."""
BURST_HZ, BURST_S = 50.0, 8.0
START_S = 90.0
ROLLED_UP_S = 240.0
"""Minutes are rolled up some minutes after their end."""
TRUTH, DATA = "truth.json", "data.tar.gz"
JOBS = {"pulses": "101", "transformer": "102", "matmul": "103", "small_kernels": "104", "idle_held": "105"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Check:
    """One number of the product beside what is known."""

    what: str
    ours: Any
    truth: Any
    tolerance: str
    holds: bool


class Product:
    """`gpuwarden up` in a folder of its own, and its commands."""

    def __init__(self, folder: Path, node: str, *, simulated: bool) -> None:
        from bench.gpu import children
        from bench.this_host import free_port

        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self.data = folder / "data"
        self.reports = folder / "progress"
        self.reports.mkdir()
        self.reports.chmod(0o1777)
        self._log = (folder / "up.log").open("w+")
        environment = {
            **os.environ,
            "GPUWARDEN_AGENT_PROGRESS_DIR": str(self.reports),
            "GPUWARDEN_AGENT_NODE": node,
        }
        gpus = "1" if simulated else "0"
        self._up = children.start(
            children.gpuwarden("up", "--port", str(port), "--data", str(self.data), "--simulate", gpus, "--history", "0"),
            stdout=self._log, stderr=subprocess.STDOUT, env=environment,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._up.pid

    def rows(self, sql: str, **params: Any) -> list[dict[str, Any]]:
        """Rows of a query."""
        from gpuwarden_client.http import ask

        answer = ask(sql, params, url=self.url)
        return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]

    def wait_for(self, sql: str, seconds: float = START_S, **params: Any) -> list[dict[str, Any]]:
        """The rows of a query, once it has some. Raises RuntimeError."""
        from gpuwarden_client.http import CallError

        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            with contextlib.suppress(CallError):
                if found := self.rows(sql, **params):
                    return found
            if self._up.poll() is not None:
                break
            time.sleep(0.5)
        raise RuntimeError(f"gpuwarden up has no row of {sql!r}: {self.said()}")

    def run(self, *arguments: str) -> str:
        """What a command prints."""
        from bench.gpu import children

        done = subprocess.run(
            children.gpuwarden(*arguments), capture_output=True, text=True, timeout=120, check=False,
            env={**os.environ, "GPUWARDEN_URL": self.url},
        )  # fmt: skip
        return done.stdout + done.stderr if done.returncode not in (0, 1) else done.stdout

    def said(self) -> str:
        """The log of `up`."""
        self._log.flush()
        return Path(self._log.name).read_text()

    def stop(self) -> int:
        """End it as Ctrl-C does; its exit code."""
        if self._up.poll() is None:
            self._up.send_signal(signal.SIGINT)
        return self._up.wait(60)


class Work:
    """The scenes: what ran, when, and what is known of it."""

    def __init__(self, product: Product, *, simulated: bool, short: bool) -> None:
        self.product, self.simulated = product, simulated
        self.seconds = 3.0 if short else SCENE_S
        self.texts: dict[str, str] = {}
        self.truth: dict[str, Any] = {"simulated": simulated}
        (self.gpu,) = product.wait_for("SELECT * FROM gpus_now")
        self.truth["gpu"] = self.gpu
        self._began_s = time.monotonic()

    @property
    def name(self) -> str:
        """As commands name the GPU."""
        return f"{self.gpu['node']}/{self.gpu['gpu']}"

    def run(self) -> None:
        """All scenes; one that fails is noted, as the others are worth having."""
        for scene in (self.pulses, self.transformer, self.shared, self.idle_held, self.whole):
            print(f"[{time.monotonic() - self._began_s:5.0f} s] {scene.__name__}", flush=True)
            try:
                self.truth[scene.__name__] = scene()
            except Exception as error:  # noqa: BLE001
                self.truth[scene.__name__] = {"failed": f"{type(error).__name__}: {error}"[:300]}

    @contextlib.contextmanager
    def working(self, *names: str) -> Iterator[list[Any]]:
        """Workloads, each as a job of its own."""
        from bench.gpu.scenes import Workshop

        shops = []
        try:
            for name in names:
                reports = self.product.reports / f"{JOBS[name]}.0"
                job = {"SLURM_JOB_ID": JOBS[name], "GPUWARDEN_BENCH_REPORTS": str(reports)}
                shops.append(Workshop(pretend=self.simulated, environment=job))
            for shop, name in zip(shops, names, strict=True):
                shop.wait()
                if (why := shop.start(name)) is not None:
                    raise RuntimeError(f"{name}: {why}")
            yield shops
        finally:
            for shop in shops:
                shop.close()

    def pulses(self) -> Mapping[str, Any]:
        """A burst over pulses of 100 ms."""
        seconds = f"{2.0 if self.seconds < BURST_S else BURST_S:g}"
        with self.working("pulses") as (shop,):
            time.sleep(1.0)
            shop.take()
            flags = ["--hz", f"{BURST_HZ:g}", "--seconds", seconds, "--format", "json"]
            flags += ["--backend", "simulator"] if self.simulated else []
            samples = json.loads(self.product.run("agent", "burst", str(self.gpu["gpu"]), *flags))
            pulses = [line["pulse_us"] for line in shop.take() if "pulse_us" in line]
        return {"samples": samples, "pulses_us": pulses, "seconds": float(seconds)}

    def transformer(self) -> Mapping[str, Any]:
        """A job that reports its tokens."""
        with self.working("transformer") as (shop,):
            time.sleep(min(8.0, self.seconds / 3))
            shop.take()
            began_s, began_j = time.time(), self._energy_j()
            time.sleep(self.seconds)
            watts = (self._energy_j() - began_j) / (time.time() - began_s)
            said = shop.take()
            time.sleep(
                12 if self.seconds > BURST_S else 0
            )  # its last report is read each ten seconds
        rates = {name: _median([line[name] for line in said if name in line]) for name in ("tokens_per_second", "flop_per_second")}  # fmt: skip
        return {"began_s": began_s, "ended_s": time.time(), "watts": watts, **rates}

    def shared(self) -> Mapping[str, Any]:
        """Two processes on the GPU."""
        with self.working("matmul", "small_kernels"):
            began_s = time.time()
            time.sleep(self.seconds)
        return {"began_s": began_s, "ended_s": time.time()}

    def idle_held(self) -> Mapping[str, Any]:
        """Memory that is held for nothing; meanwhile what `up` takes of the host is measured."""
        import psutil
        from bench.rest import usages

        with self.working("idle_held"):
            began_s = time.time()
            root = psutil.Process(self.product.pid)
            before = usages(root)
            time.sleep(self.seconds)
            after, over_s = usages(root), time.time() - began_s
        used = sum(after[pid].cpu_s - before[pid].cpu_s for pid in after.keys() & before.keys())
        return {
            "began_s": began_s, "ended_s": time.time(), "up_percent_of_a_core": round(100 * used / over_s, 1),
            "up_pss_mib": round(sum(one.pss_bytes for one in after.values()) / 2**20),
        }  # fmt: skip

    def whole(self) -> Mapping[str, Any]:
        """What was stored over all."""
        for command in (("agent", "doctor"), ("gpus", "list"), ("why", self.name)):
            self.texts[f"gpuwarden {' '.join(command)}"] = self.product.run(*command)
        tables = ("gpu_samples", "gpu_detail_samples", "gpu_health_samples", "process_samples", "host_samples", "progress_samples")  # fmt: skip
        counts = {table: self.product.rows(f"SELECT count(*) AS n FROM {table}")[0]["n"] for table in tables}  # fmt: skip
        events = self.product.rows("SELECT kind, severity, message FROM events ORDER BY ts")
        return {"rows": counts, "events": events}

    def _energy_j(self) -> float:
        if self.simulated:
            return 0.0
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000


class Judge:
    """Compares what the product says about the scenes with what is known."""

    def __init__(self, product: Product, truth: Mapping[str, Any]) -> None:
        self.product, self.truth = product, truth
        self.gpu = truth["gpu"]
        self.checks: list[Check] = []
        self.texts: dict[str, str] = {}
        self.figures: dict[str, Any] = {}

    def run(self) -> None:
        """All comparisons, once the minutes of the last scene are counted."""
        until = datetime.fromtimestamp(self.truth["idle_held"]["ended_s"], UTC)
        self.product.wait_for(
            "SELECT 1 FROM gpu_1m WHERE node = $node AND ts >= $until::TIMESTAMP",
            seconds=ROLLED_UP_S,
            node=self.gpu["node"],
            until=f"{until:%Y-%m-%d %H:%M:00}",
        )
        time.sleep(20)  # the kept rows of `waste` are older than these minutes
        for compare in (self.pulses, self.transformer, self.shared, self.idle_held, self.whole):
            try:
                compare(self.truth[compare.__name__])
            except Exception as error:  # noqa: BLE001  # the others are worth having
                self.add(compare.__name__, f"{type(error).__name__}: {error}"[:300], "no error", "")

    def add(self, what: str, ours: Any, truth: Any, tolerance: str, *, holds: bool = False) -> None:
        """Note a comparison."""
        self.checks.append(Check(what, ours, truth, tolerance, holds))

    def near(self, what: str, ours: Any, truth: Any, percent: float) -> None:
        """Compare within some percent of the truth."""
        holds = ours is not None and bool(truth) and abs(ours - truth) <= percent / 100 * abs(truth)
        self.add(what, ours, truth, f"{percent:g} %", holds=holds)

    def pulses(self, known: Mapping[str, Any]) -> None:
        """Each pulse is seen, where a second's mean sees half the load."""
        found: dict[tuple[str, str], list[tuple[int, float]]] = {}
        for row in known["samples"]:
            found.setdefault((row["metric"], row["source"]), []).append(
                (row["at_us"], row["value"])
            )
        self.figures["samples of the burst"] = {" ".join(name): len(s) for name, s in found.items()}
        power = found.get(("power_watts", "buffer")) or found["power_watts", "polled"]
        self.add("samples of power a second", len(power) / known["seconds"], "10", "or more", holds=len(power) >= 10 * known["seconds"])  # fmt: skip
        if self.truth["simulated"]:
            return
        counted = edges(power)
        began, ended = power[0][0], power[-1][0]
        begun = [pulse[0] for pulse in known["pulses_us"] if began <= pulse[0] <= ended]
        self.add("pulses seen in power", len(counted), len(begun), "1", holds=abs(len(counted) - len(begun)) <= 1)  # fmt: skip
        periods = [[b - a for a, b in itertools.pairwise(several)] for several in (counted, begun)]
        self.near("ms from pulse to pulse", *(_median(several) / 1000 for several in periods), 5)
        lags = [edge - max(at for at in begun if at <= edge) for edge in counted if edge >= begun[0]]  # fmt: skip
        self.figures["ms from the begin of a pulse to its power"] = _median(lags) / 1000

    def transformer(self, known: Mapping[str, Any]) -> None:
        """Tokens, joules and dollars of the job, and its place under the roof."""
        self.texts["gpuwarden report job"] = self.product.run("report", "job", JOBS["transformer"])
        if self.truth["simulated"]:
            return
        report = json.loads(self.product.run("report", "job", JOBS["transformer"], "--format", "json"))  # fmt: skip
        (tokens,) = [one for one in report["progress"] if one["name"] == "tokens"]
        rate, watts, price = known["tokens_per_second"], known["watts"], self.gpu["usd_per_hour"]
        self.near("tokens a second of the job", tokens["per_second"], rate, 3)
        self.near("W while it ran", tokens["watts"], watts, 5)
        self.near("J a token", tokens["joules_each"], watts / rate, 5)
        self.near("$ a million tokens", 1e6 * tokens["usd_each"], 1e6 * price / 3600 / rate, 3)
        (line,) = report["bounds"]
        at_most, tflops = line["tflops_at_most"], known["flop_per_second"] / 1e12
        self.add("TFLOPS at most", at_most, tflops, "not below", holds=at_most >= 0.97 * tflops)
        self.add("bound of the job", line["bound"], "compute", "", holds=line["bound"] == "compute")

    def shared(self, known: Mapping[str, Any]) -> None:
        """The time of a GPU is divided between the jobs of its processes, by what each used of the SMs."""
        jobs = (JOBS["matmul"], JOBS["small_kernels"])
        held = self.product.rows(
            "SELECT job, coalesce(split_by, 'one') AS split_by, sum(gpu_hours) * 3600 AS s, sum(usd) AS usd FROM waste"
            " WHERE gpu_uuid = $gpu GROUP BY job, 2 ORDER BY ALL",
            gpu=self.gpu["gpu_uuid"],
        )
        used = self.product.rows(
            "SELECT slurm_job_id AS job, avg(sm_util_percent) AS sm FROM process_samples WHERE epoch(ts) BETWEEN $b AND $e"
            " AND gpu_uuid = $gpu GROUP BY ALL ORDER BY ALL",
            b=known["began_s"], e=known["ended_s"], gpu=self.gpu["gpu_uuid"],
        )  # fmt: skip
        self.figures |= {"waste by job": held, "SM utilization of the shared GPU's jobs": used}
        if self.truth["simulated"]:
            return
        # Of a minute in which one job followed another the time is divided, too.
        split = {row["job"]: row["s"] for row in held if row["split_by"] == "sm" and row["job"] in jobs}  # fmt: skip
        sms = {row["job"]: row["sm"] for row in used if row["job"] in jobs}
        self.add("jobs whose time is divided by SM utilization", sorted(split), sorted(jobs), "equal", holds=set(split) == set(jobs))  # fmt: skip
        self.near("share of the first", split[jobs[0]] / sum(split.values()), sms[jobs[0]] / sum(sms.values()), 5)  # fmt: skip
        self.near("s of both", sum(split.values()), known["ended_s"] - known["began_s"], 15)

    def idle_held(self, known: Mapping[str, Any]) -> None:
        """Memory that is held for nothing costs what the GPU costs."""
        rows = self.product.rows(
            "SELECT label, sum(gpu_hours) * 3600 AS s, sum(usd) AS usd, sum(energy_kwh) AS kwh FROM waste"
            " WHERE job = $job GROUP BY ALL",
            job=JOBS["idle_held"],
        )
        if self.truth["simulated"]:
            return
        found = {row["label"]: row for row in rows}
        idle, held_s = found["idle_held"], known["ended_s"] - known["began_s"]
        # A minute belongs to who held the GPU in it, and the last may not be counted yet.
        self.add("s idle and held", idle["s"], held_s, "a minute", holds=abs(idle["s"] - held_s) <= 60)  # fmt: skip
        self.near("$ of them", idle["usd"], idle["s"] / 3600 * self.gpu["usd_per_hour"], 0.1)

    def whole(self, known: Mapping[str, Any]) -> None:
        """Every sample that was due is there."""
        (found,) = self.product.rows(
            "SELECT sum(samples) AS samples, sum(expected) AS expected, count(*) AS minutes FROM gpu_1m WHERE gpu_uuid = $gpu",
            gpu=self.gpu["gpu_uuid"],
        )
        self.near("samples in minutes", found["samples"], found["expected"], 2)
        self.figures |= {"minutes": found["minutes"], **known}


def edges(samples: Sequence[tuple[int, float]]) -> list[int]:
    """Instants at which the value rises above the middle of its range, after it was below a third."""
    if not samples:
        return []
    values = sorted(value for _, value in samples)
    low, high = values[len(values) // 20], values[-1 - len(values) // 20]
    found, is_above = [], samples[0][1] > (low + high) / 2
    for at_us, value in samples:
        if not is_above and value > (low + high) / 2:
            found.append(at_us)
            is_above = True
        elif value < low + (high - low) / 3:
            is_above = False
    return found


def _median(values: Sequence[float]) -> float:
    return float(statistics.median_high(values)) if values else 0.0


def summary(judge: Judge, texts: Mapping[str, str]) -> str:
    """The result as Markdown."""
    from bench.gpu.evidence import table

    head = ("", "what", "ours", "known", "within")
    rows = [("ok" if c.holds else "**no**", c.what, c.ours, c.truth, c.tolerance) for c in judge.checks]  # fmt: skip
    parts = [f"# The product on {judge.gpu['model']}", table(head, rows)]
    parts.append("```json\n" + json.dumps(judge.figures, indent=1, default=str) + "\n```")
    parts += [f"## {name}\n\n```\n{text.rstrip()}\n```" for name, text in texts.items()]
    return "\n\n".join(parts) + "\n"


def work(output: Path, *, simulated: bool, short: bool) -> None:
    """Run the scenes, and leave in `output` what is known of them, what was printed, and the product's data."""
    with tempfile.TemporaryDirectory(prefix="gpuwarden-product-") as folder:
        product = Product(Path(folder), "n1", simulated=simulated)
        try:
            scenes = Work(product, simulated=simulated, short=short)
            scenes.run()
        finally:
            code = product.stop()
        scenes.texts["gpuwarden up"] = product.said()
        scenes.truth["exit_code"] = code
        (output / TRUTH).write_text(
            json.dumps({**scenes.truth, "texts": scenes.texts}, default=str)
        )
        with tarfile.open(output / DATA, "w:gz") as tar:
            tar.add(product.data, "data")


def judge(output: Path) -> int:
    """Compare what `work` left; 0 if every check holds."""
    truth = json.loads((output / TRUTH).read_text())
    with tempfile.TemporaryDirectory(prefix="gpuwarden-product-") as folder:
        with tarfile.open(output / DATA) as tar:
            tar.extractall(folder, filter="data")
        product = Product(Path(folder), "judge", simulated=False)
        try:
            product.wait_for("SELECT 1 FROM nodes")
            found = Judge(product, truth)
            found.run()
        finally:
            product.stop()
    found.add("exit code of up", truth["exit_code"], 0, "equal", holds=truth["exit_code"] == 0)
    text = summary(found, truth["texts"] | found.texts)
    (output / "product.md").write_text(text)
    document = {"gpu": truth["gpu"], "checks": [asdict(one) for one in found.checks], "figures": found.figures}  # fmt: skip
    (output / "product.json").write_text(json.dumps(document, indent=1, default=str))
    print(text, flush=True)
    return 0 if all(one.holds for one in found.checks) else 1


def run(arguments: Sequence[str]) -> int:
    """Work, judge, or both."""
    parser = argparse.ArgumentParser(description="The product on a real GPU; see README.md.")
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--output", type=Path, metavar="DIR", help="where files go")
    chosen.add_argument("--judge", type=Path, metavar="DIR", help="compare what --work-only left there")  # fmt: skip
    parser.add_argument("--work-only", action="store_true", help="do not compare")
    parser.add_argument("--simulator", action="store_true", help="measure no GPU, try the code")
    parser.add_argument("--short", action="store_true", help="three seconds of everything")
    args = parser.parse_args(arguments)
    if args.output is not None:
        args.output.mkdir(parents=True, exist_ok=True)
        work(args.output, simulated=args.simulator, short=args.short)
        if args.work_only:
            return 0
    return judge(args.output or args.judge)


if __name__ == "__main__":
    from run import put_on_path  # beside this file

    put_on_path(PARTS)
    sys.exit(run(sys.argv[1:]))
