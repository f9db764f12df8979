"""Memory that processes of a deleted pod still hold: commands count it as the control plane does and name the pod."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fractile.kube import paths
from fractile.main.cli import main
from tests.fakes.apiserver import FakeApiServer, Fault
from tests.reports.objects import MEMORY, card, container, placed, pod
from tests.reports.why.why_cluster import machine, waiting

Run = Callable[..., Awaitable[str]]
HELD, LIVING = 10_000, 1024
OLD = {"namespace": "team-a", "pod": "old", "container": "main", "memory": f"{HELD}Mi", "cores": 20}
ON = {"namespace": "default", "pod": "on", "container": "main", "memory": f"{LIVING}Mi"}
TAKEN = (
    "counted as taken: card 0 of n1: 10000 MiB by (deleted) team-a/old; it is free when the processes of that pod have "
    "ended"
)


def status(bound: list[dict[str, Any]], **departed: Any) -> dict[str, Any]:
    used = {"memory": f"{HELD + LIVING}Mi", "cores": 20, "slices": 2}
    gone = {"memory": f"{HELD}Mi", "cores": 20, "slices": 1} | departed
    return {"phase": "PartlyBound", "boundTo": bound, "used": used, "departed": gone}


def fill(server: FakeApiServer, said: dict[str, Any]) -> None:
    """A node with a card, a pod that runs there, and one that would fit if the card held nothing else."""
    server.create(paths.nodes(), machine("n1"))
    server.create(paths.extended_resources(), card("n1", 0) | {"status": said})
    held = placed("n1", main=(0, LIVING))
    server.create(paths.pods("default"), pod("on", container("main", LIVING), on="n1", placed=held))
    server.create(paths.pods("default"), waiting("large", container("main", MEMORY - HELD)))


@pytest.fixture
def run(server: FakeApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")

    async def run(*args: str) -> str:
        with pytest.raises(SystemExit) as end:
            await asyncio.to_thread(main, [*args, "--kubeconfig", str(kubeconfig)])
        captured = capsys.readouterr()
        assert not end.value.code, captured.err
        return captured.out

    return run


@pytest.fixture
def refused(server: FakeApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")

    async def refused(*args: str) -> str:
        with pytest.raises(SystemExit) as end:
            await asyncio.to_thread(main, [*args, "--kubeconfig", str(kubeconfig)])
        assert end.value.code == 1
        return capsys.readouterr().err

    return refused


async def test_inspect_counts_it_and_names_the_pod(server: FakeApiServer, run: Run) -> None:
    fill(server, status([ON, OLD]))
    table, wide, found = [await run("inspect", *more) for more in ([], ["-o", "wide"], ["-o", "json"])]
    device = json.loads(found)["nodes"][0]["cards"][0]

    assert "11024/16276   68%    20%  default/on:1024,(deleted) team-a/old:10000" in table
    assert "team-a" in next(line for line in wide.splitlines() if "Deleted" in line)
    assert (device["allocatedMiB"], device["freeMiB"], device["allocatedCoresPercent"]) == (11_024, 5252, 20)
    assert [(p["namespace"], p["name"], p["phase"], p["memoryMiB"]) for p in device["pods"]] == [
        ("default", "on", "Running", LIVING),
        ("team-a", "old", "Deleted", HELD),
    ]


async def test_devices_count_it_and_name_the_pod(server: FakeApiServer, run: Run) -> None:
    fill(server, status([ON, OLD]))
    table, found = await run("devices"), await run("devices", "-o", "json")
    device = json.loads(found)["devices"][0]

    assert "11024/16276MiB    20%  default/on/main:1024MiB,(deleted) team-a/old/main:10000MiB+20%" in table
    assert (device["heldMemoryMiB"], device["heldCoresPercent"]) == (11_024, 20)
    assert [(h["pod"], h["deleted"]) for h in device["holders"]] == [("on", False), ("old", True)]


async def test_a_device_that_only_a_deleted_pod_holds_is_not_free(server: FakeApiServer, run: Run) -> None:
    server.create(paths.extended_resources(), card("n1", 0) | {"status": status([OLD])})

    assert await run("devices", "--free") == "there are no such devices\n"


async def test_why_promises_no_room_that_it_holds(server: FakeApiServer, run: Run) -> None:
    fill(server, status([ON, OLD]))
    found = json.loads(await run("why", "large", "-n", "default", "-o", "json"))

    assert found["fits"] == []
    assert found["notes"] == [TAKEN]
    assert "6276 MiB requested on one card, the most free on one is 5252 MiB" in found["verdict"]


async def test_why_of_a_pod_that_runs_does_not_mention_it(server: FakeApiServer, run: Run) -> None:
    fill(server, status([ON, OLD]))
    notes = json.loads(await run("why", "on", "-n", "default", "-o", "json"))["notes"]
    assert [note for note in notes if "counted as taken" in note] == []


async def test_why_names_ten_of_many_containers_that_are_left_and_counts_the_others(
    server: FakeApiServer, run: Run
) -> None:
    many = [OLD | {"pod": f"old-{i:02}", "memory": "10Mi", "cores": 1} for i in range(12)]
    fill(server, status(many, memory="120Mi", cores=12, slices=12))
    notes = json.loads(await run("why", "large", "-n", "default", "-o", "json"))["notes"]

    assert [f"old-{i:02};" in note for i, note in enumerate(notes[:10])] == [True] * 10
    assert notes[10:] == [
        "counted as taken: parts of cards held by 2 more containers of deleted pods (fractile inspect)"
    ]


async def test_why_of_a_pod_that_is_gone_says_what_its_processes_hold(server: FakeApiServer, refused: Run) -> None:
    side = OLD | {"container": "side", "memory": "100Mi", "cores": 0}
    fill(server, status([ON, OLD, side], memory=f"{HELD + 100}Mi", slices=2))

    assert (
        "there is no pod 'old' in namespace team-a, but processes of a deleted one still hold 10100 MiB of card 0 of "
        "n1; end them on n1, or wait until they have ended. An event of the node says how to end them: kubectl get "
        "events -n default --field-selector reason=GPUHeldByDeletedPod"
    ) in await refused("why", "old", "-n", "team-a")
    assert "there is no pod 'old' in namespace default; " in await refused("why", "old", "-n", "default")


async def test_why_of_a_pod_that_is_gone_does_without_cards_that_may_not_be_read(
    server: FakeApiServer, refused: Run
) -> None:
    fill(server, status([ON, OLD]))
    server.inject(Fault(path="/extendedresources", status=403, times=9))
    assert "there is no pod 'old' in namespace team-a; if a workload" in await refused("why", "old", "-n", "team-a")


async def test_plan_places_nothing_in_its_room_and_says_so(server: FakeApiServer, run: Run) -> None:
    fill(server, status([ON, OLD]))
    found = json.loads(await run("plan", "-o", "json"))

    assert (found["running"], found["now"]["pods"], found["now"]["placed"]) == (1, 1, 0)
    assert found["notes"] == [TAKEN]
    assert (found["consolidation"]["empty"], found["consolidation"]["tried"]) == (0, 0)
    assert [g["nodes"] for g in found["growth"]] == [1]  # a new node of that shape has nothing left behind


@pytest.mark.parametrize(
    "said",
    [
        status([OLD, ON]),  # not as agents write it
        status([]),
        status([ON, OLD | {"memory": "much"}]),
        status([ON, OLD | {"memory": "1Mi"}]),
    ],
)
async def test_it_counts_when_nobody_can_say_whose_it_was(
    server: FakeApiServer, run: Run, said: dict[str, Any]
) -> None:
    fill(server, said)
    assert "default/on:1024,(deleted):10000" in await run("inspect")


async def test_a_card_whose_amounts_make_no_sense_is_a_problem_as_for_the_control_plane(
    server: FakeApiServer, run: Run
) -> None:
    fill(server, status([ON, OLD]))
    server.create(paths.extended_resources(), card("n1", 1) | {"status": status([], memory="much")})
    assert "ExtendedResource gpu-n1-1: " in await run("inspect")
