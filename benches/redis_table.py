"""The table of redis_compare.py: ratios of medians, their range over the rounds, and targets."""

import math
import os
import statistics

from redis_loads import BARE, REFERENCE, ROWS, TOLLGATE, TOLLGATE_OTHER
from servers import PACKAGE, ratio

# The page with the table, that with the headline figures, and what is around them there.
TABLE = os.path.join("docs", "performance.md"), "<!-- table of make bench-redis WRITE=1 -->", "<!-- end of the table -->"
HEADLINE = "README.md", "<!-- figures of make bench-redis WRITE=1 -->", "<!-- end of the figures -->"
# Title, load, figure, and how it is written.
HEADLINES = [
    ("CPU of the service, 64 requests in flight", "uniform", "service", "{:.1f} µs per request"),
    ("CPU of Redis, 64 requests in flight", "uniform", "redis", "{:.1f} µs per request"),
    ("p99 at 2,000 requests a second", "open-2000", "p99", "{:.2f} ms"),
]
# The cell of a side that failed in every round.
FAILED = "failed"


class Ratio:
    """Of the medians of a figure, and of its pairs."""

    def __init__(self, figure, pairs, ours_over):
        of = (lambda theirs, ours: ratio(ours, theirs)) if ours_over else ratio
        by_round = [of(theirs[figure], ours[figure]) for theirs, ours in pairs]
        self.value = of(*(median_of(figure, side) for side in zip(*pairs)))
        self.least, self.most = min(by_round), max(by_round)

    def judged(self, side_of_bound, bound, of=""):
        """The target, and whether it is met; nothing without one."""
        if bound is None:
            return ""
        met = self.value >= bound if side_of_bound == "≥" else self.value <= bound
        return f"{of}{side_of_bound} {bound:g}, {'met' if met else '**missed**'}"

    def __str__(self):
        # A process that used less than a tick of CPU time has no ratio.
        if math.isnan(self.value):
            return ""
        return f"{self.value:.2f} ({self.least:.2f} to {self.most:.2f})"


def table(found, machine):
    """Its lines: the rows whose loads were run."""
    lines = [
        "CPU is in µs per request, service + Redis. The ratio is the CPU of envoyproxy/ratelimit over that of Tollgate. Against the bare tonic",
        "server, which has no Redis, and against Tollgate itself with other rules it is that of Tollgate's process over the other's. Redis and p99",
        f"are Tollgate's over the other's. In parentheses the range over the rounds. {machine}.",
        "",
        "| load | envoyproxy/ratelimit | Tollgate | ratio | Redis | p99 | target |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        if (row.load, row.ours) not in found:
            continue
        pairs = [pair for pair in zip(found[row.load, row.theirs], found[row.load, row.ours]) if all(pair)]
        of_row = cells(row, pairs) if pairs else [*(alone(found[row.load, side]) for side in (row.theirs, row.ours)), "", "", "", "every round failed"]
        lines.append(f"| {row.title} | {' | '.join(of_row)} |")
    return lines


def cells(row, pairs):
    """The cells behind a title, of pairs of figures: the other's and Tollgate's."""
    theirs, ours = ([median_of(figure, side) for figure in ("service", "redis")] for side in zip(*pairs))
    redis = None if row.theirs == BARE else Ratio("redis", pairs, ours_over=True)
    shown = ours if redis else ours[:1]
    is_process = row.theirs in (BARE, TOLLGATE_OTHER)
    cpu = Ratio("service", pairs, ours_over=True) if is_process else Ratio("both", pairs, ours_over=False)
    p99 = Ratio("p99", pairs, ours_over=True) if row.p99_max or row.load.startswith("open") else None
    targets = [
        cpu.judged("≥", row.ratio_min),
        cpu.judged("≤", row.service_max),
        redis.judged("≤", row.redis_max, "Redis ") if redis else "",
        p99.judged("≤", row.p99_max, "p99 ") if p99 else "",
    ]
    return [sum_of(theirs), sum_of(shown), str(cpu), str(redis or ""), str(p99 or ""), "; ".join(filter(None, targets))]


def alone(rounds):
    """The cell of one side of a row without pairs."""
    good = succeeded(rounds)
    return sum_of(median_of(figure, good) for figure in ("service", "redis")) if good else FAILED


def succeeded(rounds):
    return [figures for figures in rounds if figures]


def median_of(figure, rounds):
    return statistics.median(figures.get(figure, 0) for figures in rounds)


def sum_of(parts):
    return " + ".join(f"{part:.1f}" for part in parts if part)


def headlines(found, machine):
    """The lines of the first figures of README."""
    lines = [f"| on {machine} | Tollgate | envoyproxy/ratelimit |", "|---|---|---|"]
    for title, load, figure, form in HEADLINES:
        both = (succeeded(found[load, side]) for side in (TOLLGATE, REFERENCE))
        ours, theirs = (form.format(median_of(figure, good)) if good else FAILED for good in both)
        lines.append(f"| {title} | {ours} | {theirs} |")
    return lines


def write_pages(lines, headlines):
    # Targets are for those who change the service.
    lines = [line.rsplit("|", 2)[0] + "|" if line.startswith("|") else line for line in lines]
    for (page, begin, end), content in (TABLE, lines), (HEADLINE, headlines):
        path = os.path.join(PACKAGE, page)
        with open(path) as file:
            before, rest = file.read().split(begin)
        _, after = rest.split(end)
        with open(path, "w") as file:
            file.write("\n".join([before + begin, *content, end + after]))
