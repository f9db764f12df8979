"""Which victims are chosen, by example; tests/property tries everything."""

import pytest

from fractile.model.disruption import EvictionBudget, LabelRequirement, Protected
from fractile.model.placement import Charge
from fractile.model.units import CardUUID, MiB, Percent, PodUID
from fractile.policy.disruption import violating
from fractile.policy.preemption import Candidate, cost_of, fewest

SIZE = 10


def on(card: str, name: str, memory: int, *, priority: int = 0, started: str = "", violates: bool = False) -> Candidate:
    charge = Charge(CardUUID(card), MiB(memory), Percent(0))
    return Candidate(PodUID(name), priority, started, violates, charges=(charge,))


def chosen(need: int, *candidates: Candidate, cards: int = 1, looks: int = 3000) -> list[str] | None:
    """Who must leave so that so many cards have ``need`` free; a card has 10."""
    held = {charge.card for c in candidates for charge in c.charges}

    def fits(gone: frozenset[PodUID]) -> bool:
        def free(card: str) -> int:
            return SIZE - sum(x.memory for c in candidates if c.uid not in gone for x in c.charges if x.card == card)

        return sum(free(card) >= need for card in held) >= cards

    found = fewest(candidates, fits, cards=cards, looks=looks)
    return None if found is None else sorted(c.uid for c in found)


def test_one_large_pod_leaves_rather_than_two_small_ones() -> None:
    """Keeping the most important as long as it fits would evict the two."""
    small = [on("a", "s1", 1, started="3"), on("a", "s2", 4, started="2")]
    assert chosen(5, *small, on("a", "large", 5, started="1")) == ["large"]


def test_one_card_is_freed_where_the_sum_would_be_taken_from_two() -> None:
    spread = [on("a", "a1", 5), on("b", "b1", 5, started="1"), on("a", "a2", 5), on("b", "b2", 5, started="1")]
    assert chosen(10, *spread) == ["b1", "b2"], "of equal ones those that started last"


def test_a_lower_highest_priority_wins_over_fewer_pods() -> None:
    many = [on("a", f"low-{i}", 5, priority=1) for i in range(2)]
    assert chosen(10, *many, on("b", "high", 10, priority=2)) == ["low-0", "low-1"]


def test_of_equal_priorities_fewer_pods_leave() -> None:
    many = [on("a", f"many-{i}", 2, priority=1) for i in range(5)]
    assert chosen(10, *many, on("b", "one", 10, priority=1)) == ["one"]


def test_a_budget_is_broken_last() -> None:
    protected = on("a", "protected", 10, violates=True)
    assert chosen(10, protected, on("b", "dear", 10, priority=9)) == ["dear"]
    assert chosen(10, protected) == ["protected"]


def test_nobody_leaves_when_there_is_room_or_when_it_does_not_help() -> None:
    assert chosen(3, on("a", "a", 5)) == []
    assert chosen(11, on("a", "a", 5)) is None


def test_a_pod_on_two_cards_frees_both() -> None:
    both = Candidate(PodUID("both"), 0, charges=(on("a", "", 10).charges[0], on("b", "", 10).charges[0]))
    assert chosen(10, both, on("c", "c", 10), on("d", "d", 10), cards=2) == ["both"]


def test_with_too_few_looks_the_answer_is_still_one_that_needs_each_of_its_pods() -> None:
    pods = [on("abcdefgh"[i % 8], f"p{i:02}", 1 + i % 3, priority=i % 4, started=str(i % 5)) for i in range(40)]
    found = chosen(9, *pods, cards=3, looks=1)
    assert found
    assert chosen(9, *(p for p in pods if p.uid not in found), cards=3) == []
    for name in found:
        assert chosen(9, *(p for p in pods if p.uid not in set(found) - {name}), cards=3) != []


def test_what_is_leaving_anyway_costs_nothing_but_its_number() -> None:
    leaving = Candidate(PodUID("x"), 7, violates=True, leaving=True)
    assert cost_of([leaving]) == (0, -(2**31), 0, 1)


# ── budgets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def pod(name: str, **labels: str) -> Protected:
    return Protected(PodUID(name), "default", name, labels)


EQUAL = LabelRequirement("app", "In", frozenset({"web"}))


def broken(pods: list[Protected], budget: EvictionBudget) -> frozenset[PodUID]:
    """The pods that would break the one budget of its namespace."""

    def selecting(one: Protected) -> dict[str, EvictionBudget]:
        return {"b": budget} if one.namespace == budget.namespace and budget.selects(one.labels) else {}

    return violating(pods, selecting)


def test_budgets_are_counted_as_kube_scheduler_does_the_most_important_first() -> None:
    pods = [pod(name, app="web") for name in ("first", "second", "third")]
    assert broken(pods, EvictionBudget("default", (EQUAL,), allowed=1)) == {"second", "third"}
    assert broken(pods, EvictionBudget("other", (EQUAL,), allowed=0)) == set()
    assert broken(pods, EvictionBudget("default", (), allowed=0)) == set(), "an empty selector selects nobody"
    assert broken(pods, EvictionBudget("default", (EQUAL,), allowed=1, leaving=frozenset({"first"}))) == {"third"}


@pytest.mark.parametrize(
    ("requirement", "selected"),
    [
        (LabelRequirement("app", "In", frozenset({"web", "db"})), True),
        (LabelRequirement("app", "In", frozenset({"db"})), False),
        (LabelRequirement("app", "NotIn", frozenset({"db"})), True),
        (LabelRequirement("none", "NotIn", frozenset({"db"})), True),
        (LabelRequirement("app", "Exists"), True),
        (LabelRequirement("none", "Exists"), False),
        (LabelRequirement("none", "DoesNotExist"), True),
        (LabelRequirement("app", "Nonsense"), False),
    ],
)
def test_selectors_mean_what_they_mean_in_kubernetes(requirement: LabelRequirement, selected: bool) -> None:
    found = broken([pod("p", app="web")], EvictionBudget("default", (requirement,), allowed=0))
    assert found == ({"p"} if selected else set())


def test_a_pod_without_labels_is_protected_by_nobody() -> None:
    assert broken([pod("p")], EvictionBudget("default", (LabelRequirement("x", "DoesNotExist"),), allowed=0)) == set()
