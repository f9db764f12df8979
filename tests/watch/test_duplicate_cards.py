"""Two objects of one node with the same index: a problem of the report."""

from typing import Any

from fractile.wire.output import inspect
from tests.reports.objects import card
from tests.reports.test_inspect import report


def forged(device: str, *, index: int = 0, created: str = "2026-11-26T12:00:00Z") -> dict[str, Any]:
    made = card("n1", index)
    made["metadata"] |= {"name": device.lower(), "uid": f"uid-{device}", "creationTimestamp": created}
    made["spec"] |= {"deviceID": device}
    return made


def problems(*cards: dict[str, Any]) -> list[inspect.Problem]:
    return list(report([], cards=cards).problems)


def test_two_cards_with_one_index_are_a_problem_of_the_newer_object() -> None:
    (found,) = problems(card("n1", 0), card("n1", 1), forged("GPU-00000000"), card("n2", 0))

    assert (found.kind, found.name, found.uid, found.node) == (
        "ExtendedResource",
        "gpu-00000000",
        "uid-GPU-00000000",
        "n1",
    )
    assert found.reason == (
        "n1 reports 2 cards with index 0 (GPU-00000000, GPU-n1-0); nvidia-smi -L on the node shows which one it has; "
        "delete the object of each other one: kubectl delete extendedresource NAME, where NAME is the UUID in lower "
        "case"
    )


def test_a_card_that_is_not_healthy_is_a_problem_of_its_own_only() -> None:
    (found,) = problems(card("n1", 0, healthy=False), forged("GPU-1"))
    assert "is unhealthy" in found.reason


def test_other_devices_may_have_any_index() -> None:
    hca = forged("hca.n1")
    hca["spec"] = {"nodeName": "n1", "deviceID": "hca.n1", "index": 0, "model": "x", "type": "infiniband"}
    assert problems(card("n1", 0), hca) == []


def test_of_many_cards_eight_are_named() -> None:
    (found,) = problems(*(forged(f"GPU-{i:02}") for i in range(10)))
    assert "10 cards with index 0 (GPU-00, " in found.reason
    assert "GPU-07 and 2 more)" in found.reason
