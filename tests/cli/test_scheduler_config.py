"""``fractile scheduler-config`` as a person runs it."""

import pytest
import yaml
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from fractile.cli.scheduler_config import command
from fractile.dialects import table
from fractile.dialects.dialect import ResourceKind
from fractile.errors import WireError

FILES = ("--tls-ca", "/c", "--tls-cert", "/p", "--tls-key", "/k")


def run(*args: str) -> Result:
    return CliRunner().invoke(command, args)


@pytest.mark.parametrize("minor", range(20, 37))
def test_every_version_gets_yaml_with_the_flag_that_it_goes_by_in_front(minor: int) -> None:
    text = run("--kubernetes", f"1.{minor}").stdout

    found = yaml.safe_load(text)
    assert found["kind"] == ("Policy" if minor <= 22 else "KubeSchedulerConfiguration")
    flag = "--policy-config-file" if minor <= 22 else "--config"
    assert f"{flag}=/etc/kubernetes/fractile/scheduler.yaml" in text.splitlines()[0]
    installed = yaml.safe_load(run("--kubernetes", f"1.{minor}", "--install", "kubeadm").stdout)
    assert flag.removeprefix("--") in str(installed["scheduler"]["extraArgs"])


def test_the_extender_alone_asks_kube_scheduler_for_no_strategy() -> None:
    url = "http://fractile:8443/scheduler"
    found = yaml.safe_load(run("--kubernetes", "1.30", "--extender", url).stdout)

    assert found["profiles"] == [{"schedulerName": "default-scheduler"}]
    (extender,) = found["extenders"]
    assert extender["urlPrefix"] == url
    hidden = {r["name"]: r.get("ignoredByScheduler", False) for r in extender["managedResources"]}
    assert hidden == {name: kind is ResourceKind.AMOUNT for name, kind in table.managed().items()}


def test_bin_packing_and_the_extender_go_together() -> None:
    found = yaml.safe_load(
        run("--kubernetes", "1.36", "--policy", "most-allocated", "--extender", "https://f/s", *FILES).stdout
    )

    assert found["profiles"][0]["pluginConfig"][0]["args"]["scoringStrategy"]["type"] == "MostAllocated"
    assert found["extenders"][0]["tlsConfig"] == {"caFile": "/c", "certFile": "/p", "keyFile": "/k"}


def test_no_certificate_is_shown_to_an_open_extender() -> None:
    files = ("--tls-ca", "/c", "--insecure-open-extender")
    found = yaml.safe_load(run("--kubernetes", "1.36", "--extender", "https://f/s", *files).stdout)
    assert found["extenders"][0]["tlsConfig"] == {"caFile": "/c"}


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--kubernetes", "1.19"], "1.20 to 1.36"),
        (["--kubernetes", "1.36", "--shape", "1"], "--shape"),
        (["--kubernetes", "1.36", "--resources", "cpu=0"], "--resources"),
        (["--kubernetes", "1.36", "--policy", "fractile"], "needs --extender"),
        (["--kubernetes", "1.36", "--extender", "fractile:8443"], "begins with http"),
        (["--kubernetes", "1.36", "--extender", "https:///x"], "begins with http"),
        (["--kubernetes", "1.36", "--profile", ""], "--profile"),
        (["--kubernetes", "1.36", "--profile", "a b"], "--profile"),
        (["--kubernetes", "1.36", "--extender", "https://f/s"], "needs --tls-ca"),
        (["--kubernetes", "1.36", "--extender", "http://f/s", "--tls-ca", "/c"], "need an extender with https"),
        (
            ["--kubernetes", "1.36", "--extender", "https://f/s", "--tls-ca", "/c", "--tls-cert", "/x"],
            "belong together",
        ),
        (
            ["--kubernetes", "1.36", "--extender", "https://f/s", *FILES, "--tls-insecure"],
            "exclude each other",
        ),
        (["--kubernetes", "1.36", "--extender", "https://f/s", "--tls-ca", "/c"], "give --tls-cert FILE and --tls-key"),
        (
            ["--kubernetes", "1.36", "--extender", "https://f/s", *FILES, "--insecure-open-extender"],
            "--tls-cert and --insecure-open-extender exclude each other",
        ),
    ],
)
def test_a_wrong_command_line_is_refused_with_a_sentence(args: list[str], told: str) -> None:
    result = run(*args)

    assert result.exit_code == 2
    assert told in result.stderr


def test_versions_are_completed() -> None:
    found = ShellComplete(command, {}, "scheduler-config", "_X").get_completions(["--kubernetes"], "1.3")

    assert [item.value for item in found] == [f"1.{minor}" for minor in range(30, 37)]


def test_what_the_form_cannot_say_is_refused_also_when_only_kubeadm_is_asked() -> None:
    result = run("--kubernetes", "1.24", "--form", "policy", "--install", "kubeadm")

    assert isinstance(result.exception, WireError)
    assert result.stdout == ""
