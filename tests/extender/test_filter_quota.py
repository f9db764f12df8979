"""Which nodes a namespace's quota leaves to a pod, and what it says of the others."""

from msgspec import structs

from fractile.extender.filter import BEST, filter_nodes
from fractile.ledger.ledger import Ledger
from fractile.model.quota import NamespaceQuota, NodePlace, Quota, QuotaLimit, QuotaOwner
from fractile.model.request import ContainerRequest, PodRequest
from fractile.model.units import NodeName, PodUID
from fractile.wire.kubernetes.extender import FilterResult
from tests.builders import by_card, by_memory, card, cluster, on_card, request

M40, P100 = "Tesla M40", "Tesla P100"


def asked(*containers: ContainerRequest, namespace: str = "a") -> PodRequest:
    return structs.replace(request(*containers), namespace=namespace)


def limited(ledger: Ledger, pools: tuple[str, ...] | None = None, **limits: int) -> None:
    """The quota of namespace a; ``every`` limits all models together."""
    of_models = tuple(QuotaLimit("*" if name == "every" else name, percent) for name, percent in limits.items())
    ledger.usage.limit(Quota({"a": NamespaceQuota(pools, of_models if limits else None)}))


def hold(ledger: Ledger, node: str, memory: int, namespace: str = "a") -> None:
    assert ledger.observe(PodUID(f"holder-{node}"), on_card(0, memory, node=node), QuotaOwner(namespace)) is None


def two_models() -> Ledger:
    """n1 has two M40, n2 two P100, n3 one of each."""
    return cluster(
        {
            "n1": [card("n1", i, model=M40) for i in (0, 1)],
            "n2": [card("n2", i, model=P100) for i in (0, 1)],
            "n3": [card("n3", 0, model=M40), card("n3", 1, model=P100)],
        }
    )


def shown(found: FilterResult) -> tuple[list[str], dict[str, str], dict[str, str]]:
    return list(found.node_names or ()), found.failed, found.unresolvable


NODES = ["n1", "n2", "n3"]


def test_nodes_of_a_model_whose_quota_is_used_up_are_refused_for_good() -> None:
    ledger = two_models()
    limited(ledger, M40=100, P100=200)
    hold(ledger, "n1", 16_276)
    assert shown(filter_nodes(asked(by_card()), NODES, ledger)) == (
        ["n2", "n3"],
        {},
        {"n1": "namespace a may hold 1 M40, holds 1, and this pod takes 1"},
    )


def test_what_other_namespaces_hold_does_not_count_and_they_are_not_limited() -> None:
    ledger = two_models()
    limited(ledger, M40=100)
    hold(ledger, "n1", 8138, namespace="b")
    assert filter_nodes(asked(by_memory(100)), NODES, ledger).node_names == ["n1", "n3"]
    assert filter_nodes(asked(by_memory(100), namespace="b"), NODES, ledger).node_names == NODES


def test_a_pod_of_which_nothing_fits_any_more_is_refused_everywhere_with_one_sentence() -> None:
    ledger = two_models()
    limited(ledger, every=50)
    hold(ledger, "n1", 8138)
    said = "namespace a may hold 0.5 cards, holds 0.5, and this pod takes 0.01"
    assert shown(filter_nodes(asked(by_memory(100)), NODES, ledger)) == ([], {}, dict.fromkeys(NODES, said))


def test_more_cards_than_the_quota_has_are_refused_on_nodes_of_several_models_too() -> None:
    ledger = two_models()
    limited(ledger, every=150)
    said = "namespace a may hold 1.5 cards, holds 0, and this pod takes 2"
    assert shown(filter_nodes(asked(by_card(2)), NODES, ledger)) == ([], {}, dict.fromkeys(NODES, said))


def test_a_node_that_mixes_models_may_give_what_no_single_model_may() -> None:
    ledger = two_models()
    limited(ledger, M40=100, P100=100)
    found = filter_nodes(asked(by_card(2)), NODES, ledger)
    assert found.node_names == ["n3"]
    assert found.unresolvable == {
        "n1": "namespace a may hold 1 M40, holds 0, and this pod takes 2",
        "n2": "namespace a may hold 1 P100, holds 0, and this pod takes 2",
    }


def test_a_full_node_is_refused_for_its_cards_and_not_for_the_quota() -> None:
    ledger = two_models()
    limited(ledger, M40=300)
    hold(ledger, "n3", 16_000, namespace="b")
    found = filter_nodes(asked(by_memory(1000)), NODES, ledger)
    assert found.node_names == ["n1"]
    assert found.unresolvable == {
        "n2": f"namespace a may hold M40 only, but this card is {P100}",
        "n3": f"namespace a may hold M40 only, but this card is {P100}",
    }
    assert "MiB" in filter_nodes(asked(by_memory(17_000)), ["n1"], ledger).unresolvable["n1"]


def test_nodes_of_other_pools_are_refused() -> None:
    ledger = two_models()
    ledger.usage.put_place(NodeName("n1"), NodePlace("public"))
    ledger.usage.put_place(NodeName("n2"), NodePlace("wx"))
    limited(ledger, ("public",))
    said = "namespace a may use nodes of pool public only, and this one is in"
    assert shown(filter_nodes(asked(by_memory()), NODES, ledger)) == (
        ["n1"],
        {},
        {"n2": f"{said} pool wx", "n3": f"{said} no pool"},
    )


def test_of_many_nodes_only_those_in_a_pool_and_of_an_open_model_are_named() -> None:
    count = 6 * BEST
    ledger = cluster({f"n{i}": [card(f"n{i}", 0, model=(M40, P100)[i % 2])] for i in range(count)})
    for i in range(0, count, 3):
        ledger.usage.put_place(NodeName(f"n{i}"), NodePlace("public"))
    limited(ledger, ("public",), M40=100)
    found = filter_nodes(asked(by_memory(100)), [f"n{i}" for i in range(count)], ledger)
    assert found.node_names is not None
    assert len(found.node_names) == BEST
    assert all(int(name[1:]) % 6 == 0 for name in found.node_names)
    hold(ledger, "n0", 16_276)
    found = filter_nodes(asked(by_memory(100)), [f"n{i}" for i in range(count)], ledger)
    assert found.node_names == []
    assert len(found.unresolvable) == count


def test_nobody_is_given_a_card_while_nobody_knows_the_quotas() -> None:
    ledger = two_models()
    ledger.usage.limit(Quota(problem="the quotas cannot be read"))
    assert filter_nodes(asked(by_memory()), NODES, ledger).unresolvable == dict.fromkeys(
        NODES, "the quotas cannot be read"
    )
