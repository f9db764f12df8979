"""Which nodes can serve a pod, and why the others cannot."""

import msgspec
import pytest

from fractile.dialects import nvidia
from fractile.dialects.table import parse_pod
from fractile.extender import filter as step
from fractile.extender.filter import BEST, ONE_BY_ONE, filter_nodes
from fractile.ledger.ledger import Ledger
from fractile.model.refusal import Code, Refusal
from fractile.model.request import ContainerRequest, PodRequest, Role
from fractile.model.units import MemoryUnit, PodUID
from fractile.wire.kubernetes.extender import FilterResult
from tests.builders import (
    CARD_MEMORY,
    by_card,
    by_memory,
    card,
    cards,
    cluster,
    container,
    in_use,
    on_card,
    pod,
    request,
)

FULL = CARD_MEMORY


@pytest.fixture
def example() -> Ledger:
    """The three nodes of evidence/gpushare.md#worked-example."""
    ledger = cluster({n: cards(n) for n in ("n1", "n2", "n3")})
    in_use(ledger, "n1", 16276, 12207)
    in_use(ledger, "n2", 12207, 12207)
    in_use(ledger, "n3", 8138, 16276)
    return ledger


def many(count: int, *, used: int = 0, memory: int = FULL) -> Ledger:
    """Nodes n0, n1, ... of one card each."""
    ledger = cluster({f"n{i}": [card(f"n{i}", 0, memory=memory)] for i in range(count)})
    for i in range(count):
        in_use(ledger, f"n{i}", used)
    return ledger


def all_names(ledger: Ledger) -> list[str]:
    return [n for n in ledger.arrays.names if n is not None]


@pytest.mark.parametrize(("policy", "first"), [("binpack", "n149"), ("spread", "n0")])
def test_of_more_nodes_than_needed_the_best_by_the_policy_are_named(policy: str, first: str) -> None:
    ledger = cluster({f"n{i}": [card(f"n{i}", 0)] for i in range(150)})
    for i in range(150):
        in_use(ledger, f"n{i}", 100 * i)
    found = filter_nodes(request(by_memory(100)), all_names(ledger), ledger, policy).node_names
    assert found is not None
    assert len(found) == BEST
    assert found[0] == first
    left_out = {f"n{i}" for i in (range(100, 150) if policy == "spread" else range(50))}
    assert left_out.isdisjoint(found)


def test_n2_is_refused_with_numbers_and_n3_passes(example: Ledger) -> None:
    # N1 lacks 8138 MiB in sum: kube-scheduler's own filter refuses it before it asks.
    assert filter_nodes(request(by_memory(8138)), ["n2", "n3"], example) == FilterResult(
        node_names=["n3"],
        failed={
            "n2": "8138 MiB requested on one card, the most free on one is 4069 MiB "
            "(card 0; 8138 MiB free on 2 cards together)"
        },
    )


def test_n1_would_be_refused_as_well_if_it_were_asked_about(example: Ledger) -> None:
    found = filter_nodes(request(by_memory(8138)), ["n1"], example)
    assert found.node_names == []
    assert found.failed["n1"].endswith("the most free on one is 4069 MiB (card 1; 4069 MiB free on 2 cards together)")


def test_what_a_node_can_never_serve_is_unresolvable(example: Ledger) -> None:
    found = filter_nodes(request(by_memory(20_000)), ["n1", "n2"], example)
    sentence = "20000 MiB requested on one card, the largest card here has 16276 MiB"
    assert found == FilterResult(node_names=[], unresolvable={"n1": sentence, "n2": sentence})


def test_a_node_without_reported_cards_says_so_and_may_be_preempted_on(example: Ledger) -> None:
    found = filter_nodes(request(), ["cpu-only", "n3"], example)
    assert found == FilterResult(
        node_names=["n3"], failed={"cpu-only": "no usable cards reported by the node's fractile agent"}
    )


def test_no_nodes_asked_are_no_nodes_answered(example: Ledger) -> None:
    assert filter_nodes(request(), [], example) == FilterResult(node_names=[])


def test_a_pod_that_asks_for_nothing_of_ours_passes_everywhere(example: Ledger) -> None:
    assert filter_nodes(None, ["n1", "elsewhere"], example) == FilterResult(node_names=["n1", "elsewhere"])


def test_a_malformed_request_is_refused_on_every_node_for_good(example: Ledger) -> None:
    refusal = Refusal(Code.MALFORMED, "container main asks for nonsense")
    found = filter_nodes(refusal, ["n1", "n3"], example)
    assert found == FilterResult(node_names=[], unresolvable=dict.fromkeys(["n1", "n3"], refusal.message))


