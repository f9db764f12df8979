"""A configuration of kube-scheduler as YAML, preceded by instructions in comments."""

from typing import Any

from fractile.wire.foreign import kubeadm as wire
from fractile.wire.kubernetes import scheduler_config
from fractile.wire.kubernetes.scheduler_config import SchedulerConfigOptions

_FLAGS = {"policy": "policy-config-file", "config": "config"}


def configuration(wish: SchedulerConfigOptions) -> str:
    """The configuration file."""
    return _comments(_steps(wish)) + _yaml(scheduler_config.document(wish))


def kubeadm(wish: SchedulerConfigOptions) -> str:
    """The addition to kubeadm's ``ClusterConfiguration``."""
    steps = [
        f"kubeadm {wire.api_version(wish.minor).removeprefix('kubeadm.k8s.io/')}, Kubernetes 1.{wish.minor}.",
        f"1. Write what this command prints without --install to {_file(wish)} on every control-plane node.",
        "2. New cluster: merge this into the file of `kubeadm init --config FILE`.",
        "   Present one: `kubectl -n kube-system edit configmap kubeadm-config`, merge it into the configuration "
        "there,",
        "   save that as FILE too, and on every control-plane node run",
        "   `kubeadm init phase control-plane scheduler --config FILE`; kubelet restarts kube-scheduler.",
        "3. Check that it runs: `kubectl -n kube-system get pods -l component=kube-scheduler`. If not, its log says "
        "why;",
        "   take the flag out of /etc/kubernetes/manifests/kube-scheduler.yaml and it runs as before.",
    ]
    return _comments(steps) + _yaml(wire.document(wish.minor, _FLAGS[wish.form], _file(wish)))


def _steps(wish: SchedulerConfigOptions) -> list[str]:
    kind = "Policy file" if wish.form == "policy" else "KubeSchedulerConfiguration"
    lines = [f"{kind} for kube-scheduler 1.{wish.minor}: --{_FLAGS[wish.form]}={_file(wish)}"]
    if wish.form == "policy" and wish.minor == scheduler_config.LAST_WITH_POLICY:
        lines.append(
            "Not together with --v=2 or higher: 1.22 then ends while it logs what it read (`no kind ... v1beta2`)."
        )
    if wish.form == "config":
        lines.append("With --config, kube-scheduler ignores most of its other flags: merge what you set with them.")
    if wish.profile != scheduler_config.DEFAULT_PROFILE:
        lines.append(f"For pods with spec.schedulerName: {wish.profile}. The extender, if there is one, serves all.")
    return [*lines, "On kubeadm: the same command with --install kubeadm."]


def _file(wish: SchedulerConfigOptions) -> str:
    return f"{wire.FOLDER}/scheduler.yaml"


def _comments(lines: list[str]) -> str:
    return "".join(f"# {line}\n" for line in lines)


def _yaml(document: dict[str, Any]) -> str:
    import yaml  # late: --help should not wait for it

    return yaml.safe_dump(document, sort_keys=False)
