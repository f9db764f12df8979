"""What `down` leaves of a cluster's logs."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from fractile.cli import demo
from fractile.cli.down import command
from fractile.lab.cluster import kept_logs
from fractile.lab.cluster.down import down
from fractile.lab.cluster.local import LocalCluster
from fractile.lab.layout import ClusterLayout, layout
from fractile.lab.progress import Progress, silent

MIB = 1 << 20


@pytest.fixture
def place(tmp_path: Path) -> ClusterLayout:
    """A cluster of which nothing runs."""
    found = layout(tmp_path / "clusters", "a")
    found.write(found.log("kube-scheduler"), "why it failed\n")
    found.write(found.log("n1/agent"), "the agent\n")
    return found


def kept(place: ClusterLayout) -> dict[str, str]:
    files = (p for p in place.kept_logs.rglob("*") if p.is_file())
    return {str(p.relative_to(place.kept_logs)): p.read_text() for p in files}


def test_the_logs_outlive_their_cluster_and_down_says_where(place: ClusterLayout) -> None:
    lines: list[str] = []
    assert down(place, Progress(lines.append), keep_logs=True)
    assert not place.root.exists()
    assert kept(place) == {"kube-scheduler.log": "why it failed\n", "n1.agent.log": "the agent\n"}
    assert str(place.kept_logs) in lines[-1]


def test_nothing_is_kept_where_nobody_asks_for_it(place: ClusterLayout) -> None:
    assert down(place, silent())
    assert not place.kept_logs.exists()
    assert list(place.root.parent.parent.glob("*")) == []


def test_a_second_down_keeps_what_the_first_has_kept(place: ClusterLayout) -> None:
    down(place, silent(), keep_logs=True)
    assert not down(place, silent(), keep_logs=True)
    assert len(kept(place)) == 2


def test_the_next_cluster_of_that_name_replaces_them(place: ClusterLayout) -> None:
    down(place, silent(), keep_logs=True)
    place.write(place.log("etcd"), "another\n")
    down(place, silent(), keep_logs=True)
    assert kept(place) == {"etcd.log": "another\n"}


def test_what_an_interrupted_down_has_left_is_no_harm(place: ClusterLayout) -> None:
    (place.kept_logs.with_name(".a") / "etcd.log").mkdir(parents=True)
    assert kept_logs.keep(place) == place.kept_logs
    assert len(kept(place)) == 2


def test_only_the_end_of_a_long_log_is_kept_from_the_beginning_of_a_line(place: ClusterLayout) -> None:
    place.log("etcd").write_text("".join(f"line {n}\n" for n in range(200_000)))
    kept_logs.keep(place)
    end = kept(place)["etcd.log"]
    assert MIB - 20 < len(end) <= MIB
    assert end.startswith("line ")
    assert end.endswith("line 199999\n")


def test_all_together_have_a_size_too(place: ClusterLayout) -> None:
    for n in range(70):
        place.log(f"n{n}/kubelet").write_bytes(b"x" * (MIB - 1) + b"\n")
    kept_logs.keep(place)
    assert sum(len(text) for text in kept(place).values()) <= 64 * MIB


def test_logs_of_our_own_pods_are_among_them_and_links_are_not(place: ClusterLayout, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    folder = place.node(1).log / "pods" / "fractile-system_agent_uid" / "agent"
    folder.mkdir(parents=True)
    (folder / "0.log").write_text("the agent's pod\n")
    (folder / "1.log").symlink_to(tmp_path / "secret")
    other = place.node(1).log / "pods" / "demo_p_uid" / "main"
    other.mkdir(parents=True)
    (other / "0.log").write_text("somebody's\n")
    kept_logs.keep(place)
    assert kept(place)["1/fractile-system_agent_uid/agent/0.log"] == "the agent's pod\n"
    assert len(kept(place)) == 3


def test_nobody_else_reads_them(place: ClusterLayout) -> None:
    kept_logs.keep(place)
    assert place.kept_logs.stat().st_mode & 0o777 == 0o700
    assert {p.stat().st_mode & 0o777 for p in place.kept_logs.iterdir()} == {0o600}


def test_the_command_keeps_them_says_where_and_removes_them_on_demand(
    place: ClusterLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fractile.cli.down.default_clusters_dir", lambda: place.root.parent)
    first, again, gone, never = [
        CliRunner().invoke(command, ["--name", "a", *args]).output
        for args in ((), (), ("--delete-logs",), ("--delete-logs",))
    ]
    assert f"the last part of each log is in {place.kept_logs}" in first
    assert again == f"There is no cluster a: nothing to do; the logs of the last one are in {place.kept_logs}.\n"
    assert gone == "The logs of cluster a are removed.\n"
    assert never == "There is no cluster a: nothing to do.\n"
    assert not place.kept_logs.parent.exists()


@pytest.mark.parametrize("stop", [True, False])
def test_a_demo_that_fails_names_logs_that_are_there_afterwards(
    place: ClusterLayout, monkeypatch: pytest.MonkeyPatch, stop: bool
) -> None:
    def made(*_: object, **__: object) -> LocalCluster:
        return cluster

    def up(_: object) -> None:
        """It runs."""

    def failed(*_: object) -> list[str]:
        return ["pack"]

    cluster = LocalCluster("a", clusters=place.root.parent)
    monkeypatch.setattr(demo, "LocalCluster", made)
    monkeypatch.setattr(cluster, "up", up)
    monkeypatch.setattr(demo, "_run", failed)
    result = CliRunner().invoke(demo.command, ["--name", "a", *(["--down"] if stop else [])])
    named = Path(str(result.exception).rpartition("logs are in ")[2])
    assert (named / "kube-scheduler.log").read_text() == "why it failed\n"
    assert place.root.exists() is not stop
    assert os.path.commonpath([named, place.root]) == str(place.root if not stop else place.root.parent.parent)
