"""``fractile classes`` and ``fractile devices`` as a person runs them, against an API server at the wire."""

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import click
import msgspec
import pytest
import yaml
from rich.console import Console

from fractile.cli import classes as classes_command
from fractile.cli import devices as devices_command
from fractile.cli.text.classes import closing, short_unit, unit
from fractile.cli.text.classes_tree import draw_classes, draw_devices
from fractile.kube import paths
from fractile.main.cli import main
from fractile.model.device_class import Operator, PropertyRequirement
from fractile.reports.classes import describe
from fractile.wire.output import class_report
from tests.fakes.apiserver import FakeApiServer, Fault
from tests.reports.class_cluster import fill

Result = tuple[int, str, str]
Run = Callable[..., Awaitable[Result]]


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        fill(server)
        yield server


@pytest.fixture
def run(server: FakeApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")

    async def run(command: str, *args: str) -> Result:
        with pytest.raises(SystemExit) as end:
            await asyncio.to_thread(main, [command, "--kubeconfig", str(kubeconfig), *args])
        captured = capsys.readouterr()
        return int(end.value.code or 0), captured.out, captured.err

    return run


async def test_classes_in_a_pipe_are_one_line_each_and_what_is_odd_follows(run: Run) -> None:
    assert await run("classes") == (
        0,
        "CLASS             TYPE  UNIT         FREE/DEVICES  UNHEALTHY  FREE/UNITS  REASON\n"
        "a100              gpu   whole                 0/0          -         0/0  NoDeviceMatches\n"
        "hca               hca   share                 0/1          -         1/2  -\n"
        "nvidia.high.mem   gpu   whole                 0/3          1         0/2  -\n"
        "nvidia.tesla.k80  gpu   whole                 1/1          -         1/1  -\n"
        "pair              gpu   2xwhole               0/3          1         0/0  TooFew\n"
        "slice             gpu   4096MiB,20%           0/3          1         3/8  -\n"
        "\n"
        "  a100: of 4 devices of type gpu, none has model In [A100] (there are Tesla K80, Tesla V100)\n"
        "  hca: the selector is empty, so every device of type hca is in the class\n"
        "  pair: a unit takes 2 devices of one node; the most healthy ones on any node: 1\n",
        "",
    )


async def test_one_class_shows_how_to_ask_and_its_devices(run: Run) -> None:
    _, out, _ = await run("classes", "slice")
    assert "class.fractile.dev/slice: 1" in out
    assert "4096 MiB and 20 % of a card" in out
    assert [line.split()[:4] for line in out.splitlines()[8:12]] == [
        ["NODE", "TYPE", "INDEX", "MODEL"],
        ["n1", "gpu", "0", "Tesla"],
        ["n2", "gpu", "0", "Tesla"],
        ["n2", "gpu", "1", "Tesla"],
    ]


async def test_one_class_that_works_may_have_a_note(run: Run) -> None:
    _, out, _ = await run("classes", "hca")
    assert "note: the selector is empty, so every device of type hca is in the class" in out.splitlines()


async def test_wide_classes_show_their_selectors(run: Run) -> None:
    _, out, _ = await run("classes", "-o", "wide")
    assert out.splitlines()[3].endswith("2  -                memory > 13GiB")


async def test_devices_are_one_line_each_with_their_holders(run: Run) -> None:
    _, out, _ = await run("devices")
    assert [line.split() for line in out.splitlines()[1:6]] == [
        ["n1", "gpu", "0", "Tesla", "V100", "PartlyBound", "4096/16384MiB", "-", "default/part/main:4096MiB"],
        ["n1", "gpu", "1", "Tesla", "K80", "Available", "0/12288MiB", "-", "-"],
        ["n1", "hca", "0", "ConnectX", "PartlyBound", "1/2", "-", "default/net/main:1"],
        ["n2", "gpu", "0", "Tesla", "V100", "Bound", "16384/16384MiB", "100%", "default/whole/main:16384MiB+100%"],
        ["n2", "gpu", "1", "Tesla", "V100", "Unhealthy", "0/32768MiB", "-", "-"],
    ]
    assert out.endswith("\n5 devices, 1 of them free\n  gpu 1 of n2: CardLost: it fell off the bus\n")


@pytest.mark.parametrize(
    ("args", "ids"),
    [
        pytest.param(["--free"], ["GPU-n1-1"], id="free"),
        pytest.param(["--class", "slice"], ["GPU-n1-0", "GPU-n2-0", "GPU-n2-1"], id="class"),
        pytest.param(["--class", "slice", "--node", "n2"], ["GPU-n2-0", "GPU-n2-1"], id="class and node"),
        pytest.param(["--type", "hca"], ["hca-0.n1"], id="type"),
        pytest.param(["--class", "nvidia.tesla.k80", "--free"], ["GPU-n1-1"], id="class and free"),
        pytest.param(["--class", "a100"], [], id="none"),
    ],
)
async def test_devices_are_chosen(run: Run, args: list[str], ids: list[str]) -> None:
    _, out, _ = await run("devices", *args, "-o", "json")
    assert [d.id for d in class_report.decode_devices(out).devices] == ids


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        pytest.param(
            ["classes", "no"],
            "there is no class 'no'; there are: a100, hca, nvidia.high.mem, nvidia.tesla.k80, pair, slice",
            id="class",
        ),
        pytest.param(["devices", "--node", "n3"], "there is no node with devices 'n3'; there are: n1, n2", id="node"),
        pytest.param(["devices", "--type", "x"], "there is no device of type 'x'; there are: gpu, hca", id="type"),
    ],
)
async def test_an_unknown_name_is_refused_with_those_that_exist(run: Run, args: list[str], sentence: str) -> None:
    assert await run(*args) == (1, "", f"fractile: {sentence}\n")


