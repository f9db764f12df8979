"""The manifests that kubeadm writes, changed and changed back; and those that it does not write, refused.

The golden files of 1.36 are what the real kubeadm 1.36.3 wrote; the others say what the sources of kubeadm of these
releases put together, where 1.31 is taken to be as 1.30.
"""

import difflib

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fractile.errors import WireError
from fractile.wire.foreign import static_pod
from fractile.wire.foreign.kubeadm import FOLDER
from tests.wire.golden_files import golden

MINORS = (20, 22, 24, 28, 31, 33, 36)
FILE = f"{FOLDER}/scheduler-0123456789ab.yaml"


def manifest(minor: int) -> str:
    return golden(f"kubeadm-kube-scheduler-1.{minor}.yaml").decode()


PLAIN = manifest(36)


@pytest.mark.parametrize("minor", MINORS)
def test_what_kubeadm_writes_is_read(minor: int) -> None:
    found = static_pod.read(manifest(minor))

    assert found.command[0] == "kube-scheduler"
    assert f":v1.{minor}." in found.image
    assert (found.host, found.port, found.user, found.ours) == ("127.0.0.1", 10259, 0, "")
    assert found.kubeconfig == "/etc/kubernetes/scheduler.conf"


@pytest.mark.parametrize("minor", MINORS)
def test_the_flag_the_mount_and_the_volume_are_all_that_is_added(minor: int) -> None:
    text = manifest(minor)
    changed = static_pod.with_flag(text, "config", FILE)

    differences = list(difflib.ndiff(text.splitlines(), changed.splitlines()))
    assert [line[2:] for line in differences if line.startswith("+ ")] == [
        f"    - --config={FILE}",
        f"    - mountPath: {FOLDER}",
        "      name: fractile",
        "      readOnly: true",
        "  - hostPath:",
        f"      path: {FOLDER}",
        "      type: Directory",
        "    name: fractile",
    ]
    assert not any(line.startswith("- ") for line in differences)
    assert static_pod.read(changed).ours == FILE


@pytest.mark.parametrize("minor", MINORS)
def test_what_was_added_is_taken_away_to_the_byte(minor: int) -> None:
    text = manifest(minor)

    assert static_pod.without(static_pod.with_flag(text, "policy-config-file", FILE)) == text


def test_another_file_takes_the_place_of_the_first_one() -> None:
    once = static_pod.with_flag(PLAIN, "config", FILE)
    other = f"{FOLDER}/scheduler-ffffffffffff.yaml"

    assert static_pod.with_flag(once, "config", FILE) == once
    assert static_pod.with_flag(once, "config", other) == static_pod.with_flag(PLAIN, "config", other)


def test_what_kubeadm_was_told_about_our_folder_is_ours_too() -> None:
    """As the real kubeadm 1.36.3 writes it when it is told what `scheduler-config --install kubeadm` prints."""
    text = golden("kubeadm-kube-scheduler-1.36-told.yaml").decode()

    assert static_pod.read(text).ours == f"{FOLDER}/scheduler.yaml"
    assert static_pod.without(text) == PLAIN


def test_what_kubeadm_is_told_besides_is_read_and_stays() -> None:
    """Flags, volumes, variables, another registry, all addresses: as the real kubeadm 1.36.3 writes them."""
    text = golden("kubeadm-kube-scheduler-1.36-extras.yaml").decode()

    found = static_pod.read(text)

    assert (found.host, found.image) == ("127.0.0.1", "host:5000/mirror/kube-scheduler:v1.36.3")
    assert found.environment == {"A": "b", "HTTPS_PROXY": "http://p:1"}
    assert static_pod.flag(found.command, "profiling") == "false"
    assert static_pod.without(static_pod.with_flag(text, "config", FILE)) == text


flags = st.dictionaries(
    st.sampled_from(["v", "profiling", "feature-gates", "kube-api-qps", "tls-cert-file"]),
    st.sampled_from(["2", "false", "A=true,B=false", "/etc/x.pem", "'quoted'"]),
)
comments = st.lists(st.tuples(st.integers(0, 80), st.sampled_from(["# ours", "", "    # a: b", "  # - x"])), max_size=6)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MINORS), flags, st.integers(0, 3), comments, st.booleans(), st.booleans())
def test_undoing_gives_back_every_byte_of_any_manifest_that_is_accepted(
    minor: int,
    told: dict[str, str],
    volumes: int,
    notes: list[tuple[int, str]],
    indented: bool,
    last: bool,
) -> None:
    pod = yaml.safe_load(manifest(minor))
    container = pod["spec"]["containers"][0]
    container["command"] += [f"--{name}={value}" for name, value in told.items()]
    for i in range(volumes):
        container["volumeMounts"].append({"mountPath": f"/m/{i}", "name": f"m{i}"})
        pod["spec"]["volumes"].insert(0, {"name": f"m{i}", "emptyDir": {}})
    rows = _dump(pod, indented).splitlines()
    for at, note in notes:
        rows.insert(min(at, len(rows)), note)
    text = "\n".join(rows) + ("\n" if last else "")

    changed = static_pod.with_flag(text, "config", FILE)

    assert static_pod.read(changed).ours == FILE
    assert static_pod.without(changed) == text


