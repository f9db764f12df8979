"""filter and prioritize, from bytes to bytes, beside the cost of only decoding and encoding.

After our filter kube-scheduler asks about 100 nodes at most, so prioritize has its bars there. 5,000 names come from
another scheduler, or where our filter was not called.
"""

import random
import time
from collections.abc import Callable
from typing import Any

import msgspec

from fractile.extender.app import Extender
from fractile.extender.expected import Expected
from fractile.ledger.ledger import Ledger
from fractile.model.units import MemoryUnit
from fractile.watch.waiting_pods import WaitingPods
from fractile.wire.kubernetes import extender as wire
from fractile.wire.kubernetes.extender import FilterResult, HostPriority
from tests.perf.measuring import timing
from tests.perf.measuring.report import Row
from tests.perf.measuring.world import NAMES, full_ledger
from tests.wire.golden_files import golden

RATIO = 2.0
P99 = 5.0  # ms


def measure() -> list[Row]:
    extender = extender_of(full_ledger())
    fits, nothing = request_of("8138", NAMES), request_of("16277", NAMES)
    few = request_of("8138", NAMES[:100])
    answered = msgspec.json.decode(extender.filter(fits), type=FilterResult)
    refused = msgspec.json.decode(extender.filter(nothing), type=FilterResult)
    scores = msgspec.json.decode(extender.prioritize(fits), type=list[HostPriority])
    some = msgspec.json.decode(extender.prioritize(few), type=list[HostPriority])
    assert len(answered.node_names or ()) == 100
    assert len(refused.unresolvable) == len(NAMES)
    return [
        *_rows(
            "filter, 5,000 names", lambda: extender.filter(fits), fits, FilterResult(node_names=list(NAMES)), P99, RATIO
        ),
        _strict("filter, 5,000 names", lambda: extender.filter(fits), fits, answered),
        *_rows("filter, 5,000 refused", lambda: extender.filter(nothing), nothing, refused),
        *_rows("prioritize, 100 names", lambda: extender.prioritize(few), few, some, P99),
        *_rows("prioritize, 5,000 names", lambda: extender.prioritize(fits), fits, scores),
    ]


def extender_of(ledger: Ledger) -> Extender:
    """Its verbs over that ledger, bind excepted."""
    unused: Any = WaitingPods()  # bind is not measured here
    return Extender(
        ledger=ledger,
        binder=unused,
        expected=Expected(time.monotonic),
        unit=MemoryUnit.MiB,
        ready=lambda: True,
    )


def request_of(memory: str, names: list[Any]) -> bytes:
    """What kube-scheduler 1.36.3 sent, with other names in an order of their own."""
    body: dict[str, Any] = msgspec.json.decode(golden("extender-args.json"))
    del body["Pod"]["spec"]["initContainers"]
    body["Pod"]["spec"]["containers"][0]["resources"] = {"limits": {"aliyun.com/gpu-mem": memory}}
    body["NodeNames"] = random.Random(2).sample(names, len(names))
    return msgspec.json.encode(body)


def _rows(
    what: str,
    handler: Callable[[], object],
    body: bytes,
    answer: FilterResult | list[HostPriority],
    p99: float | None = None,
    bar: float | None = None,
) -> list[Row]:
    """Median and p99 of the handler, and its ratio to decoding the request and encoding this answer."""

    def only() -> None:
        wire.decode_args(body)
        wire.encode(answer)

    found = timing.in_turn({"handler": handler, "only": only})
    ratio = found["handler"].median / found["only"].median
    told = "all names" if isinstance(answer, FilterResult) and answer.node_names else "the same answer"
    return [
        Row(f"{what}: median", found["handler"].median * 1e3, "ms"),
        Row(f"{what}: p99", found["handler"].p99 * 1e3, "ms", p99),
        Row(f"{what}: ratio", ratio, "x", bar, f"to decoding it and encoding {told}: {_us(found['only'].median)}"),
    ]


def _strict(what: str, handler: Callable[[], object], body: bytes, answer: FilterResult) -> Row:
    def only() -> None:
        wire.decode_args(body)
        wire.encode(answer)

    found = timing.in_turn({"handler": handler, "only": only})
    ratio = found["handler"].median / found["only"].median
    note = f"to decoding it and encoding our answer of 100 names: {_us(found['only'].median)}"
    return Row(f"{what}: ratio, strict", ratio, "x", None, note)


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us"
