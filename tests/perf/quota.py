"""What a quota costs the filter: the same requests, from bytes to bytes, with quotas and without, in turn.

5,000 nodes of eight models in four pools. The bar holds for quotas that have room, which is how most pods meet them.
"""

from functools import partial

import msgspec

from fractile.ledger.ledger import Ledger
from fractile.model.quota import NamespaceQuota, NodePlace, Quota, QuotaLimit, QuotaOwner
from fractile.model.units import PodUID
from fractile.wire.kubernetes.extender import FilterResult
from tests.builders import given, piece, placement
from tests.perf import verbs
from tests.perf.measuring import timing
from tests.perf.measuring.report import Row
from tests.perf.measuring.world import CARDS, NAMES, card_of, full_ledger

RATIO = 1.05
NAMESPACE = "default"  # of the pod that kube-scheduler sent
MODELS = ("T4", "P100", "V100", "A10", "A40", "A100", "L40S", "H100")
POOLS = ("public", "training", "inference", "")
HELD = 200  # parts that the namespace holds


def measure() -> list[Row]:
    """Two ledgers alike, one without quotas; each quota is measured beside none."""
    free, bounded = _ledger(), _ledger()
    without, within = verbs.extender_of(free), verbs.extender_of(bounded)
    every = tuple(QuotaLimit(model, 100_000) for model in MODELS)
    rows: list[Row] = []
    for what, own, bar in (
        ("with room", NamespaceQuota(limits=every), RATIO),
        ("with room, one pool of four", NamespaceQuota(("public",), every), RATIO),
        (
            "two of eight models used up",
            NamespaceQuota(limits=(*every[:6], *(QuotaLimit(m, 0) for m in MODELS[6:]))),
            None,
        ),
        ("all used up", NamespaceQuota(limits=(QuotaLimit("*", 0),)), None),
    ):
        bounded.usage.limit(Quota({NAMESPACE: own}))
        for names, count in (("5,000 names", 5000), ("100 names", 100)):
            asked = verbs.request_of("8138", NAMES[:count])
            _check(within.filter(asked), enough=bar is not None and count == 5000)
            found = timing.in_turn({"none": partial(without.filter, asked), "quota": partial(within.filter, asked)})
            none = found["none"].median
            note = f"to the same without a quota: {none * 1e6:.0f} us"
            value = found["quota"].median / none
            # Of 100 names all that fit are named and all others explained: with a quota there is more to explain.
            rows.append(Row(f"filter, {names}, quota {what}: ratio", value, "x", bar if count == 5000 else None, note))
    return rows


def _check(answer: bytes, *, enough: bool) -> None:
    found = msgspec.json.decode(answer, type=FilterResult)
    assert len(found.node_names or ()) == 100 or not enough, "too few nodes fit"


def _ledger() -> Ledger:
    """That of the other benchmarks, with other models and with labels; a namespace holds parts of 200 cards."""
    ledger = full_ledger()
    for n, name in enumerate(NAMES):
        ledger.usage.put_place(name, NodePlace(POOLS[n % len(POOLS)]))
        for slot in range(CARDS):
            model = f"NVIDIA {MODELS[n // 4 % len(MODELS)]} PCIe"
            ledger.put_card(name, msgspec.structs.replace(card_of(n, slot), model=model))
    held = 0
    for n, name in enumerate(NAMES):
        placed = placement(given("main", piece(card_of(n, n % CARDS).uuid, 2034)), node=name)
        held += ledger.observe(PodUID(f"held-{n}"), placed, QuotaOwner(NAMESPACE)) is None
        if held == HELD:
            break
    return ledger