@pytest.mark.parametrize(
    "containers",
    [
        pytest.param([by_memory(9000)], id="memory"),
        pytest.param([by_card(1)], id="whole card"),
        pytest.param([by_memory(9000, "a"), by_memory(7000, "b")], id="two containers"),
        pytest.param([by_memory(9000, "a", role=Role.INIT), by_memory(5, "b")], id="init container"),
        pytest.param([by_memory(9000, "a"), by_card(1, "b")], id="memory and a card"),
        pytest.param([by_memory(2**70)], id="beyond 64 bits"),
        pytest.param([by_card(2**70)], id="cards beyond 64 bits"),
    ],
)
def test_every_node_asked_about_is_answered_in_one_place(example: Ledger, containers: list[ContainerRequest]) -> None:
    names = ["n1", "n2", "n3", "n4"]
    found = filter_nodes(request(*containers), names, example)
    assert sorted([*(found.node_names or ()), *found.failed, *found.unresolvable]) == names
    assert all(found.failed.values())
    assert all(found.unresolvable.values())


def test_the_order_of_the_question_is_kept_when_few_fit() -> None:
    ledger = many(20)
    names = [f"n{i}" for i in (7, 3, 15)]
    assert filter_nodes(request(), names, ledger).node_names == names


def test_of_many_nodes_that_fit_only_the_fullest_are_named_without_reasons() -> None:
    ledger = many(300)
    fullest = [f"n{i}" for i in range(0, 300, 2)]
    for name in fullest:
        in_use(ledger, name, 4000)
    found = filter_nodes(request(), [*all_names(ledger), "cpu-only"], ledger)
    assert found.node_names is not None
    assert len(found.node_names) == BEST
    assert set(found.node_names) <= set(fullest)
    assert found.failed == found.unresolvable == {}


def test_the_fullest_are_found_among_a_few_of_very_many_nodes() -> None:
    ledger = many(1000)
    in_use(ledger, "n999", 8000)
    in_use(ledger, "n1", 8000)  # fuller as well, but not asked about
    names = [f"n{i}" for i in range(999, 850, -1)]
    found = filter_nodes(request(), names, ledger)
    assert found.node_names is not None
    assert len(found.node_names) == BEST
    assert found.node_names[0] == "n999"
    assert set(found.node_names) <= set(names)


def test_the_fullest_that_are_not_asked_about_do_not_crowd_out_the_others() -> None:
    # kube-scheduler leaves out the nodes without CPU, which are likely the fullest ones.
    ledger = many(1000)
    for i in range(450):
        in_use(ledger, f"n{i}", 8000)
    in_use(ledger, "n999", 4000)
    found = filter_nodes(request(), [f"n{i}" for i in range(450, 1000)], ledger)
    assert found.node_names is not None
    assert len(found.node_names) == BEST
    assert found.node_names[0] == "n999"


def test_a_name_that_is_asked_twice_is_answered_once() -> None:
    ledger = many(150)
    for names in (["n1"] * 120, ["n1", "n2"] * 150):
        answered = filter_nodes(request(), names, ledger).node_names or []
        assert set(answered) == set(names)


def test_only_nodes_that_were_asked_about_are_ever_named() -> None:
    ledger = many(400)
    names = [f"n{i}" for i in range(0, 400, 3)] + [f"other-{i}" for i in range(200)]
    found = filter_nodes(request(), names, ledger)
    assert set(found.node_names or ()) <= set(names)


def test_many_refused_nodes_share_the_sentence_of_the_best_of_them() -> None:
    ledger = many(200, used=FULL - 100)
    ledger.release(PodUID("filler-n77-0"))
    in_use(ledger, "n77", FULL - 5000)
    found = filter_nodes(request(by_memory(8138)), all_names(ledger), ledger)
    assert found.node_names == []
    assert set(found.failed.values()) == {
        "8138 MiB requested on one card, the most free on one is 5000 MiB (card 0; 5000 MiB free on 1 card together); "
        "that is n77, the best of 200 such nodes"
    }
    assert len(found.failed) == 200


def test_a_few_refused_nodes_get_a_sentence_each() -> None:
    ledger = many(ONE_BY_ONE)
    for i in range(ONE_BY_ONE):
        in_use(ledger, f"n{i}", 10_000 + i)
    found = filter_nodes(request(by_memory(8138)), all_names(ledger), ledger)
    assert len(set(found.failed.values())) == ONE_BY_ONE


