"""The picture of a node's interconnect."""

from fractile.cli.text.inspect_topology import text
from fractile.model.card import Card
from fractile.model.units import CardUUID, MiB, NodeName
from tests.builders import card
from tests.cli.test_inspect import Run, kubeconfig, run
from tests.fakes.apiserver import FakeApiServer
from tests.policy.cards.machines import DGX_1, MIXED, PCIE, Machine

NODE = NodeName("n")

__all__ = ["kubeconfig", "run"]  # fixtures


def cards_of(machine: Machine) -> list[Card]:
    return [
        Card(CardUUID(f"GPU-{n}"), n, model, MiB(memory), interconnect=machine.interconnect(n))
        for n, (model, memory) in enumerate(machine.kinds)
    ]


def test_a_tree_of_switches_shows_who_is_near_whom_and_what_is_held() -> None:
    shown = text({NODE: cards_of(PCIE)}, {CardUUID("GPU-1"): "40 % held"})
    assert shown.splitlines()[:8] == [
        "n",
        "  └─ 8 cards, 12.0 GB/s",
        "     ├─ 4 cards, 23.6 GB/s",
        "     │  ├─ 2 cards, 23.9 GB/s",
        "     │  │  ├─ card 0  NVIDIA A10, unused",
        "     │  │  └─ card 1  NVIDIA A10, 40 % held",
        "     │  └─ 2 cards, 23.9 GB/s",
        "     │     ├─ card 2  NVIDIA A10, unused",
    ]


def test_a_mesh_is_one_branch_and_its_table_shows_the_links() -> None:
    lines = text({NODE: cards_of(DGX_1)}, {}).splitlines()
    assert lines[1] == "  └─ 8 cards, 50.0 GB/s"
    assert [line.split() for line in lines[-8:]] == [[str(n), *row.split()] for n, row in enumerate(DGX_1.rows)]


def test_unhealthy_cards_and_nodes_that_say_nothing_are_shown_as_such() -> None:
    assert "its agent does not report" in text({NODE: [card()]}, {})
    sick = [Card(CardUUID("GPU-0"), 0, "A", MiB(1), healthy=False, interconnect=MIXED.interconnect(0))]
    assert "card 0  A, unhealthy" in text({NODE: sick}, {})


async def test_the_command_shows_one_node_or_all(cluster: FakeApiServer, run: Run) -> None:
    code, out, err = await run("-o", "topology")
    assert (code, err) == (0, "")
    assert [line for line in out.splitlines() if line and not line.startswith(" ")] == ["n1", "n2"]
    _, out, _ = await run("n2", "-o", "topology")
    assert out.startswith("n2\n  its agent does not report")
