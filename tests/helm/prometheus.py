"""Runs promtool on every alert and expression of deploy/prometheus and of the chart. `make test-all` runs it."""

import sys
import tempfile
from pathlib import Path

import yaml

from chart import Failed, of_kind, rendered, run, value_sets
from check import HERE, PROMETHEUS, expressions


def alerts():
    """the alerts of deploy/prometheus are valid, fire when they should, and are silent otherwise"""
    promtool("check", "rules", "tollgate-alerts.yaml", directory=PROMETHEUS)
    promtool("test", "rules", "tollgate-alerts_test.yaml", directory=PROMETHEUS)


def chart_alerts():
    """the alerts of the chart are valid, and select the pods of their release only"""
    (rule,) = of_kind(rendered(*value_sets()["everything"]), "PrometheusRule")
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "rules.yaml").write_text(yaml.safe_dump(rule["spec"]))
        (Path(directory) / "test.yaml").write_text((HERE / "alerts_test.yaml").read_text())
        promtool("check", "rules", "rules.yaml", directory=directory)
        promtool("test", "rules", "test.yaml", directory=directory)


def every_expression():
    """every expression of an alert or of the dashboard is valid PromQL"""
    rules = [{"record": f"expression:{index}", "expr": text} for index, text in enumerate(expressions())]
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}))
        promtool("check", "rules", "rules.yaml", directory=directory)


def promtool(*command, directory):
    good, out, error = run("promtool", *command, cwd=directory)
    if not good:
        raise Failed(f"promtool {' '.join(command)}: {out}{error}")


def main():
    failures = 0
    for check in (alerts, chart_alerts, every_expression):
        try:
            check()
        except Failed as error:
            failures += 1
            print(f"FAILED  {check.__doc__}\n        {str(error).strip()}", flush=True)
        else:
            print(f"ok      {check.__doc__}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