async def test_json_and_yaml_say_the_same(run: Run) -> None:
    _, as_json, _ = await run("classes", "-o", "json")
    _, as_yaml, _ = await run("classes", "-o", "yaml")
    report = class_report.decode_classes(as_json)
    assert class_report.decode_classes(msgspec.json.encode(yaml.safe_load(as_yaml))) == report
    (part,) = [c for c in report.classes if c.name == "slice"]
    assert [(n.node, n.units.free, n.units.total) for n in part.nodes] == [("n1", 3, 4), ("n2", 0, 4)]
    assert sum(n.devices.total for n in part.nodes) == part.devices.total


async def test_without_the_definitions_it_says_what_to_apply(server: FakeApiServer, run: Run) -> None:
    server.inject(Fault(path="resourceclasses", status=404))
    code, _, err = await run("classes")
    assert (code, "no resourceclasses.fractile.dev" in err) == (1, True)


async def test_a_cluster_without_classes_says_how_to_make_one(server: FakeApiServer, run: Run) -> None:
    for name in ("a100", "hca", "nvidia.high.mem", "nvidia.tesla.k80", "pair", "slice"):
        server.delete(paths.resource_class(name))
    assert (await run("classes"))[1].startswith("there are no classes; kubectl explain")


async def test_a_class_that_makes_no_sense_is_shown_with_the_reason(server: FakeApiServer, run: Run) -> None:
    server.merge(paths.resource_class("pair"), {"spec": {"count": 0}})
    _, out, _ = await run("classes", "pair")
    assert "Invalid: spec.count must be 1 to 64" in out


async def test_a_terminal_gets_bars_and_everything_within_its_width(run: Run) -> None:
    _, classes, _ = await run("classes", "slice", "-o", "json")
    _, devices, _ = await run("devices", "-o", "json")
    for width, ascii_only in ((80, False), (60, True)):
        out = io.TextIOWrapper(io.BytesIO(), encoding="ascii" if ascii_only else "utf-8")
        console = Console(file=out, width=width, force_terminal=True, color_system="truecolor")
        draw_classes(class_report.decode_classes(classes), class_report.decode_devices(devices), console)
        draw_devices(class_report.decode_devices(devices), console)
        out.seek(0)
        text = out.read()
        assert ("#" if ascii_only else "■") in text
        assert "\x1b[" in text


@pytest.mark.parametrize(
    ("command", "parameter", "typed", "names"),
    [
        pytest.param(
            classes_command.command, "name_of_class", "nv", ["nvidia.high.mem", "nvidia.tesla.k80"], id="class"
        ),
        pytest.param(devices_command.command, "of_class", "s", ["slice"], id="class of devices"),
        pytest.param(devices_command.command, "node", "", ["n1", "n2"], id="node"),
        pytest.param(devices_command.command, "of_type", "g", ["gpu"], id="type"),
    ],
)
async def test_names_are_completed(
    server: FakeApiServer, tmp_path: Path, command: click.Command, parameter: str, typed: str, names: list[str]
) -> None:
    context = click.Context(command)
    context.params["kubeconfig"] = server.write_kubeconfig(tmp_path / "kubeconfig")
    (found,) = [p for p in command.params if p.name == parameter]
    items = await asyncio.to_thread(found.shell_complete, context, typed)
    assert [item.value for item in items] == names
    await server.stop()
    assert await asyncio.to_thread(found.shell_complete, context, typed) == []
    await server.restart()


