"""`make test-chart E2E=1`: runs the end-to-end tests of PATH, NODE and CLASSES on pods of the chart; prints a table.

All modules share one cluster, as in `make test`. The table shows the reasons of skipped tests.
"""

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as Tree
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = [
    "path",
    "limits",
    "sharing",
    "families",
    "hami",
    "health",
    "topology",
    "recovery",
    "kubelet",
    "usage",
    "allocations",
    "plan",
    "daemonset",
    "classes",
    "class_controllers",
    "devices",
    "webhook",
    "quota",
    "leading",
    "wakeup",
    "preemption",
    "global",
    "policies",
    "why",
]


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        files = [str(*ROOT.glob(f"tests/e2e/*/test_{name}.py")) for name in MODULES]
        argv = [str(ROOT / ".venv" / "bin" / "pytest"), "-q", f"--junitxml={report}", *files, *sys.argv[1:]]
        ended = subprocess.run(argv, cwd=ROOT, env={**os.environ, "FRACTILE_TEST_CHART": "1"}, check=False)
        sys.stdout.write("\n".join(table(Tree.parse(report).getroot())) + "\n")
        return ended.returncode


def table(report: Tree.Element) -> list[str]:
    """Passed, failed and skipped tests per module, with reasons, in the form of docs/operate/install.md."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in MODULES}
    reasons: dict[str, list[str]] = {name: [] for name in MODULES}
    for case in report.iter("testcase"):
        name = case.get("classname", "").rpartition(".test_")[2]
        kinds = {part.tag for part in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        counts.setdefault(name, Counter())[outcome] += 1
        skipped = case.find("skipped")
        if skipped is not None:
            reasons.setdefault(name, []).append(skipped.get("message", "").removeprefix("on the chart: "))
    why = {name: "; ".join(dict.fromkeys(said)) for name, said in reasons.items()}
    rows = [
        f"| {name} | {count['passed']} | {count['failed']} | {count['skipped']} | {why[name]} |"
        for name, count in counts.items()
    ]
    return ["", "| module | passed | failed | left out | why |", "|---|---|---|---|---|", *rows]


if __name__ == "__main__":
    sys.exit(main())
