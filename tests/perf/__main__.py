"""``make bench``: measures the budgets of the control plane and the agent and prints them beside their bars.

The exit status is 0 whatever the figures are: a busy machine is no failure. ``python -m tests.perf verbs`` runs one
part.
"""

import asyncio
import sys

from tests.perf import binding, memory, rebuild, report, starting, topology, usage, verbs
from tests.perf.report import Row

PARTS = {
    "verbs": verbs.measure,
    "bind": lambda: asyncio.run(binding.measure()),
    "topology": topology.measure,
    "rebuild": rebuild.measure,
    "memory": lambda: asyncio.run(memory.measure()),
    "starting": lambda: asyncio.run(starting.measure()),
    "usage": lambda: asyncio.run(usage.measure()),
}


def main(wanted: list[str]) -> None:
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        sys.exit(f"there is no part {unknown[0]!r}; the parts are {', '.join(PARTS)}")
    rows: list[Row] = []
    for name in wanted or PARTS:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        rows += PARTS[name]()
    report.show(rows)


main(sys.argv[1:])
