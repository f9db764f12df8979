"""Decide whether a program with these environment variables uses a proxy for an address, as Go's http package does.

kubeadm copies its own proxy variables into the pods of the control plane (app/util/env.go), and kube-scheduler obeys
them when it calls extenders (pkg/scheduler/extender.go): an extender that NO_PROXY does not name is called through the
proxy. The rules are those of golang.org/x/net/http/httpproxy.
"""

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit


def proxy(environment: Mapping[str, str], url: str) -> str:
    """The proxy's address; empty for a direct connection."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    found = _value(environment, f"{parts.scheme}_proxy")
    if not found or host == "localhost" or _is_loopback(host):
        return ""
    without = [entry.strip().lower() for entry in _value(environment, "no_proxy").split(",")]
    return "" if any(_matches(entry, host) for entry in without if entry) else found


def _value(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name.upper(), "") or environment.get(name, "")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _matches(entry: str, host: str) -> bool:
    if entry == "*":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        name = entry.removeprefix("*").rpartition(":")[0] or entry.removeprefix("*")
        return host == name or host.endswith(f".{name.removeprefix('.')}")
    try:
        return address in ip_network(entry, strict=False)
    except ValueError:
        return False
