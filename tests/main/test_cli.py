"""The program ``fractile``: what a person sees of it before any command runs, and how errors look."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fractile.main.cli import COMMANDS, main
from tests.main.process import PROGRAM

HEAVY = ("numpy", "grpc", "uvicorn", "starlette", "httpx2", "cryptography", "yaml")

KUBECONFIG = json.dumps(
    {
        "current-context": "c",
        "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "c", "context": {"cluster": "k"}}],
    }
)


def run(*args: str, code: str = PROGRAM) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=60, check=False)


def ending(*args: str) -> int | str | None:
    """The exit status of the program when it is run in this process."""
    with pytest.raises(SystemExit) as end:
        main(list(args))
    return end.value.code


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_the_help_lists_every_command(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ending(flag) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in COMMANDS)


def test_the_help_is_quick_and_imports_nothing_heavy() -> None:
    code = f"""
import atexit, json, resource, sys
from fractile.main.cli import main
@atexit.register
def report():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    heavy = [m for m in {HEAVY!r} if m in sys.modules]
    print("REPORT" + json.dumps([usage.ru_utime + usage.ru_stime, heavy]))
main(["--help"])
"""
    seconds, heavy = json.loads(run(code=code).stdout.rpartition("REPORT")[2])
    assert heavy == []
    assert seconds < 0.5


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert ending("--version") == 0
    assert capsys.readouterr().out.startswith("fractile 0.")


def test_every_command_exists_and_explains_itself() -> None:
    code = """
from click.testing import CliRunner
from fractile.main.cli import COMMANDS, cli
for name in COMMANDS.keys() - {"kubectl"}:  # that one hands its options on
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0, (name, result.output, result.exception)
    assert "Usage:" in result.output, (name, result.output)
"""
    found = run(code=code)
    assert (found.returncode, found.stderr) == (0, "")


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert ending("inspct") == 2
    assert "No such command 'inspct'" in capsys.readouterr().err


def test_an_unknown_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert ending("control-plane", "--colour") == 2
    assert "No such option" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        pytest.param(
            ["--listen", "nonsense"],
            "fractile: --listen 'nonsense' is not HOST:PORT; write for example 0.0.0.0:8443\n",
            id="listen",
        ),
        pytest.param(
            ["--tls-cert", "cert.pem"],
            "fractile: --tls-cert and --tls-key go together; give both or neither\n",
            id="half of TLS",
        ),
        pytest.param(
            ["--insecure-open-extender", "--client-ca", "ca.pem"],
            "fractile: --client-ca and --insecure-open-extender exclude each other; leave one of them out\n",
            id="closed and open",
        ),
        pytest.param(
            ["--tls-cert", "/nowhere/cert.pem", "--tls-key", "/nowhere/key.pem"],
            "fractile: /nowhere/cert.pem does not exist; give the PEM file of the serving certificate or key\n",
            id="no certificate",
        ),
    ],
)
def test_an_error_of_a_person_is_one_sentence_and_status_1(args: list[str], sentence: str) -> None:
    found = run("control-plane", *args)
    assert (found.returncode, found.stderr) == (1, sentence)


def test_an_extender_that_nobody_said_to_leave_open_is_not_and_the_sentence_says_what_to_do() -> None:
    found = run("control-plane", "--listen", "127.0.0.1:0")
    assert (found.returncode, found.stderr.count("\n")) == (1, 1)
    for needed in (
        "--client-ca FILE",
        "--client-name system:kube-scheduler",
        "install-scheduler",
        "docs/operate/security.md",
    ):
        assert needed in found.stderr
    assert "--insecure-open-extender" in found.stderr


def test_a_missing_kubeconfig_is_one_sentence(tmp_path: Path) -> None:
    found = run(
        *("control-plane", "--listen", "127.0.0.1:0", "--insecure-open-extender"),
        *("--kubeconfig", str(tmp_path / "none")),
    )
    assert found.returncode == 1
    assert found.stderr.startswith("fractile: ")
    assert str(tmp_path / "none") in found.stderr
    assert found.stderr.count("\n") == 1


@pytest.mark.parametrize("pem", [b"", b"nonsense"], ids=["empty", "nonsense"])
def test_a_certificate_that_is_none_is_one_sentence(tmp_path: Path, pem: bytes) -> None:
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_bytes(pem)
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    found = run(
        *("control-plane", "--listen", "127.0.0.1:0", "--kubeconfig", str(tmp_path / "kubeconfig")),
        *("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")),
    )
    assert found.returncode == 1
    assert found.stderr.startswith(f"fractile: {tmp_path / 'cert.pem'} and {tmp_path / 'key.pem'} are not a PEM")
    assert found.stderr.count("\n") == 1


def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        found = run(
            *("control-plane", "--listen", address, "--insecure-open-extender"),
            *("--kubeconfig", str(tmp_path / "kubeconfig")),
        )
    assert found.returncode == 1
    assert found.stderr.splitlines()[-1] == (
        f"fractile: cannot listen on {address}: Address already in use; give another address or port with --listen"
    )
    assert "Traceback" not in found.stderr


def test_debug_shows_the_traceback() -> None:
    found = run("--debug", "control-plane", "--listen", "nonsense")
    assert found.returncode == 1
    assert "Traceback" in found.stderr
    assert "SetupError" in found.stderr


def test_a_bug_is_a_sentence_that_asks_for_a_report() -> None:
    code = "from fractile.main import cli; cli.COMMANDS['up'] = ('no.such.module', ''); cli.main(['up'])"
    found = run(code=code)
    assert found.returncode == 1
    assert found.stderr == (
        "fractile: unexpected ModuleNotFoundError: No module named 'no'; run the command again with --debug, and "
        "report the error\n"
    )


def test_a_reader_that_went_away_is_no_error() -> None:
    code = "import os, sys; os.close(1); from fractile.main.cli import main; main(['--help'])"
    found = run(code=code)
    assert "Traceback" not in found.stderr
