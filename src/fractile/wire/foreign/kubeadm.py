"""The kubeadm configuration with which kube-scheduler reads a file of ours, for every version from 1.20 to 1.36.

``extraArgs`` is a map up to v1beta3 and a list from v1beta4, which came with kubeadm 1.31; v1beta3 came with 1.22.
Source: the reference pages of kubeadm's configuration, one for each version of it.
"""

from typing import Any

FOLDER = "/etc/kubernetes/fractile"  # on every control-plane node
_FIRST_V1BETA3 = 22
_FIRST_V1BETA4 = 31


def api_version(minor: int) -> str:
    """The API version of ``ClusterConfiguration``."""
    firsts = {_FIRST_V1BETA4: "v1beta4", _FIRST_V1BETA3: "v1beta3", 0: "v1beta2"}
    return "kubeadm.k8s.io/" + next(version for first, version in firsts.items() if minor >= first)


def document(minor: int, flag: str, file: str) -> dict[str, Any]:
    """The ``ClusterConfiguration`` with kube-scheduler's flag ``--flag=file`` and the folder mounted into its pod."""
    mount = {"name": "fractile", "hostPath": FOLDER, "mountPath": FOLDER, "readOnly": True, "pathType": "Directory"}
    arguments: Any = [{"name": flag, "value": file}] if minor >= _FIRST_V1BETA4 else {flag: file}
    return {
        "apiVersion": api_version(minor),
        "kind": "ClusterConfiguration",
        "scheduler": {"extraArgs": arguments, "extraVolumes": [mount]},
    }
