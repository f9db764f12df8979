"""Requests with many names: answered as those with few, whatever way they are read."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fractile.errors import WireError
from fractile.extender.app import Extender
from fractile.extender.expected import Expected
from fractile.extender.listed import Listed, Lists, columns_of
from fractile.extender.score import rank
from fractile.ledger.ledger import Ledger
from fractile.model.units import MemoryUnit, NodeName
from fractile.watch.waiting_pods import WaitingPods
from fractile.wire.kubernetes import extender as wire
from fractile.wire.kubernetes.extender import HostPriority
from tests.builders import by_card, by_memory, card, cluster, container, in_use, pod, request

NAMES = [f"node-{i}.a-pool-with-a-long-name.example" for i in range(600)]


@pytest.fixture
def ledger() -> Ledger:
    ledger = cluster({n: [card(n, 0, memory=10_000)] for n in NAMES})
    for name in NAMES[::3]:
        in_use(ledger, name, 5000)
    return ledger


def args(names: list[str], encode: Callable[[object], bytes] = msgspec.json.encode) -> wire.ListedArgs:
    return wire.decode_listed(encode({"Pod": {"metadata": {"name": "p"}}, "NodeNames": names}))


def read(ledger: Ledger, names: list[str]) -> Listed:
    """As the second of two requests is read."""
    lists = Lists(ledger.arrays)
    assert lists.names_of(args(names)) == names
    found = lists.names_of(args(names))
    assert isinstance(found, Listed)
    return found


def test_names_are_a_sequence_of_strings_without_being_one(ledger: Ledger) -> None:
    listed = read(ledger, NAMES[::-1])
    assert list(listed) == NAMES[::-1]
    assert (len(listed), listed[1], listed[-2:]) == (600, NAMES[-2], NAMES[1::-1])
    assert NAMES[5] in listed
    assert "stranger" not in listed
    assert NAMES[5] not in read(ledger, [n for n in NAMES if n != NAMES[5]])
    assert (columns_of(listed, ledger.arrays) == ledger.arrays.find_all(NAMES[::-1], 600)).all()


@pytest.mark.parametrize("policy", ["binpack", "spread", "none"])
def test_many_names_are_scored_as_few_are(ledger: Ledger, policy: str) -> None:
    for asked in (request(by_memory(1000)), request(by_card(1))):
        listed = read(ledger, NAMES[::-1])
        ranking, wanted = (rank(asked, names, ledger, policy=policy) for names in (listed, NAMES[::-1]))
        assert (ranking.best, ranking.scores.tolist()) == (wanted.best, wanted.scores.tolist())
        answer = msgspec.json.decode(listed.scored(ranking.scores), type=list[HostPriority])
        assert {p.host: p.score for p in answer} == dict(zip(NAMES[::-1], wanted.scores.tolist(), strict=True))


def test_kube_scheduler_gets_the_same_scores_every_time(ledger: Ledger) -> None:
    """The first request is decoded, the second meets the same nodes."""
    asked = pod("p", container(memory=1000))
    body = msgspec.json.encode({"Pod": asked, "NodeNames": NAMES[::-1]})
    unused: Any = WaitingPods()
    extender = Extender(
        ledger=ledger, binder=unused, expected=Expected(lambda: 0.0), unit=MemoryUnit.MiB, ready=lambda: True
    )
    answers = [msgspec.json.decode(extender.prioritize(body), type=list[HostPriority]) for _ in range(3)]
    scores = [{p.host: p.score for p in answer} for answer in answers]
    assert scores[0] == scores[1] == scores[2]
    assert set(scores[0]) == set(NAMES)
    assert {scores[0][n] for n in NAMES[::3]} != {scores[0][n] for n in NAMES[1::3]}


def test_a_name_that_nobody_knows_leaves_the_list_to_the_decoder(ledger: Ledger) -> None:
    lists = Lists(ledger.arrays)
    for _ in range(3):
        assert lists.names_of(args([*NAMES, "stranger"])) == [*NAMES, "stranger"]
    assert isinstance(lists.names_of(args(NAMES)), Listed)


def test_few_names_are_decoded(ledger: Ledger) -> None:
    lists = Lists(ledger.arrays)
    assert [type(lists.names_of(args(NAMES[:100]))) for _ in range(3)] == [list] * 3


def test_nodes_that_come_and_go_are_followed(ledger: Ledger) -> None:
    lists = Lists(ledger.arrays)
    for _ in range(2):
        lists.names_of(args(NAMES))
    ledger.drop_card(card(NAMES[7], 0).uuid)
    for _ in range(3):
        assert lists.names_of(args(NAMES)) == NAMES
    rest = [n for n in NAMES if n != NAMES[7]]
    assert isinstance(lists.names_of(args(rest)), Listed)
    ledger.put_card(NodeName(NAMES[7]), card(NAMES[7], 0))
    for kind in (list, Listed):
        found = lists.names_of(args(NAMES))
        assert isinstance(found, kind)
        assert list(found) == NAMES


def test_names_that_are_none_are_told_to_who_sent_them(ledger: Ledger) -> None:
    lists = Lists(ledger.arrays)
    for names in ([1] * 10_000, [["a"]] * 10_000, {"a": 1}):
        body = msgspec.json.encode({"Pod": {"metadata": {"name": "p"}}, "NodeNames": names})
        for _ in range(2):
            with pytest.raises(WireError):
                lists.names_of(wire.decode_listed(body))
