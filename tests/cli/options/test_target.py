"""Which cluster a command talks to."""

from pathlib import Path

import click
import pytest

from fractile.cli.options.target import find_kubeconfig
from fractile.errors import SetupError
from fractile.lab.layout import ClusterLayout


def runs(_: ClusterLayout) -> bool:
    return True


def stopped(_: ClusterLayout) -> bool:
    return False


@pytest.fixture
def clusters(tmp_path: Path) -> Path:
    for name in ("fractile", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "admin.kubeconfig").write_text("{}")
    return tmp_path


def test_a_given_file_wins_over_everything(clusters: Path) -> None:
    given = Path("/somewhere/config")

    assert find_kubeconfig(given=given, name="", environ={"KUBECONFIG": "/k"}, clusters=clusters, runs=runs) == given


def test_a_named_local_cluster_wins_over_the_environment(clusters: Path) -> None:
    found = find_kubeconfig(given=None, name="other", environ={"KUBECONFIG": "/k"}, clusters=clusters, runs=runs)

    assert found == clusters / "other" / "admin.kubeconfig"


def test_the_environment_wins_over_the_default_local_cluster(clusters: Path) -> None:
    assert find_kubeconfig(given=None, name="", environ={"KUBECONFIG": "/k"}, clusters=clusters, runs=runs) is None


def test_the_default_local_cluster_is_used_when_it_runs(clusters: Path) -> None:
    found = find_kubeconfig(given=None, name="", environ={}, clusters=clusters, runs=runs)

    assert found == clusters / "fractile" / "admin.kubeconfig"


@pytest.mark.parametrize("folder", ["", "empty"], ids=["stopped", "never started"])
def test_without_a_running_local_cluster_the_choice_is_left_to_the_credentials(clusters: Path, folder: str) -> None:
    assert find_kubeconfig(given=None, name="", environ={}, clusters=clusters / folder, runs=stopped) is None


def test_an_unknown_local_cluster_is_refused_with_those_that_exist(clusters: Path) -> None:
    with pytest.raises(SetupError, match=r"no local cluster 'gone' \(there are: fractile, other\).*up --name gone"):
        find_kubeconfig(given=None, name="gone", environ={}, clusters=clusters, runs=runs)


def test_a_name_cannot_leave_the_folder_of_clusters(clusters: Path) -> None:
    with pytest.raises(SetupError, match="cannot name a cluster"):
        find_kubeconfig(given=None, name="../fractile", environ={}, clusters=clusters, runs=runs)


def test_two_ways_to_choose_at_once_are_refused(clusters: Path) -> None:
    with pytest.raises(click.UsageError, match="give one of them"):
        find_kubeconfig(given=Path("/k"), name="other", environ={}, clusters=clusters, runs=runs)
