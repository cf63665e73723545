"""When alerts fire, in simulated time: promtool evaluates the shipped rules over samples of real replicas, extended to minutes.

A scrape of a replica takes milliseconds, and an alert minutes. So a few scrapes before the fault and a few within it are extended on the grid
of a scrape interval: a counter increases at its measured rate, and a gauge repeats its samples. The alerts see what they would see in a
Prometheus if everything stayed as it was measured.
"""

import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fleet import ROOT, Failed, fetch, run

ALERTS = ROOT / "deploy" / "prometheus" / "tollgate-alerts.yaml"
SCRAPE_S = 15
HEALTHY_S, FAULTY_S = 12 * 60, 10 * 60
FIRING = f'min_over_time(timestamp(ALERTS{{alertstate="firing"}})[{HEALTHY_S + FAULTY_S}s:{SCRAPE_S}s])'


@dataclass(frozen=True)
class Target:
    """What Prometheus scrapes, with its labels."""

    job: str
    instance: str
    port: int
    path: str


@dataclass(frozen=True)
class Scrape:
    """The pages of all targets at a time. They are parsed when nothing is measured any more."""

    at: float
    # None without an answer.
    pages: dict

    def samples(self):
        """By series."""
        found = {}
        for target, page in self.pages.items():
            labels = f'job="{target.job}",instance="{target.instance}"'
            found |= {f"up{{{labels}}}": float(page is not None)} | series_of(page or "", labels)
        return found


@dataclass(frozen=True)
class Firing:
    """An alert, and how long after the begin of the fault it first fired; negative before it."""

    alert: str
    after_s: float


def scrape(targets, at):
    answers = {target: fetch(target.port, target.path) for target in targets}
    return Scrape(at, {target: page if status == 200 else None for target, (status, page) in answers.items()})


def counters_of(page):
    kinds = re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE)
    suffixes = {"counter": ("",), "histogram": ("_bucket", "_count", "_sum"), "summary": ("_count", "_sum")}
    return {name + suffix for name, kind in kinds for suffix in suffixes.get(kind, ())}


def series_of(page, labels):
    """Those that the alerts select, because there are many others."""
    alerts = ALERTS.read_text()
    lines = re.findall(r"^([a-z]\w*)(?:\{(.*)\})? (\S+)$", page, re.MULTILINE)
    return {f"{name}{{{','.join(filter(None, (labels, more)))}}}": float(value) for name, more, value in lines if name in alerts}


def input_series(healthy, faulty):
    """The series of both phases for promtool."""
    pages = [page for each in (healthy[0], faulty[-1]) for page in each.pages.values() if page]
    counters = set().union(*map(counters_of, pages))
    before, within = ([(each.at, each.samples()) for each in phase] for phase in (healthy, faulty))
    names = dict.fromkeys(name for _, samples in [*before, *within] for name in samples)
    of = lambda name, phase: [(at, samples[name]) for at, samples in phase if name in samples]
    return [{"series": name, "values": values_of(name.split("{")[0] in counters, of(name, before), of(name, within))} for name in names]


def values_of(is_counter, before, within):
    grid = extended(before, is_counter, HEALTHY_S // SCRAPE_S)
    if within and is_counter and before and within[0][1] >= before[-1][1]:
        # Continues from the extended value. A restart begins at zero.
        ahead = grid[-1] - before[-1][1]
        within = [(at, value + ahead) for at, value in within]
    values = ["_" if value is None else f"{value:.6f}" for value in grid + extended(within, is_counter, FAULTY_S // SCRAPE_S)]
    if not within:
        values[len(grid)] = "stale"
    return " ".join(values)


def extended(samples, is_counter, steps):
    """Values on the grid of scrapes; None without samples."""
    if not samples:
        return [None] * steps
    values = [value for _, value in samples]
    if not is_counter:
        return [values[step % len(values)] for step in range(steps)]
    (begin, first), (end, last) = samples[0], samples[-1]
    rate = (last - first) / (end - begin) if end > begin else 0
    return [first + rate * SCRAPE_S * step for step in range(steps)]


def firings(healthy, faulty):
    """Every alert that fires, with the time of the first instance."""
    series = input_series(healthy, faulty)
    test = {"expr": FIRING, "eval_time": f"{HEALTHY_S + FAULTY_S}s", "exp_samples": []}
    found = {}
    for name, value in re.findall(r'alertname="(\w+)"[^}]*\} ([\d.E+]+)', promtool(series, {"promql_expr_test": [test]})):
        found[name] = min(found.get(name, float("inf")), float(value))
    return [Firing(name, at - HEALTHY_S) for name, at in sorted(found.items(), key=lambda each: each[1])], series


def text_of(firing, series):
    """Summary and description with their values."""
    test = {"alertname": firing.alert, "eval_time": f"{HEALTHY_S + firing.after_s:.0f}s", "exp_alerts": []}
    got = promtool(series, {"alert_rule_test": [test]})
    return " ".join(" ".join(re.findall(rf'{part}="((?:[^"\\]|\\.)*)"', got)[:1]) for part in ("summary", "description"))


def promtool(series, tests):
    """What it found instead of nothing."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "test.yaml"
        one = {"interval": f"{SCRAPE_S}s", "input_series": series, **tests}
        # JSON is YAML.
        path.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": f"{SCRAPE_S}s", "tests": [one]}))
        good, out, error = run("promtool", "test", "rules", path)
    if not good and "got:" not in out + error:
        raise Failed(f"promtool: {out}{error}")
    return "" if good else out + error