def test_many_nodes_that_can_never_serve_share_a_sentence_and_stay_out_of_preemption() -> None:
    found = filter_nodes(request(by_memory(20_000)), all_names(ledger := many(200)), ledger)
    assert len(found.unresolvable) == 200
    assert found.failed == {}


def test_a_shared_refusal_never_bars_a_node_from_preemption_that_it_may_help() -> None:
    # The roomiest node lacks a second card for good; the others are merely full.
    asked = request(by_memory(4000, "small"), by_card(1, "large"))
    ledger = cluster({"single": [card("single", 0, memory=40_000)]} | {f"n{i}": cards(f"n{i}") for i in range(100)})
    in_use(ledger, "single", 1)
    for i in range(100):
        in_use(ledger, f"n{i}", 15_000, 15_000)
    found = filter_nodes(asked, all_names(ledger), ledger)
    assert {f"n{i}" for i in range(100)} <= found.failed.keys()


def test_a_pod_whose_binding_is_in_doubt_fits_its_own_node_only(example: Ledger) -> None:
    asked = request(by_memory(8138))
    assert example.assume(asked.uid, on_card(0, 8138, node="n3")) is None
    assert filter_nodes(asked, ["n1", "n2", "n3"], example) == FilterResult(node_names=["n3"])


def test_a_pod_in_doubt_whose_node_is_not_asked_about_is_judged_anew() -> None:
    ledger = many(3)
    asked = request(by_memory(8138))
    assert ledger.assume(asked.uid, on_card(0, 8138, node="n0")) is None
    assert filter_nodes(asked, ["n1", "n2"], ledger).node_names == ["n1", "n2"]


def test_a_thousand_filters_change_nothing(example: Ledger) -> None:
    before = (example.statistics(), [example.node(n) for n in ("n1", "n2", "n3")])
    for i in range(1000):
        filter_nodes(request(by_memory(1 + i * 20), uid=f"u{i}"), ["n1", "n2", "n3", "n4"], example)
    assert (example.statistics(), [example.node(n) for n in ("n1", "n2", "n3")]) == before


def test_very_many_names_and_few_that_need_a_closer_look_are_decided_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod of two containers cannot be judged by sums: each promising node is tried."""
    ledger = cluster({f"n{i}": cards(f"n{i}") for i in range(250)})
    for i in range(250):
        in_use(ledger, f"n{i}", 8000, 8000 if i % 3 else 9000)
    asked: PodRequest = request(by_memory(8000, "a"), by_memory(8000, "b"))
    found = filter_nodes(asked, all_names(ledger), ledger)
    monkeypatch.setattr(step, "BEST", 10_000)
    exact = filter_nodes(asked, all_names(ledger), ledger)
    assert found.node_names is not None
    assert exact.node_names is not None
    assert len(found.node_names) == BEST
    assert set(found.node_names) <= set(exact.node_names)
    assert len(exact.node_names) == 166


def test_a_long_wish_does_not_make_a_long_answer() -> None:
    ledger = many(1000)
    wish = {nvidia.USE_TYPE: "x" * 12_000}
    asked = parse_pod(pod("p", container(limits={nvidia.GPU: "1"}), annotations=wish), MemoryUnit.MiB)
    assert isinstance(asked, PodRequest)
    found = filter_nodes(asked, all_names(ledger), ledger)
    sentences = list({id(s): s for s in found.unresolvable.values()}.values())
    assert len(found.unresolvable) == 1000
    assert len(sentences) == 1, "one text for all of them"
    assert "a card of model " + "x" * 97 + "..., the node has Tesla-V100" in sentences[0]
    assert len(msgspec.json.encode(found)) < 500_000


def test_many_wishes_and_models_are_not_all_named() -> None:
    ledger = cluster({"n1": [card("n1", i, model=f"m{i}" * 60) for i in range(8)]})
    wish = {nvidia.USE_TYPE: ",".join(f"{i}" * 60 for i in range(100, 130)), nvidia.NOUSE_UUID: "a,b"}
    asked = parse_pod(pod("p", container(limits={nvidia.GPU: "1"}), annotations=wish), MemoryUnit.MiB)
    assert isinstance(asked, PodRequest)
    (sentence,) = filter_nodes(asked, ["n1"], ledger).unresolvable.values()
    assert len(sentence) <= 1024
    assert "... and 27 more and not the card a or b, the node has m0m0" in sentence
    assert sentence.endswith("... and 5 more")
