"""filter for pods that ask by class, beside pods that ask for the same amounts without one: 40,000 cards, 50 classes.

The bar is the median: at most 10 % more. Also what it takes to find the members of a class that nobody has asked for.
"""

import random
import time
from typing import Any

import msgspec

from fractile.extender.app import Extender
from fractile.extender.expected import Expected
from fractile.ledger.classes import ClassIndex
from fractile.ledger.ledger import Ledger
from fractile.model.card import Card
from fractile.model.device_class import DeviceClass, Operator, PropertyRequirement
from fractile.model.properties import shared
from fractile.model.units import MemoryUnit, MiB, Percent, PodUID
from fractile.watch.waiting_pods import WaitingPods
from fractile.wire.kubernetes.extender import FilterResult
from tests.builders import given, piece
from tests.builders import placement as placed
from tests.perf.measuring import timing
from tests.perf.measuring.report import Row
from tests.perf.measuring.world import CARDS, NAMES, SIZES, SLICES, card_of
from tests.wire.golden_files import golden

RATIO = 1.1
P99 = 5.0  # ms, as without classes
MODELS = ("Tesla V100-SXM2-16GB", "Tesla T4", "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3")


def measure() -> list[Row]:
    ledger = _ledger()
    index = ClassIndex(ledger)
    for cls in _classes():
        index.put(cls)
    found = [_seconds(index, cls) for cls in index]
    extender = _extender(ledger, index)
    rows = [Row(f"members of a class: worst of {len(found)}", max(found) * 1e3, "ms", None, "once for each class")]
    for what, without, by_class in (
        ("a part", {"aliyun.com/gpu-mem": "8138"}, _by_class("some")),
        ("a whole card", {"aliyun.com/gpu-count": "1"}, _by_class("whole")),
        ("a part, of half the cards", {"aliyun.com/gpu-mem": "8138"}, _by_class("half")),
        ("too much for any", {"aliyun.com/gpu-mem": "40000"}, _by_class("large")),
    ):
        rows += _rows(extender, what, _request(without), _request(by_class))
    return rows


def _ledger() -> Ledger:
    """The cards of ``world`` with properties of four models, and as many slices."""
    ledger = Ledger(time.monotonic)
    for n, name in enumerate(NAMES):
        for slot in range(CARDS):
            ledger.put_card(name, _card(n, slot))
    rng = random.Random(1)
    count = 0
    while count < SLICES:
        node = rng.randrange(len(NAMES))
        held = given("main", piece(card_of(node, rng.randrange(CARDS)).uuid, rng.choice(SIZES)))
        if ledger.observe(PodUID(f"pod-{count}"), placed(held, node=NAMES[node])) is None:
            count += 1
    return ledger


def _card(node: int, slot: int) -> Card:
    kind = (node + slot // 4) % len(MODELS)
    said = {"architecture": f"a{kind}", "computeCapability": f"{7 + kind}.0", "clock": f"{1000 + 100 * kind}MHz"}
    card = card_of(node, slot)
    return msgspec.structs.replace(card, model=MODELS[kind], properties=shared(said), node=NAMES[node])


def _classes() -> list[DeviceClass]:
    """50, of which four are asked for here."""
    half = PropertyRequirement("clock", Operator.GT, ("1.1GHz",))
    others = (
        DeviceClass(f"class-{n}", requirements=(PropertyRequirement("model", Operator.IN, (MODELS[n % 4],)),))
        for n in range(46)
    )
    return [
        DeviceClass("some", memory=MiB(8138)),
        DeviceClass("whole"),
        DeviceClass("half", requirements=(half,), memory=MiB(8138)),
        DeviceClass("large", memory=MiB(40000), cores=Percent(0)),
        *others,
    ]


def _seconds(index: ClassIndex, cls: DeviceClass) -> float:
    started = time.perf_counter()
    index.members(cls)
    return time.perf_counter() - started


def _extender(ledger: Ledger, index: ClassIndex) -> Extender:
    unused: Any = WaitingPods()  # bind is not measured here
    return Extender(
        ledger=ledger,
        binder=unused,
        expected=Expected(time.monotonic),
        unit=MemoryUnit.MiB,
        ready=lambda: True,
        classes=index,
    )


def _by_class(name: str) -> dict[str, str]:
    return {f"class.fractile.dev/{name}": "1", "fractile.dev/gpu": "1"}


def _request(limits: dict[str, str]) -> bytes:
    body: dict[str, Any] = msgspec.json.decode(golden("extender-args.json"))
    del body["Pod"]["spec"]["initContainers"]
    body["Pod"]["spec"]["containers"][0]["resources"] = {"limits": limits}
    body["NodeNames"] = random.Random(2).sample(NAMES, len(NAMES))
    return msgspec.json.encode(body)


def _rows(extender: Extender, what: str, without: bytes, by_class: bytes) -> list[Row]:
    answers = [msgspec.json.decode(extender.filter(body), type=FilterResult) for body in (without, by_class)]
    assert not any(answer.error for answer in answers), answers
    assert len({len(answer.node_names or ()) for answer in answers}) == 1, "both find as many nodes"
    times = timing.in_turn({"without": lambda: extender.filter(without), "by class": lambda: extender.filter(by_class)})
    ratio = times["by class"].median / times["without"].median
    note = f"{times['by class'].median * 1e3:.2f} ms to {times['without'].median * 1e3:.2f} ms"
    fits = bool(answers[0].node_names)  # else the sentence is longer, and written for 5,000 nodes
    return [
        Row(f"filter by class, {what}: median", ratio, "x", RATIO if fits else None, note),
        Row(f"filter by class, {what}: p99", times["by class"].p99 * 1e3, "ms", P99 if fits else None),
    ]
