"""``make bench``: measures the budgets of the control plane and the agent and prints them beside their bars.

The exit status is 0 whatever the figures are: a busy machine is no failure. ``python -m tests.perf verbs`` runs one
part; those of ``ON_REQUEST`` run only when they are named: they take minutes, and real servers or published traces.
"""

import asyncio
import sys

from tests.perf import (
    answering,
    binding,
    by_class,
    class_upkeep,
    http_client,
    many_classes,
    many_pods,
    memory,
    plan,
    policies,
    preempt,
    published,
    quota,
    rebuild,
    registering,
    siege,
    simulator,
    starting,
    topology,
    usage,
    verbs,
    webhook,
)
from tests.perf.measuring import report
from tests.perf.measuring.report import Row

PARTS = {
    "verbs": verbs.measure,
    "policies": policies.measure,
    "by-class": by_class.measure,
    "quota": quota.measure,
    "preempt": preempt.measure,
    "class-upkeep": lambda: asyncio.run(class_upkeep.measure()),
    "bind": lambda: asyncio.run(binding.measure()),
    "topology": topology.measure,
    "rebuild": rebuild.measure,
    "memory": lambda: asyncio.run(memory.measure()),
    "simulator": simulator.measure,
    "plan": plan.measure,
    "starting": lambda: asyncio.run(starting.measure()),
    "usage": lambda: asyncio.run(usage.measure()),
    "webhook": lambda: asyncio.run(webhook.measure()),
}
ON_REQUEST = {
    "siege": lambda: asyncio.run(siege.measure()),
    "answering": lambda: asyncio.run(answering.measure()),
    "published": published.measure,
    "http-client": http_client.measure,
    "many-pods": lambda: asyncio.run(many_pods.measure()),
    "registering": lambda: asyncio.run(registering.measure()),
    "many-classes": lambda: asyncio.run(many_classes.measure()),
}


def main(wanted: list[str]) -> None:
    known = PARTS | ON_REQUEST
    unknown = [name for name in wanted if name not in known]
    if unknown:
        sys.exit(f"there is no part {unknown[0]!r}; the parts are {', '.join(known)}")
    rows: list[Row] = []
    for name in wanted or PARTS:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        rows += known[name]()
    report.show(rows)


main(sys.argv[1:])