@pytest.mark.parametrize(
    ("requirement", "words"),
    [
        pytest.param(PropertyRequirement("model", Operator.IN, ("A",)), "model = A", id="equal"),
        pytest.param(PropertyRequirement("model", Operator.IN, ("A", "B")), "model in A, B", id="in"),
        pytest.param(PropertyRequirement("model", Operator.NOT_IN, ("A",)), "model not in A", id="not in"),
        pytest.param(PropertyRequirement("ecc", Operator.EXISTS), "ecc exists", id="exists"),
        pytest.param(PropertyRequirement("ecc", Operator.DOES_NOT_EXIST), "ecc does not exist", id="not"),
        pytest.param(PropertyRequirement("memory", Operator.GE, ("1Gi",)), "memory >= 1Gi", id="ge"),
    ],
)
def test_conditions_read_like_sentences(requirement: PropertyRequirement, words: str) -> None:
    assert describe(requirement) == words


def entry(memory: int = 0, cores: int = 0, count: int = 1, type: str = "gpu") -> class_report.ClassEntry:
    return class_report.ClassEntry(
        name="c",
        resource="class.fractile.dev/c",
        device_type=type,
        selector=(),
        memory_mib=memory,
        cores_percent=cores,
        count=count,
        shared=bool(memory or cores),
        devices=class_report.DeviceSums(0, 0, 0),
        units=class_report.UnitSums(0, 0),
        nodes=(),
        reason="",
        message="",
    )


@pytest.mark.parametrize(
    ("memory", "cores", "count", "type", "short", "long"),
    [
        pytest.param(0, 0, 1, "gpu", "whole", "1 whole card", id="whole"),
        pytest.param(0, 0, 2, "gpu", "2xwhole", "2 whole cards", id="two"),
        pytest.param(4096, 0, 1, "gpu", "4096MiB", "4096 MiB of a card", id="memory"),
        pytest.param(4096, 30, 2, "gpu", "2x4096MiB,30%", "4096 MiB and 30 % of each of 2 cards", id="both of two"),
        pytest.param(0, 30, 1, "gpu", "30%", "30 % of a card", id="cores"),
        pytest.param(0, 0, 1, "hca", "share", "1 share of a device", id="share"),
        pytest.param(0, 0, 2, "hca", "2xshare", "1 share of each of 2 devices", id="two shares"),
    ],
)
def test_a_unit_has_words(memory: int, cores: int, count: int, type: str, short: str, long: str) -> None:
    one = entry(memory, cores, count, type)
    assert (short_unit(one), unit(one)) == (short, long)


EVIL = "\x1b[31mEVIL\x1b[0m\n\x1b]0;pwn\x07"


def visible(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text)


async def test_a_terminal_obeys_nothing_that_an_agent_wrote(server: FakeApiServer, run: Run) -> None:
    name = f"{paths.extended_resource('gpu-n1-0')}"
    server.merge(name, {"spec": {"model": EVIL, "pciBusID": EVIL}})
    server.merge(f"{name}/status", {"status": {"phase": "Unhealthy", "reason": EVIL, "message": EVIL * 2}})
    for command in (("devices",), ("devices", "-o", "wide"), ("inspect",), ("inspect", "-o", "wide"), ("classes",)):
        code, out, err = await run(*command)
        assert (code, visible(out), err) == (0, True, "")
        assert not any(line.startswith("?]0;pwn") for line in out.splitlines())
    code, out, _ = await run("devices", "-o", "json")
    assert EVIL in {d["model"] for d in msgspec.json.decode(out)["devices"]}, "JSON has it as it is"


def test_nor_what_a_stranger_s_api_server_calls_a_class() -> None:
    odd = msgspec.structs.replace(entry(), name=EVIL, message=EVIL)
    said = closing(class_report.ClassReport(classes=(odd,)))
    assert visible(said)
    assert said.count("\n") == 2


async def test_nor_does_it_in_the_pictures_of_a_terminal() -> None:
    drawn = io.StringIO()
    console = Console(file=drawn, width=120, color_system=None)
    device = class_report.DeviceEntry(
        name="gpu-1",
        id="GPU-1",
        type="gpu",
        node="n1",
        index=0,
        model=EVIL,
        phase=EVIL,
        reason=EVIL,
        message=EVIL,
        healthy=False,
        memory_mib=1,
        held_memory_mib=1,
        held_cores_percent=0,
        shares=0,
        held_shares=0,
        properties={},
        classes=(),
        holders=(
            class_report.DeviceHolder(
                namespace=EVIL, pod=EVIL, container=EVIL, memory_mib=1, cores_percent=0, shares=0
            ),
        ),
    )
    draw_devices(class_report.DeviceReport(devices=(device,)), console)
    assert "?[31mEVIL" in drawn.getvalue()
    assert visible(drawn.getvalue())
