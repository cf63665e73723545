#!/usr/bin/env python3
"""Causes the faults of an on-call rota on real processes, and measures when the product names each. `make drill` runs it.

Usage: tests/drill/drill.py [FAULT]..., where FAULT is a part of a name; without one, all of them. Needs a built target/debug/tollgate, and promtool.

For each fault: the time until the log, `/ready` and the badge of the console name its cause, the simulated time until its alert fires, and where
its cure is named. Prints a table, and fails if a row is not as wanted. REWRITE=1 writes the table into tests/README.md.
"""

import os
import re
import sys
import time
from dataclasses import dataclass, field

from faults import FAULTS, SLOW_MACHINE, Fault, Nowhere
from fleet import ROOT, Fleet
from simulated import FAULTY_S, Target, firings, scrape, text_of

# Where a fault can be named.
PLACES = {"log": "log", "ready": "`/ready`", "badge": "badge", "top": "`tollgate top`", "alert": "alert"}
WATCHED = ("log", "ready", "badge", "top")
# Wanted.
NAMED_WITHIN_S, ALERT_WITHIN_S = 5, 180
# A fault that is not named within this time is not named.
WATCHED_S = 10
INTERVAL_S = 0.2
SCRAPES_HEALTHY, SCRAPES_FAULTY, SCRAPES_APART_S = 5, 9, 1
PAGE = ROOT / "tests" / "README.md"
BEGIN, END = "<!-- table of the drill, written by tests/drill/drill.py -->", "<!-- end of the table -->"


@dataclass
class Outcome:
    fault: Fault
    # Seconds until each place named the cause; None if it did not.
    named: dict = field(default_factory=dict)
    # What was there at the end, and the places that named the cause before and did not any more.
    texts: dict = field(default_factory=dict)
    forgotten: list = field(default_factory=list)
    alerts: list = field(default_factory=list)
    cure_in: list = field(default_factory=list)
    failures: list = field(default_factory=list)


def run(fault):
    outcome, patterns = Outcome(fault), patterns_of(fault)
    with Fleet(fault.redis_delay_s) as fleet:
        fleet.start(fault.envoy_timeout)
        targets = [Target("tollgate", replica.name, replica.admin, "/metrics") for replica in fleet.replicas]
        targets.append(Target("envoy", "envoy", fleet.envoy_admin, "/stats/prometheus"))
        healthy = scrapes(targets, SCRAPES_HEALTHY)
        for replica in fleet.replicas:
            replica.mark_log()
        before = texts(fleet, fault)
        early = [place for place, pattern in patterns.items() if any(matches(text, pattern, fleet) for text in before[place])]
        outcome.failures += [f"{PLACES[place]} contains `{patterns[place]}` before the fault" for place in early]
        fault.cause(fleet)
        watch(fleet, outcome)
        faulty = scrapes(targets, SCRAPES_FAULTY)
        outcome.texts = texts(fleet, fault)
    outcome.forgotten = [place for place in outcome.named if not all(matches(text, patterns[place], fleet) for text in outcome.texts[place])]
    outcome.alerts, series = firings(healthy, faulty)
    expected = next((firing for firing in outcome.alerts if firing.alert == fault.alert), None)
    outcome.texts["alert"] = [text_of(expected, series)] if expected else []
    outcome.cure_in = [place for place, found in outcome.texts.items() if any(matches(text, fault.cure, fleet) for text in found)]
    judge(outcome)
    return outcome


def patterns_of(fault):
    """The patterns that name it, by place."""
    return {place: pattern for place in WATCHED if isinstance(pattern := getattr(fault, place), str)}


def scrapes(targets, count):
    found = []
    for _ in range(count):
        time.sleep(SCRAPES_APART_S)
        found.append(scrape(targets, time.monotonic()))
    return found


def watch(fleet, outcome):
    """Looks at each place until it names the cause on every affected replica, and until the metrics are those of the fault."""
    fault, begin = outcome.fault, time.monotonic()
    missing = patterns_of(fault)
    seen = set()
    while (after_s := time.monotonic() - begin) < (WATCHED_S if missing else NAMED_WITHIN_S):
        for place, found in texts(fleet, fault).items():
            seen |= {(place, number) for number, text in enumerate(found) if place in missing and matches(text, missing[place], fleet)}
            if place in missing and all((place, number) in seen for number in range(len(found))):
                outcome.named[place] = after_s
                del missing[place]
        time.sleep(INTERVAL_S)


