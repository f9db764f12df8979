"""The output of ``install-scheduler``."""

import difflib

from fractile.kubeadm import files
from fractile.kubeadm.files import NodeRoot
from fractile.kubeadm.health import SchedulerHealth
from fractile.kubeadm.install import InstallOutcome, ManifestChange

_OTHERS = (
    "Each control-plane node has its own kube-scheduler, and one of these leads: run the same command with the same\n"
    "files on every other control-plane node (kubectl get nodes -l node-role.kubernetes.io/control-plane).\n"
)
_KUBEADM = (
    "When kubeadm upgrades the cluster, it writes the manifest again. Run this command again then, or configure "
    "kubeadm too:\nfractile scheduler-config --install kubeadm.\n"
)


def difference(place: NodeRoot, change: ManifestChange) -> str:
    """A unified diff of all files except certificates."""
    manifest = str(place.manifest)
    parts = [_diff(manifest, change.was.text, manifest, change.will.text)]
    was = place.at(change.was.ours) if change.was.ours else None
    before = was.read_text(errors="replace") if was and was.is_file() else ""
    if change.configuration and before != change.configuration:
        names = (str(was) if before else "/dev/null", str(place.at(change.will.ours)))
        parts.append(_diff(names[0], before, names[1], change.configuration))
    parts += [
        f"# {place.at(path)}: would be written, {len(file.data)} bytes\n"
        for path, file in files.missing(place, change.files).items()
        if path != change.will.ours
    ]
    return "".join(parts) + "# Nothing was changed.\n"


def _diff(was: str, before: str, name: str, after: str) -> str:
    rows = difflib.unified_diff(before.splitlines(True), after.splitlines(True), was, name)
    return "".join(row if row.endswith("\n") else f"{row}\n\\ No newline at end of file\n" for row in rows)


def unreachable(url: str, reason: str) -> str:
    return (
        f"Warning: kube-scheduler cannot reach {url} from this node: {reason}. Pods that ask for cards will wait until "
        "it can. It does not use the cluster's DNS: give it an address, or a name that the node can resolve."
    )


def waiting(change: ManifestChange, limit: float) -> str:
    return f"Waiting until kube-scheduler runs with {_what(change)} and is healthy, {limit:g} s at most ..."


def interrupted() -> str:
    return (
        "Interrupted: the new manifest stays, and kube-scheduler's health was not checked. --undo restores the old "
        "manifest."
    )


def done(place: NodeRoot, change: ManifestChange, outcome: InstallOutcome) -> str:
    healthy = (
        f", and is healthy after {outcome.health.seconds:.0f} s" if outcome.health else "; its health was not checked"
    )
    if not change.files:
        return (
            f"{place.manifest} is as it was before Fractile{healthy}.\nDo the same on every other control-plane node.\n"
        )
    return (
        f"kube-scheduler of this node reads {change.will.ours}{healthy}.\nThe manifest as it was: {place.backup}; "
        f"`fractile install-scheduler --undo` restores it.\n{_OTHERS}{_KUBEADM}"
    )


def failed(change: ManifestChange, outcome: InstallOutcome) -> str:
    assert outcome.health is not None
    told = f"kube-scheduler was not healthy with {_what(change)} within {outcome.health.seconds:.0f} s: "
    told += outcome.health.reason + "".join(f"\n  {line}" for line in outcome.health.log)
    if outcome.back is None:
        return f"{told}\nThe manifest stays as it was before Fractile."
    return f"{told}\nThe manifest is again as it was, and kube-scheduler {_state(outcome.back)}."


def _state(health: SchedulerHealth) -> str:
    return f"is not healthy: {health.reason}" if health.reason else "is healthy again"


def _what(change: ManifestChange) -> str:
    return change.will.ours or "its own flags alone"