class _Indented(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _dump(pod: object, indented: bool) -> str:
    return yaml.dump(pod, Dumper=_Indented if indented else yaml.SafeDumper)


def _without_line(text: str, line: str) -> str:
    assert line in text
    return text.replace(line, "")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not one YAML object"),
        ("<html><body>502 Bad Gateway</body></html>", "not one YAML object"),
        ("a: [1", "not one YAML object"),
        ("[" * 5000, "not one YAML object"),
        (PLAIN + "---\n" + PLAIN, "not one YAML object"),
        (PLAIN.replace("\n", "\r\n"), "carriage returns"),
        (PLAIN.replace("kind: Pod", "kind: Deployment"), "not a v1 Pod"),
        (PLAIN.replace("  name: kube-scheduler\n  namespace", "  name: mine\n  namespace"), "not the pod"),
        (_without_line(PLAIN, "    tier: control-plane\n"), "lacks the labels"),
        (PLAIN.replace("  hostNetwork", "  - name: second\n    image: x\n  hostNetwork"), "exactly one container"),
        (PLAIN.replace("  hostNetwork", "  initContainers: [{name: a}]\n  hostNetwork"), "init containers"),
        (PLAIN.replace("hostNetwork: true", "hostNetwork: false"), "network of its node"),
        (PLAIN.replace("    name: kube-scheduler\n    ports", "    name: x\n    ports"), "not named kube-scheduler"),
        (PLAIN.replace("    - kube-scheduler\n", "    - sh\n    - -c\n    - kube-scheduler\n"), "with its flags"),
        (PLAIN.replace("    image:", "    args: [--v=2]\n    image:"), "with its flags"),
        (PLAIN.replace("--leader-elect=true", "--leader-elect"), "--flag=value"),
        (PLAIN.replace("--leader-elect=true", "--secure-port=0"), "not a port"),
        (PLAIN.replace("    - --kubeconfig=/etc/kubernetes/scheduler.conf\n", ""), "no --kubeconfig"),
        (PLAIN.replace("livenessProbe", "livenessprobe"), "liveness"),
        (PLAIN.replace("scheme: HTTPS", "scheme: HTTP"), "use HTTPS"),
        (PLAIN.replace("name: kubeconfig", "name: fractile"), "volume named fractile"),
        (PLAIN.replace("--leader-elect=true", f"--config={FILE}"), "is not mounted"),
        (PLAIN.replace("status: {}", "kind: Pod\nstatus: {}"), "appears twice"),
        (PLAIN.replace("labels:", "labels: &a").replace("status: {}", "status: *a"), "a YAML alias"),
        (PLAIN.replace("--leader-elect=true", "--config=/etc/mine.yaml"), "already reads another configuration"),
        (
            PLAIN.replace("--leader-elect=true", "--policy-config-file=/etc/p.json"),
            "already reads another configuration",
        ),
    ],
)
def test_what_kubeadm_does_not_write_is_refused_with_what_is_strange(text: str, told: str) -> None:
    with pytest.raises(WireError) as refused:
        static_pod.read(text)

    assert told in str(refused.value)
    assert "nothing was changed" in str(refused.value)


def test_a_manifest_on_few_lines_means_the_same_but_cannot_be_changed_by_lines() -> None:
    text = yaml.safe_dump(yaml.safe_load(PLAIN), default_flow_style=True)
    static_pod.read(text)

    with pytest.raises(WireError, match="line by line"):
        static_pod.with_flag(text, "config", FILE)


def test_a_scheduler_that_is_not_root_is_seen() -> None:
    text = PLAIN.replace("  securityContext:\n", "  securityContext:\n    runAsGroup: 995\n    runAsUser: 996\n")

    found = static_pod.read(text)

    assert (found.user, found.group) == (996, 995)


def test_a_scheduler_that_serves_on_all_addresses_is_asked_on_the_loopback_one() -> None:
    text = PLAIN.replace("        host: 127.0.0.1\n", "").replace("--bind-address=127.0.0.1", "--bind-address=0.0.0.0")

    assert static_pod.read(text).host == "127.0.0.1"


@settings(deadline=None)
@given(st.text(max_size=200) | st.integers(0, len(PLAIN)).map(lambda n: PLAIN[:n]))
def test_any_text_is_read_or_refused_in_a_short_sentence(text: str) -> None:
    assert len(_read(text)) < 500


def _read(text: str) -> str:
    try:
        return static_pod.read(text).image
    except WireError as e:
        return str(e)
