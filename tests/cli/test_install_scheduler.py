"""``fractile install-scheduler`` as a person runs it, on the files of a played control-plane node."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
import yaml
from click.testing import CliRunner, Result

from fractile.cli.install_scheduler import command
from fractile.cli.text import install_scheduler as text
from fractile.errors import FractileError
from fractile.kubeadm import install
from fractile.kubeadm.health import SchedulerHealth
from fractile.kubeadm.install import InstallOutcome
from fractile.wire.foreign import static_pod
from tests.kubeadm.control_plane_node import Node
from tests.wire.golden_files import golden

URL = "http://127.0.0.1:9/scheduler"  # nobody listens there


OPEN = ("--insecure-open-extender",)


def run(node: Node, *args: str) -> Result:
    return CliRunner().invoke(command, ["--root", str(node.place.root), *args])


def sentence(result: Result) -> str:
    assert isinstance(result.exception, FractileError), result.output
    return str(result.exception)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "node")


def test_a_dry_run_shows_a_unified_diff_and_writes_nothing(node: Node) -> None:
    before = node.files()

    result = run(node, "--extender", URL, "--dry-run")

    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert f"--- {node.place.manifest}" in lines
    added = [line for line in lines if line.startswith("+    - --config=/etc/kubernetes/fractile/scheduler-")]
    assert len(added) == 1
    assert f"+- urlPrefix: {URL}" in lines
    assert lines[-1] == "# Nothing was changed."
    assert node.files() == before


def test_what_a_dry_run_shows_is_what_is_done(node: Node) -> None:
    shown = run(node, "--extender", URL, "--dry-run").stdout

    run(node, "--extender", URL, "--wait", "0")

    assert f"+    {static_pod.read(node.place.manifest.read_text()).command[-1]}"[5:] in shown


def test_an_extender_that_cannot_be_reached_is_a_warning(node: Node) -> None:
    result = run(node, "--extender", URL, "--dry-run")

    assert f"kube-scheduler cannot reach {URL} from this node" in result.stderr


def test_a_proxy_that_would_be_asked_for_the_extender_is_a_warning(node: Node) -> None:
    node.place.manifest.write_bytes(golden("kubeadm-kube-scheduler-1.36-extras.yaml"))

    result = run(node, "--extender", "https://10.96.0.77/s", *OPEN, "--tls-insecure", "--dry-run")

    assert "the proxy http://p:1; add the extender's host to NO_PROXY" in result.stderr


def test_done_it_says_where_the_backup_is_and_what_to_do_on_other_nodes(node: Node) -> None:
    result = run(node, "--extender", URL, "--wait", "0")

    assert str(node.place.backup) in result.stdout
    assert "every other control-plane node" in result.stdout
    assert run(node, "--extender", URL).stdout.startswith("Nothing to do: ")


def test_undone_there_is_nothing_left_and_nothing_more_to_undo(node: Node) -> None:
    before = node.files()
    run(node, "--extender", URL, "--wait", "0")

    shown = run(node, "--undo", "--dry-run").stdout
    assert "-    - --config=" in shown
    assert run(node, "--undo", "--wait", "0").exit_code == 0

    assert node.files() == before
    assert run(node, "--undo").stdout.startswith("Nothing to undo")


def test_the_certificates_are_copied_under_names_of_their_own(node: Node, tmp_path: Path) -> None:
    authority = trustme.CA()
    pair = authority.issue_cert("kube-scheduler")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    pair.cert_chain_pems[0].write_to_path(tmp_path / "c.pem")
    pair.private_key_pem.write_to_path(tmp_path / "k.pem")
    files = ["--tls-ca", f"{tmp_path}/ca.pem", "--tls-cert", f"{tmp_path}/c.pem", "--tls-key", f"{tmp_path}/k.pem"]

    result = run(node, "--extender", "https://127.0.0.1:9/s", *files, "--wait", "0")

    assert result.exit_code == 0, result.exception
    ours = static_pod.read(node.place.manifest.read_text()).ours
    tls = yaml.safe_load(node.place.at(ours).read_text())["extenders"][0]["tlsConfig"]
    assert node.place.at(tls["caFile"]).read_bytes() == (tmp_path / "ca.pem").read_bytes()
    assert node.place.at(tls["certFile"]).read_bytes() == (tmp_path / "c.pem").read_bytes()
    assert node.place.at(tls["keyFile"]).stat().st_mode & 0o777 == 0o600


def test_certificates_that_would_not_work_are_refused(node: Node, tmp_path: Path) -> None:
    authority = trustme.CA()
    now = datetime.now(UTC)
    old = authority.issue_cert("a", not_before=now - timedelta(days=9), not_after=now - timedelta(days=1))
    pair, other = authority.issue_cert("b"), authority.issue_cert("c")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    old.cert_chain_pems[0].write_to_path(tmp_path / "old.pem")
    pair.cert_chain_pems[0].write_to_path(tmp_path / "c.pem")
    other.private_key_pem.write_to_path(tmp_path / "k.pem")
    pair.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    (tmp_path / "page.pem").write_text("<html>")
    before = node.files()

    def told(*files: str) -> str:
        args = [f"{tmp_path}/{file}" if file.endswith(".pem") else file for file in files]
        args += OPEN if "--tls-cert" not in files else ()
        return sentence(run(node, "--extender", "https://127.0.0.1:9/s", *args, "--wait", "0"))

    assert "no certificate" in told("--tls-ca", "page.pem")
    assert "is valid from" in told("--tls-ca", "old.pem")
    assert "private key too" in told("--tls-ca", "both.pem")
    assert "is not the key of" in told("--tls-ca", "ca.pem", "--tls-cert", "c.pem", "--tls-key", "k.pem")
    assert "does not exist" in told("--tls-ca", "none.pem")
    assert node.files() == before


def _second(node: Node) -> None:
    (node.place.manifest.parent / "kube-scheduler.yaml.bak").write_text(node.text)


def _link(node: Node) -> None:
    node.place.manifest.rename(node.place.manifest.with_name(".real"))
    node.place.manifest.symlink_to(".real")


def _bytes(node: Node) -> None:
    node.place.manifest.write_bytes(b"\xff\xfe" + node.text.encode())


def _gone(node: Node) -> None:
    node.place.manifest.unlink()


def _own(node: Node) -> None:
    node.place.manifest.write_text(node.text.replace("--leader-elect=true", "--config=/etc/mine.yaml"))


def _none(node: Node) -> None:
    node.place.manifest.unlink()
    node.place.manifest.parent.rmdir()


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (_second, "describes kube-scheduler too"),
        (_link, "is a link"),
        (_bytes, "not UTF-8"),
        (_gone, "does not exist"),
        (_own, "already reads another configuration"),
        (_none, "not a control-plane node"),
    ],
)
@pytest.mark.parametrize("args", [("--extender", URL), ("--undo",)], ids=["install", "undo"])
def test_a_node_that_is_not_as_kubeadm_left_it_is_not_touched(
    node: Node, spoil: Callable[[Node], None], told: str, args: tuple[str, ...]
) -> None:
    spoil(node)
    before = node.files()

    assert told in sentence(run(node, *args, "--wait", "0"))

    assert node.files() == before


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ([], "give --extender URL"),
        (["--undo", "--policy", "most-allocated"], "--undo takes no configuration"),
        (["--extender", "https://127.0.0.1:9/s"], "needs --tls-ca"),
        (["--extender", URL, "--wait", "-1"], "--wait"),
        (["--extender", URL, "--kubernetes", "1.19"], "1.20 to 1.36"),
    ],
)
def test_a_wrong_command_line_is_refused_with_a_sentence(node: Node, args: list[str], told: str) -> None:
    before = node.files()

    result = run(node, *args)

    assert result.exit_code == 2
    assert told in result.stderr
    assert node.files() == before


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    result = CliRunner().invoke(command, ["--policy", "most-allocated"])

    assert "belong to root" in sentence(result)


def test_an_interrupted_wait_leaves_the_new_manifest_and_says_so(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupted)

    result = run(node, "--extender", URL)

    assert "--undo restores the old manifest" in result.stderr
    assert static_pod.read(node.place.manifest.read_text()).ours != ""


def test_what_is_not_healthy_after_undoing_stays_undone_and_is_told(node: Node) -> None:
    run(node, "--extender", URL, "--wait", "0")
    change = install.removal(node.place, node.place.manifest.read_text())

    told = text.failed(change, InstallOutcome(SchedulerHealth(180.0, "nobody answers", ("E1121 why",))))

    assert "with its own flags alone within 180 s: nobody answers\n  E1121 why\n" in told
    assert told.endswith("The manifest stays as it was before Fractile.")
