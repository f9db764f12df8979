"""``fractile quota``: what namespaces may hold and hold, from the API server alone."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fractile.cli.quota import command
from fractile.kube import paths
from fractile.wire.files.quota_file import DEFAULT_SOURCE, KEPT, KEY
from tests.fakes.apiserver import FakeApiServer, Fault
from tests.reports.objects import MEMORY, card, container, node, placed, pod


async def run(server: FakeApiServer, folder: Path, *args: str) -> Result:
    """The command as a person runs it; in a thread of its own, since the server lives on this one."""
    arguments = ["--kubeconfig", str(server.write_kubeconfig(folder / "kubeconfig")), *args]
    return await asyncio.to_thread(CliRunner().invoke, command, arguments)


async def shown(server: FakeApiServer, folder: Path, *args: str) -> str:
    result = await run(server, folder, *args)
    assert result.exception is None, result.exception
    return result.output


def quota(server: FakeApiServer, text: str, location: str = DEFAULT_SOURCE) -> None:
    namespace, name = location.split("/")
    meta = {"name": name, "namespace": namespace}
    server.create(paths.config_maps("fractile-system"), {"metadata": meta, "data": {KEY: text}})


@pytest.fixture
def filled(server: FakeApiServer) -> FakeApiServer:
    """n1 in pool public with two cards; a and b hold three quarters of its card 0, ``other`` an eighth of card 1."""
    labelled: dict[str, Any] = node("n1", gpu_mem=2 * MEMORY)
    labelled["metadata"]["labels"] = {"fractile.dev/pool": "public"}
    server.create(paths.nodes(), labelled)
    for index in (0, 1):
        server.create(paths.extended_resources(), card("n1", index))
    for body in (
        pod("a", container("main", 8138), on="n1", placed=placed("n1", main=(0, 8138))),
        pod("b", container("main", 4069), on="n1", placed=placed("n1", main=(0, 4069))),
        pod("waits", container("main", 4069)),
        pod("done", container("main", 4069), on="n1", placed=placed("n1", main=(1, 4069)), phase="Succeeded"),
    ):
        server.create(paths.pods("default"), body)
    other = pod("c", container("main", 2034), on="n1", placed=placed("n1", main=(1, 2034)))
    other["metadata"]["namespace"] = "other"
    server.create(paths.pods("other"), other)
    return server


async def test_the_table_has_limits_and_what_is_held(filled: FakeApiServer, tmp_path: Path) -> None:
    quota(filled, '{"Default": {"pool": ["public", "wx"], "quota": {"V100": 2, "P100": 3}}, "free": {}}')
    filled.create(
        paths.resource_quotas("default"),
        {
            "metadata": {"name": "gpus"},
            "status": {
                "hard": {"requests.class.fractile.dev/small": "5", "requests.cpu": "10"},
                "used": {"requests.class.fractile.dev/small": "1"},
            },
        },
    )
    assert await shown(filled, tmp_path) == (
        "quotas of fractile-system/fractile-quota\n"
        "\n"
        "NAMESPACE  MODEL  HELD  LIMIT  POOLS\n"
        "default    V100   0.75      2  public, wx\n"
        "default    P100      0      3  public, wx\n"
        "free       every     0      -  every\n"
        "\n"
        "NAMESPACE  CLASS  MODEL       POOL    CARDS\n"
        "default    -      Tesla-V100  public   0.75\n"
        "other      -      Tesla-V100  public   0.13\n"
        "\n"
        "NAMESPACE  RESOURCEQUOTA  RESOURCE                           USED  HARD\n"
        "default    gpus           requests.class.fractile.dev/small     1     5\n"
        "\n"
        "problem: namespace default may use pool wx, but no node is in that pool\n"
        "problem: namespace default may hold P100, but the cluster has no such card\n"
    )


async def test_one_namespace_can_be_asked_for_also_one_that_has_nothing(filled: FakeApiServer, tmp_path: Path) -> None:
    found = json.loads(await shown(filled, tmp_path, "-n", "other", "-o", "json"))
    assert found["state"] == "absent"
    assert [n["namespace"] for n in found["namespaces"]] == ["other"]
    assert found["namespaces"][0]["held"] == [
        {"deviceClass": "", "model": "Tesla-V100", "pool": "public", "heldPercent": 13}
    ]
    empty = json.loads(await shown(filled, tmp_path, "-n", "nobody", "-o", "json"))
    assert [n["held"] for n in empty["namespaces"]] == [[]]


async def test_a_config_map_that_makes_no_sense_is_told_with_its_mistake(filled: FakeApiServer, tmp_path: Path) -> None:
    quota(filled, '{"a": {"quota": {"M40": -1}}}')
    text = await shown(filled, tmp_path)
    assert "ConfigMap fractile-system/fractile-quota is invalid and was not applied" in text
    assert "problem: quota ConfigMap fractile-system/fractile-quota: 'M40' of namespace 'a' must be" in text
    assert "the previous quotas were not kept, so no pod may be given a card" in text


async def test_while_it_makes_no_sense_the_quotas_that_were_kept_are_shown(
    filled: FakeApiServer, tmp_path: Path
) -> None:
    quota(filled, "{")
    quota(filled, '{"default": {"quota": {"V100": 2}}}', KEPT)
    found = json.loads(await shown(filled, tmp_path, "-n", "default", "-o", "json"))
    assert found["state"] == "malformed"
    assert [n["limits"] for n in found["namespaces"]] == [[{"model": "V100", "limitPercent": 200, "heldPercent": 75}]]
    assert found["problems"][0].endswith("the quotas that were read before it stay in force, and are shown here")


@pytest.mark.parametrize(
    ("path", "told"),
    [
        (
            paths.config_map("fractile-system", "fractile-quota"),
            "ConfigMap fractile-system/fractile-quota cannot be read",
        ),
        (paths.resource_quotas(), "ResourceQuotas cannot be read"),
    ],
)
async def test_what_may_not_be_read_is_left_out_with_a_word_about_it(
    filled: FakeApiServer, tmp_path: Path, path: str, told: str
) -> None:
    filled.inject(Fault(method="GET", path=path, status=403, times=9))
    text = await shown(filled, tmp_path)
    assert told in text
    assert "default    -      Tesla-V100  public   0.75" in text


@pytest.mark.parametrize("args", [["--quota-configmap", "x"], ["-o", "wide"]])
async def test_a_wrong_command_line_is_refused(server: FakeApiServer, tmp_path: Path, args: Sequence[str]) -> None:
    assert (await run(server, tmp_path, *args)).exit_code == 2
