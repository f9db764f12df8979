"""kube-scheduler of a kubeadm node told to read a configuration: done, gone back on, undone."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fractile.errors import SetupError, WireError
from fractile.kubeadm import files
from fractile.kubeadm import install as scheduler_install
from fractile.kubeadm.install import InstallOutcome, ManifestChange
from fractile.wire.foreign import static_pod
from fractile.wire.foreign.kubeadm import FOLDER
from fractile.wire.kubernetes.scheduler_config import ExtenderConfig, Form, SchedulerConfigOptions
from fractile.wire.kubernetes.scoring import CPU_AND_MEMORY, Strategy, StrategyKind
from tests.kubeadm.control_plane_node import Node

NOW = datetime(2026, 11, 21, tzinfo=UTC)
FORMS: list[tuple[int, Form]] = [(20, "policy"), (22, "config"), *((m, "config") for m in (24, 28, 31, 33, 36))]


def wish(minor: int = 36, form: Form = "config", *, url: str = "http://10.96.0.77/scheduler") -> SchedulerConfigOptions:
    return SchedulerConfigOptions(minor, form, extender=ExtenderConfig(url, {"nvidia.com/gpu": False}))


def planned(node: Node, wanted: SchedulerConfigOptions | None = None) -> ManifestChange:
    return scheduler_install.install(node.place, files.manifest(node.place), wanted or wish(), now=NOW)


def install(node: Node, wanted: SchedulerConfigOptions | None = None, *, limit: float = 60) -> InstallOutcome:
    return scheduler_install.apply(node.place, planned(node, wanted), node.wait(limit))


def undo(node: Node, *, limit: float = 60) -> InstallOutcome:
    change = scheduler_install.removal(node.place, files.manifest(node.place))
    return scheduler_install.apply(node.place, change, node.wait(limit))


@pytest.mark.parametrize(("minor", "form"), FORMS)
def test_every_version_is_told_and_the_backup_is_the_manifest_to_the_byte(
    minor: int, form: Form, tmp_path: Path
) -> None:
    node = Node(tmp_path, minor)

    outcome = install(node, wish(minor, form))

    assert outcome.health is not None
    assert outcome.health.reason == ""
    found = static_pod.read(node.place.manifest.read_text())
    flag = "--policy-config-file" if form == "policy" else "--config"
    assert found.command[-1] == f"{flag}={found.ours}"
    configuration = yaml.safe_load(node.place.at(found.ours).read_text())
    assert configuration["extenders"][0]["urlPrefix"] == "http://10.96.0.77/scheduler"
    assert node.place.backup.read_text() == node.text
    assert node.place.manifest.stat().st_mode & 0o777 == 0o600


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(FORMS), st.lists(st.integers(0, 3), max_size=2), st.text("ab# -\n", max_size=12))
def test_undoing_any_installations_leaves_the_manifest_as_it_was_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, version: tuple[int, Form], rounds: list[int], comment: str
) -> None:
    node = Node(tmp_path_factory.mktemp("node"), version[0])
    node.text += "".join(f"# {line}\n" for line in comment.splitlines())
    node.place.manifest.write_text(node.text)
    before = node.files()

    for number in (0, *rounds):
        install(node, wish(*version, url=f"http://10.0.0.{number}/s"))
    undo(node)

    assert node.files() == before


def test_a_second_run_has_nothing_to_do(tmp_path: Path) -> None:
    node = Node(tmp_path)
    install(node)
    before = node.files()

    again = planned(node)

    assert scheduler_install.nothing_to_do(node.place, again)
    assert node.files() == before


def test_a_configuration_that_somebody_has_removed_is_written_again(tmp_path: Path) -> None:
    node = Node(tmp_path)
    install(node)
    file = node.place.at(planned(node).will.ours)
    file.unlink()

    assert not scheduler_install.nothing_to_do(node.place, planned(node))
    install(node)

    assert file.exists()


def test_a_scheduler_that_ends_with_the_new_configuration_gets_the_old_manifest_back(tmp_path: Path) -> None:
    node = Node(tmp_path, runs=lambda command: not static_pod.flag(command, "config"))
    logs = tmp_path / "var/log/pods/kube-system_kube-scheduler-a_1/kube-scheduler"
    logs.mkdir(parents=True)
    (logs / "0.log").write_text(
        "2026-11-21T10:00:00.0Z stderr F I1121 10:00:00.0 1 x.go:1] Starting\n"
        '2026-11-21T10:00:00.1Z stderr F E1121 10:00:00.1 1 run.go:2] "command failed" err="no such file"\n'
    )
    before = node.files()

    outcome = install(node, limit=30)

    assert outcome.health is not None
    assert outcome.back is not None
    assert "it was started" in outcome.health.reason
    assert outcome.health.seconds >= 30
    assert outcome.health.log == ('E1121 10:00:00.1 1 run.go:2] "command failed" err="no such file"',)
    assert outcome.back.reason == ""
    assert node.files() == before


def test_what_worked_before_is_gone_back_to_and_not_the_manifest_without_fractile(tmp_path: Path) -> None:
    node = Node(tmp_path)
    install(node)
    before = node.files()
    good = static_pod.read(node.place.manifest.read_text()).command
    node.runs = good.__eq__

    outcome = install(node, wish(url="http://10.0.0.1/other"), limit=30)

    assert outcome.back is not None
    assert outcome.back.reason == ""
    assert node.files() == before


def test_the_program_before_is_not_taken_for_the_new_one(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.kubelet = False  # it does not look, so the old program goes on and is healthy

    outcome = install(node, limit=20)

    assert outcome.health is not None
    assert "has not started kube-scheduler with the new command line" in outcome.health.reason


def test_a_program_that_runs_but_is_not_healthy_is_not_enough(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.healthy = False

    outcome = install(node, limit=20)

    assert outcome.health is not None
    assert outcome.back is not None
    assert "https://127.0.0.1:10259/healthz: connection refused" in outcome.health.reason
    assert outcome.back.reason != ""
    assert node.place.manifest.read_text() == node.text


def test_changes_that_somebody_made_afterwards_survive_the_undoing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    install(node)
    edit = ("cpu: 100m", "cpu: 250m")
    node.place.manifest.write_text(node.place.manifest.read_text().replace(*edit))

    undo(node)

    assert node.place.manifest.read_text() == node.text.replace(*edit)


def test_a_manifest_that_cannot_be_read_any_more_is_left_to_a_person_who_is_told_of_the_backup(tmp_path: Path) -> None:
    node = Node(tmp_path)
    install(node)
    node.place.manifest.write_text(node.place.manifest.read_text().replace("kind: Pod", "kind: Pod\nkind: Pod"))

    with pytest.raises(SetupError, match="fractile-backup"):
        undo(node)


def test_after_an_upgrade_by_kubeadm_it_is_installed_again_and_the_backup_is_the_new_manifest(tmp_path: Path) -> None:
    node = Node(tmp_path, 33)
    install(node, wish(33))
    newer = node.text.replace("v1.33.13", "v1.34.0")
    node.place.manifest.write_text(newer)  # kubeadm knows nothing of us

    install(node, wish(34))

    assert node.place.backup.read_text() == newer
    undo(node)
    assert node.place.manifest.read_text() == newer


def test_without_waiting_the_configuration_before_stays_for_whoever_goes_back_by_hand(tmp_path: Path) -> None:
    node = Node(tmp_path)
    install(node, limit=0)
    first = planned(node).will.ours

    install(node, wish(url="http://10.0.0.1/other"), limit=0)

    assert node.place.at(first).exists()
    undo(node, limit=0)
    assert list(node.files()) == ["kubernetes/manifests/kube-scheduler.yaml"]


def test_a_manifest_that_changes_between_plan_and_deed_is_left_alone(tmp_path: Path) -> None:
    node = Node(tmp_path)
    change = planned(node)
    node.place.manifest.write_text(node.text + "# other\n")
    before = node.files()

    with pytest.raises(SetupError, match="changed meanwhile"):
        scheduler_install.apply(node.place, change, node.wait(60))

    assert node.files() == before


def test_without_a_view_of_the_processes_nothing_is_touched(tmp_path: Path) -> None:
    node = Node(tmp_path)
    (tmp_path / "proc/1/cmdline").unlink()
    before = node.files()

    with pytest.raises(SetupError, match="--wait 0"):
        install(node)

    assert node.files() == before


def test_two_at_once_do_not_meet(tmp_path: Path) -> None:
    node = Node(tmp_path)

    with files.alone(node.place), pytest.raises(SetupError, match="is running on this node"):
        install(node)

    install(node)


def test_a_scheduler_that_is_not_root_can_read_its_files(tmp_path: Path) -> None:
    node = Node(tmp_path)

    install(node)

    for path in tmp_path.joinpath(FOLDER.removeprefix("/")).iterdir():
        assert path.stat().st_mode & 0o777 == 0o644


def test_flags_that_the_configuration_would_override_are_taken_along(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.place.manifest.write_text(node.text.replace("    image:", "    - --profiling=false\n    image:", 1))

    install(node)

    assert "enableProfiling: false" in node.place.at(planned(node).will.ours).read_text()


@pytest.mark.parametrize(
    ("image", "told", "minor"),
    [
        ("registry.k8s.io/kube-scheduler:v1.28.15", None, 28),
        ("host:5000/mirror/kube-scheduler:v1.30.1-eks-7@sha256:" + "0" * 64, None, 30),
        ("rancher/hyperkube:v1.22.5+rke2r1", 22, 22),
        ("host:5000/kube-scheduler@sha256:" + "0" * 64, 31, 31),
        ("host:5000/kube-scheduler:latest", 31, 31),
    ],
)
def test_the_version_is_read_from_the_image_or_told(image: str, told: int | None, minor: int, tmp_path: Path) -> None:
    text = Node(tmp_path).text.replace("registry.k8s.io/kube-scheduler:v1.36.3", image)

    assert scheduler_install.version(static_pod.read(text), told) == minor


@pytest.mark.parametrize(
    ("image", "told", "sentence"),
    [
        ("registry.k8s.io/kube-scheduler:v1.19.3", None, "1.20 to 1.36"),
        ("registry.k8s.io/kube-scheduler:v1.37.0", None, "1.20 to 1.36"),
        ("registry.k8s.io/kube-scheduler:latest", None, "--kubernetes"),
        ("registry.k8s.io:5000/kube-scheduler", None, "--kubernetes"),
        ("registry.k8s.io/kube-scheduler:v1.28.1", 36, "not 1.36"),
    ],
)
def test_a_version_that_is_not_known_is_refused(image: str, told: int | None, sentence: str, tmp_path: Path) -> None:
    text = Node(tmp_path).text.replace("registry.k8s.io/kube-scheduler:v1.36.3", image)

    with pytest.raises((SetupError, WireError), match=sentence):
        scheduler_install.version(static_pod.read(text), told)


def test_a_strategy_without_an_extender_is_installed_too(tmp_path: Path) -> None:
    node = Node(tmp_path, 22)

    install(node, SchedulerConfigOptions(22, "policy", Strategy(StrategyKind.MOST, CPU_AND_MEMORY)))

    assert "MostRequestedPriority" in node.place.at(static_pod.read(node.place.manifest.read_text()).ours).read_text()
