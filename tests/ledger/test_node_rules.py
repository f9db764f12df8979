"""On which nodes a pod may run by labels, taints and cordons, asked of all nodes at once."""

import numpy as np
import pytest

from fractile.ledger.ledger import Ledger
from fractile.ledger.node_rules import NodeRules
from fractile.model.units import NodeName
from fractile.policy.nodes.where import ANYWHERE, NodeExpression, Where
from fractile.wire.kubernetes.manifests import Taint, Toleration
from tests.builders import card, card_uuid, cluster

LARGE = Where(selector=(("size", "large"),))
TAINT = Taint(key="gpu", effect="NoSchedule")
TOLERANT = Where(tolerations=(Toleration(key="gpu", operator="Exists"),))


@pytest.fixture
def ledger() -> Ledger:
    return cluster({n: [card(n)] for n in ("a", "b", "c")})


@pytest.fixture
def rules(ledger: Ledger) -> NodeRules:
    """Node a is large, b is not, and nobody has seen c."""
    found = NodeRules(ledger.arrays)
    found.put("a", {"size": "large"}, [], cordoned=False)
    found.put("b", {"size": "small"}, [], cordoned=False)
    return found


def admitted(rules: NodeRules, ledger: Ledger, where: Where = ANYWHERE) -> set[str]:
    found = rules.admitted(where)
    assert (found.shape, found.dtype) == ((len(ledger.arrays.names),), np.bool_)
    names = (ledger.arrays.names[column] for column in found.nonzero()[0].tolist())
    return {name or "no node" for name in names}


def test_a_node_that_nobody_has_seen_admits_no_pod(ledger: Ledger, rules: NodeRules) -> None:
    assert admitted(rules, ledger) == {"a", "b"}


def test_a_column_without_a_node_admits_no_pod_even_when_a_node_has_an_empty_name(
    ledger: Ledger, rules: NodeRules
) -> None:
    rules.put("", {}, [], cordoned=False)
    assert admitted(rules, ledger) == {"a", "b"}


def test_labels_decide(ledger: Ledger, rules: NodeRules) -> None:
    assert admitted(rules, ledger, LARGE) == {"a"}
    rules.put("b", {"size": "large"}, [], cordoned=False)
    assert admitted(rules, ledger, LARGE) == {"a", "b"}


def test_the_name_of_a_node_decides_where_a_pod_asks_for_it(ledger: Ledger, rules: NodeRules) -> None:
    by_name = Where(
        terms=((NodeExpression("metadata.name", "In", ("a",), field=True),),), tolerations=TOLERANT.tolerations
    )
    assert admitted(rules, ledger, by_name) == {"a"}
    rules.put("a", {}, [TAINT], cordoned=False)
    assert admitted(rules, ledger, by_name) == {"a"}


def test_the_same_report_again_keeps_the_answer(ledger: Ledger, rules: NodeRules) -> None:
    before = rules.admitted(LARGE)
    rules.put("a", {"size": "large"}, [], cordoned=False)
    assert rules.admitted(LARGE) is before


def test_a_taint_keeps_pods_away_that_do_not_tolerate_it(ledger: Ledger, rules: NodeRules) -> None:
    rules.put("a", {}, [TAINT], cordoned=False)
    assert admitted(rules, ledger) == {"b"}
    assert admitted(rules, ledger, TOLERANT) == {"a", "b"}


def test_labels_decide_on_a_node_whose_taint_is_tolerated_too(ledger: Ledger, rules: NodeRules) -> None:
    for name, size in (("a", "large"), ("b", "small")):
        rules.put(name, {"size": size}, [TAINT], cordoned=False)
    assert admitted(rules, ledger, Where(LARGE.selector, (), TOLERANT.tolerations)) == {"a"}


def test_a_cordoned_node_admits_no_pod_until_it_is_opened_again(ledger: Ledger, rules: NodeRules) -> None:
    rules.put("a", {"size": "large"}, [], cordoned=True)
    assert admitted(rules, ledger) == {"b"}
    rules.put("a", {"size": "large"}, [], cordoned=False)
    assert admitted(rules, ledger) == {"a", "b"}


def test_a_node_that_is_gone_admits_no_pod(ledger: Ledger, rules: NodeRules) -> None:
    assert admitted(rules, ledger) == {"a", "b"}
    rules.drop("a")
    rules.drop("never seen")
    assert admitted(rules, ledger) == {"b"}


def test_a_node_without_a_rule_that_goes_keeps_the_answers(ledger: Ledger, rules: NodeRules) -> None:
    before = rules.admitted(LARGE)
    rules.drop("never seen")
    assert rules.admitted(LARGE) is before


def test_answers_follow_cards_that_come_and_go(ledger: Ledger, rules: NodeRules) -> None:
    rules.put("d", {}, [], cordoned=False)
    assert admitted(rules, ledger) == {"a", "b"}
    ledger.put_card(NodeName("d"), card("d"))
    assert admitted(rules, ledger) == {"a", "b", "d"}
    ledger.drop_card(card_uuid("a", 0))
    assert admitted(rules, ledger) == {"b", "d"}
    assert rules.admitted(ANYWHERE) is rules.admitted(ANYWHERE), "kept until the next card"


def test_the_answers_for_the_kinds_of_pods_last_asked_for_are_kept(ledger: Ledger, rules: NodeRules) -> None:
    kinds = [Where(selector=(("kind", str(i)),)) for i in range(65)]
    answers = [rules.admitted(kind) for kind in kinds[:64]]
    assert rules.admitted(kinds[0]) is answers[0], "so that it is the latest"
    rules.admitted(kinds[64])
    assert rules.admitted(kinds[0]) is answers[0]
    assert rules.admitted(kinds[2]) is answers[2]
    assert rules.admitted(kinds[1]) is not answers[1], "the one that was not asked for longest"
