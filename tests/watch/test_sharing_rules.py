"""Sharing rules from a file, while the program runs."""

import logging
from pathlib import Path

import pytest

from fractile.errors import SetupError, WireError
from fractile.extender.filter import filter_nodes
from fractile.kube.reflector import Gone
from fractile.ledger.ledger import Ledger
from fractile.model.refusal import Code, Refusal
from fractile.model.units import NodeName, PodUID
from fractile.policy.cards.plan import plan
from fractile.watch.sharing_rules import SharingRules
from fractile.wire.kubernetes.objects import Node, ObjectMeta
from tests.builders import by_card, by_memory, cards, cluster, given, on_card, piece, placement, request

N1 = NodeName("n1")
FOUR = "version: 1\ndefault: {maxSlices: 2, fractions: [1/4, 1/2]}\n"


class World:
    def __init__(self, path: Path, text: str) -> None:
        self.file = path / "sharing.yaml"
        self.file.write_text(text)
        self.ledger: Ledger = cluster({"n1": cards("n1", 1), "n2": cards("n2", 1)})
        self.freed: list[str] = []
        self.rules = SharingRules(self.file, ledger=self.ledger, freed=self.freed.append)

    def verdict(self, memory: int, node: str = "n1") -> str:
        state = self.ledger.node(node)
        assert state is not None
        found = plan(request(by_memory(memory)), state)
        return found.message if isinstance(found, Refusal) else "fits"

    def hold(self, *memory: int) -> None:
        for n, amount in enumerate(memory):
            assert self.ledger.observe(PodUID(f"held-{n}"), on_card(0, amount)) is None


def node(name: str, pool: str | None) -> Node:
    return Node(metadata=ObjectMeta(name=name, labels={"fractile.dev/pool": pool} if pool else None))


def test_a_pod_of_another_size_is_refused_with_the_sizes_there_are(tmp_path: Path) -> None:
    world = World(tmp_path, FOUR)
    assert world.verdict(8138) == "fits"
    assert world.verdict(9000) == (
        "9000 MiB requested, but cards here are cut only in 1/4 (4069 MiB), 1/2 (8138 MiB), with cores up to the same "
        "part"
    )
    state = world.ledger.node("n1")
    assert state is not None
    whole = plan(request(by_card()), state)
    assert isinstance(whole, Refusal)
    assert whole.code is Code.TOO_LARGE
    assert whole.message.startswith("a whole card requested, but cards here are cut only in 1/4")


def test_a_card_takes_no_more_slices_than_its_rule_says_and_the_reason_is_told(tmp_path: Path) -> None:
    world = World(tmp_path, FOUR)
    world.hold(4069, 4069)
    assert world.verdict(4069) == "the cards that have room take no more slices (card 0: 2 of 2)"
    world.ledger.release(PodUID("held-0"))
    assert world.verdict(4069) == "fits"


def test_the_filter_refuses_full_cards_for_now_and_wrong_sizes_for_good(tmp_path: Path) -> None:
    world = World(tmp_path, FOUR)
    world.hold(4069, 4069)
    names = ["n1", "n2"]
    found = filter_nodes(request(by_memory(4069)), names, world.ledger)
    assert found.node_names == ["n2"]
    assert list(found.failed) == ["n1"]
    assert filter_nodes(request(by_memory(9000)), names, world.ledger).unresolvable.keys() == {*names}


def test_bind_asks_the_rules_again_and_running_pods_keep_what_they_have(tmp_path: Path) -> None:
    world = World(tmp_path, FOUR)
    wrong = world.ledger.assume(PodUID("a"), placement(given("main", piece("GPU-n1-0", 9000))))
    assert wrong is not None
    assert wrong.message == "card 0 may not be cut into 9000 MiB"
    world.hold(4069, 4069, 4069)  # as after a restart with other rules: charged all the same
    full = world.ledger.assume(PodUID("a"), on_card(0, 4069))
    assert full is not None
    assert full.message == "card 0 is already cut into 2"
    assert world.ledger.audit() == []


def test_kubelets_other_choice_is_not_followed_to_a_card_that_is_full(tmp_path: Path) -> None:
    world = World(tmp_path, "version: 1\n")
    world.ledger = cluster({"n1": cards("n1", 2)})
    world.rules = SharingRules(world.file, ledger=world.ledger, freed=world.freed.append)
    world.hold(4069)
    assert world.ledger.assume(PodUID("a"), on_card(1, 4069)) is None
    world.file.write_text("version: 1\ndefault: {maxSlices: 1}\n")
    world.rules.look()
    refused = world.ledger.move(PodUID("a"), on_card(0, 4069))
    assert refused is not None
    entry = world.ledger.entry(PodUID("a"))
    assert entry is not None
    assert entry.placement == on_card(1, 4069)


def test_a_changed_file_holds_at_once_and_waiting_pods_are_woken(tmp_path: Path) -> None:
    world = World(tmp_path, FOUR)
    world.rules.look()
    assert world.freed == []
    world.file.write_text("version: 1\n")
    world.rules.look()
    assert world.freed == ["n1", "n2"]
    assert world.verdict(9000) == "fits"


def test_a_wrong_file_is_told_once_and_the_rules_stay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = World(tmp_path, FOUR)
    for text in ("version: 1\ndefault: {maxSlices: x}\n", None):
        if text is None:
            world.file.unlink()
        else:
            world.file.write_text(text)
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            world.rules.look()
            world.rules.look()
        assert len(caplog.records) == 1
        assert world.verdict(9000) != "fits"


def test_a_wrong_file_stops_the_program_at_its_start(tmp_path: Path) -> None:
    with pytest.raises(WireError, match="line 2"):
        World(tmp_path, "version: 1\nmodel: {}\n")
    with pytest.raises(SetupError, match="cannot be read"):
        SharingRules(tmp_path / "none", ledger=cluster({}), freed=lambda node: None)


def test_a_nodes_pool_decides_as_soon_as_its_label_is_seen(tmp_path: Path) -> None:
    world = World(tmp_path, "version: 1\npools:\n  inference: {fractions: [1/4]}\n")
    assert world.verdict(8138) == "fits"
    world.rules.changed(node("n1", "inference"))
    assert world.freed == ["n1"]
    assert world.verdict(8138) != "fits"
    assert world.verdict(8138, "n2") == "fits"
    world.rules.changed(node("n1", "inference"))
    world.rules.changed(node("n2", None))
    assert world.freed == ["n1"]
    world.rules.gone(Gone("", "n1", "uid"))
    assert world.verdict(8138) == "fits"


def test_a_card_that_is_full_is_full_for_the_filter_of_many_nodes_too(tmp_path: Path) -> None:
    world = World(tmp_path, FOUR)
    arrays = world.ledger.arrays
    world.hold(4069, 4069)
    assert arrays.most_free[arrays.find("n1")] == 0
    world.file.write_text("version: 1\n")
    world.rules.look()
    assert arrays.most_free[arrays.find("n1")] == 8138
    assert world.ledger.audit() == []