def texts(fleet, fault):
    """The texts of the affected replicas, by place."""
    replicas = [fleet.replicas[number] for number in fault.replicas if not fleet.replicas[number].process.ended()]
    found = {"log": [each.log() for each in replicas], "ready": [each.ready() for each in replicas], "badge": [each.badge() for each in replicas]}
    return found | ({"top": [fleet.top()]} if fault.top else {})


def matches(text, pattern, fleet):
    return re.search(pattern.replace("ADDRESS", re.escape(fleet.redis_address)), text, re.DOTALL) is not None


def judge(outcome):
    fault, failures = outcome.fault, outcome.failures
    for place, pattern in patterns_of(fault).items():
        if outcome.named.get(place, WATCHED_S) > NAMED_WITHIN_S:
            failures.append(f"{PLACES[place]} does not contain `{pattern}` within {NAMED_WITHIN_S} s")
        elif place in outcome.forgotten:
            failures.append(f"{PLACES[place]} does not contain `{pattern}` any more at the end")
    times = {firing.alert: firing.after_s for firing in outcome.alerts if firing.alert not in SLOW_MACHINE}
    if times.get(fault.alert, FAULTY_S) > ALERT_WITHIN_S:
        failures.append(f"{fault.alert} does not fire within {ALERT_WITHIN_S} s")
    failures += [f"{alert} fires before the fault" for alert, after_s in times.items() if after_s < 0]
    unexpected = times.keys() - {fault.alert, *fault.also}
    failures += [f"{alert} fires as well, after {times[alert]:.0f} s" for alert in sorted(unexpected)]
    if not outcome.cure_in:
        failures.append(f"nothing contains `{fault.cure}`, the cure")


def report(outcome):
    """Whether the fault is named as wanted, and the texts."""
    lines = [f"{'FAILED' if outcome.failures else 'ok':8}{outcome.fault.name}", *(f"        {failure}" for failure in outcome.failures)]
    for place, found in outcome.texts.items():
        lines += [f"  {PLACES[place]:16}{' | '.join(text.split(chr(10)))}" for text in dict.fromkeys(found[:1]) if text]
    alerts = ", ".join(f"{firing.alert} {firing.after_s:.0f} s" for firing in outcome.alerts)
    return "\n".join([*lines, f"  {'all alerts':16}{alerts or 'silent'}"])


def table(outcomes):
    rows, reasons = [["fault", "log", "`/ready`", "badge", "alert", "cure in"]], {}
    for outcome in outcomes:
        fault, cells = outcome.fault, []
        for place in ("log", "ready", "badge"):
            pattern = getattr(fault, place)
            if isinstance(pattern, Nowhere):
                reason = pattern.reason.format(top=f"{outcome.named.get('top', WATCHED_S):.1f} s")
                cells.append(f"({reasons.setdefault(reason, len(reasons) + 1)})")
            else:
                cells.append(f"{outcome.named[place]:.1f} s" if place in outcome.named else "-")
        alert = next((f"{firing.after_s:.0f} s" for firing in outcome.alerts if firing.alert == fault.alert), "-")
        cures = ", ".join(PLACES[place] for place in outcome.cure_in)
        rows.append([fault.name, *cells, f"[{fault.alert}](../docs/operations.md#{fault.alert.lower()}) {alert}", cures or "-"])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    notes = [f"({number}) {reason}." for reason, number in reasons.items()]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:], "", *notes])


def write(text):
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def main(names):
    faults = [fault for fault in FAULTS if not names or any(name in fault.name for name in names)]
    if not faults:
        sys.exit(f"no fault has this in its name; the faults are {', '.join(fault.name for fault in FAULTS)}")
    outcomes = []
    for fault in faults:
        outcomes.append(run(fault))
        print(report(outcomes[-1]), flush=True)
    print(f"\n{table(outcomes)}")
    if any(outcome.failures for outcome in outcomes):
        return 1
    if os.environ.get("REWRITE") == "1" and not names:
        write(table(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
