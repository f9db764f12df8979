"""Whether kube-scheduler is healthy: its answer, its processes, its last words."""

import asyncio
import os
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from fractile.kubeadm import health as scheduler_health
from fractile.wire.foreign import static_pod
from tests.fakes.http1 import Exchange, Server
from tests.kubeadm.control_plane_node import Node


def yes(_host: str, _port: int) -> str:
    return ""


def runs_three_looks(lives: Iterator[bool]) -> Callable[[tuple[str, ...]], bool]:
    def runs(_command: tuple[str, ...]) -> bool:
        return next(lives)

    return runs


async def told(status: int, *, tls: bool = True) -> str:
    async def answer(exchange: Exchange) -> None:
        await exchange.answer(status if exchange.path == "/healthz" else 404, b"ok")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate = trustme.CA().issue_cert("other.example")  # nobody's authority, and another name
    with certificate.private_key_and_cert_chain_pem.tempfile() as pem:
        context.load_cert_chain(pem)
    server = Server(answer, tls=context if tls else None)
    await server.start()
    try:
        return await asyncio.to_thread(scheduler_health.answers, "127.0.0.1", server.port)
    finally:
        await server.stop()


async def test_a_yes_is_a_yes_whoever_signed_the_certificate() -> None:
    assert await told(200) == ""


async def test_any_other_answer_is_told() -> None:
    assert await told(500) == "it answers 500"


async def test_plain_http_and_nobody_are_told() -> None:
    assert await told(200, tls=False) != ""
    assert "refused" in await asyncio.to_thread(scheduler_health.answers, "127.0.0.1", 9)


def test_one_that_is_healthy_for_a_moment_between_two_ends_never_passes(tmp_path: Path) -> None:
    node = Node(tmp_path, runs=runs_three_looks(iter([True, True, True, False] * 100)))  # two seconds each
    manifest = static_pod.read(node.text)

    health = scheduler_health.waited(manifest, root=tmp_path, limit=60, clock=node, asked=yes)

    assert node.starts > 5
    assert health.reason != ""


class _Replacing:
    """A clock that starts kube-scheduler again every two seconds, faster than any look at it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._process = node.place.root / "proc" / "101"

    def now(self) -> float:
        return self._node.time

    def sleep(self, seconds: float) -> None:
        self._node.time += seconds
        if self._node.time % 2 == 0:
            self._process = self._process.rename(self._process.with_name(f"{200 + self._node.time:.0f}"))


def test_another_process_at_every_look_is_not_steady(tmp_path: Path) -> None:
    node = Node(tmp_path)

    health = scheduler_health.waited(
        static_pod.read(node.text), root=tmp_path, limit=30, clock=_Replacing(node), asked=yes
    )

    assert health.reason == "kube-scheduler has not run and been healthy for 5 s in a row; it was started 15 times"


def test_two_with_the_same_command_line_are_told(tmp_path: Path) -> None:
    node = Node(tmp_path)
    manifest = static_pod.read(node.text)
    (tmp_path / "proc/7").mkdir()
    (tmp_path / "proc/7/cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in manifest.command))

    health = scheduler_health.waited(manifest, root=tmp_path, limit=10, clock=node, asked=yes)

    assert health.reason.startswith("2 processes run with the manifest's command line")


def test_it_takes_the_seconds_that_it_must_be_steady_and_no_more(tmp_path: Path) -> None:
    node = Node(tmp_path)

    health = scheduler_health.waited(static_pod.read(node.text), root=tmp_path, limit=60, clock=node, asked=yes)

    assert health.reason == ""
    assert scheduler_health.STEADY <= health.seconds <= scheduler_health.STEADY + 1


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", ()),
        ("all\nis\nwell\nhere\n", ("is", "well", "here")),
        ("2026-11-21T10:00:00Z stderr F E1121 1 a.go:1] no such file\nI1121 bye\n", ("E1121 1 a.go:1] no such file",)),
        ("Error: unknown flag: --x\nUsage:\n", ("Error: unknown flag: --x",)),
        ("panic: oh\n\ngoroutine 1\n", ("panic: oh",)),
        ("I1121 old\n" * 20_000 + "F1121 the last\n", ("F1121 the last",)),
    ],
)
def test_its_last_words_are_its_errors_or_else_its_end(log: str, words: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "var/log/pods/kube-system_kube-scheduler-a_1/kube-scheduler"
    folder.mkdir(parents=True)
    (folder / "0.log").write_text(log)

    assert scheduler_health.last_words(tmp_path) == words


def test_one_that_has_just_been_started_again_is_judged_by_what_it_said_before(tmp_path: Path) -> None:
    folders = [tmp_path / f"var/log/pods/kube-system_kube-scheduler-a_{i}/kube-scheduler" for i in (0, 1)]
    logs = [(0, "9.log", "E1121 of the pod before\n"), (1, "0.log", "E1121 why\n"), (1, "1.log", "")]
    for number, (pod, name, text) in enumerate(logs):
        folders[pod].mkdir(parents=True, exist_ok=True)
        (folders[pod] / name).write_text(text)
        os.utime(folders[pod] / name, (number, number))

    assert scheduler_health.last_words(tmp_path) == ("E1121 why",)


def test_versions_that_end_with_a_line_of_plain_text_are_understood(tmp_path: Path) -> None:
    folder = tmp_path / "var/log/pods/kube-system_kube-scheduler-a_1/kube-scheduler"
    folder.mkdir(parents=True)
    for number, text in enumerate(["E1121 some days ago\n", "I1121 begin\nno kind is registered\n", "I1121 begin\n"]):
        (folder / f"{number}.log").write_text(text)
        os.utime(folder / f"{number}.log", (number, number))

    assert scheduler_health.last_words(tmp_path) == ("no kind is registered",)


def test_without_logs_there_are_no_words(tmp_path: Path) -> None:
    assert scheduler_health.last_words(tmp_path) == ()
