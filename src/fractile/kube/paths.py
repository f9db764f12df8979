"""The URL paths of the objects that we use.

Names also come from extender bodies, so each is checked here: a name can never leave its place in the path.
"""

import re

from fractile.errors import WireError
from fractile.wire.fractile import extended_resource as card_api
from fractile.wire.fractile import resource_class as class_api

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)


def pods(namespace: str = "") -> str:
    """The pods of a namespace; of all namespaces when it is empty."""
    return f"{_core(namespace)}/pods" if namespace else "/api/v1/pods"


def pod(namespace: str, name: str) -> str:
    return f"{_core(namespace)}/pods/{_checked(name)}"


def binding(namespace: str, name: str) -> str:
    return f"{pod(namespace, name)}/binding"


def nodes() -> str:
    return "/api/v1/nodes"


def node(name: str) -> str:
    return f"/api/v1/nodes/{_checked(name)}"


def node_page(name: str, port: int, page: str, *, scheme: str = "") -> str:
    """A page of a program on the node, through the API server; ``scheme`` "https" for one that answers over TLS, whose
    certificate the API server does not check."""
    return f"/api/v1/nodes/{scheme + ':' if scheme else ''}{_checked(name)}:{port}/proxy{page}"


def runtime_classes() -> str:
    return "/apis/node.k8s.io/v1/runtimeclasses"


def runtime_class(name: str) -> str:
    return f"{runtime_classes()}/{name}"


def namespaces() -> str:
    return "/api/v1/namespaces"


def namespace(name: str) -> str:
    return _core(name)


def secret(namespace: str, name: str) -> str:
    return f"{_core(namespace)}/secrets/{_checked(name)}"


def events(namespace: str) -> str:
    return f"{_core(namespace)}/events"


def event(namespace: str, name: str) -> str:
    return f"{events(namespace)}/{_checked(name)}"


def config_maps(namespace: str) -> str:
    return f"{_core(namespace)}/configmaps"


def config_map(namespace: str, name: str) -> str:
    return f"{config_maps(namespace)}/{_checked(name)}"


def resource_quotas(namespace: str = "") -> str:
    """The resource quotas of a namespace; of all namespaces when it is empty."""
    return f"{_core(namespace)}/resourcequotas" if namespace else "/api/v1/resourcequotas"


def disruption_budgets() -> str:
    """The PodDisruptionBudgets of all namespaces."""
    return "/apis/policy/v1/poddisruptionbudgets"


def leases(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{_checked(namespace)}/leases"


def lease(namespace: str, name: str) -> str:
    return f"{leases(namespace)}/{_checked(name)}"


def resource_claim(namespace: str, name: str, version: str) -> str:
    """A claim of dynamic resource allocation; ``version`` of its API, such as ``v1``."""
    return f"/apis/resource.k8s.io/{version}/namespaces/{_checked(namespace)}/resourceclaims/{_checked(name)}"


def extended_resources() -> str:
    return f"/apis/{card_api.API_VERSION}/{card_api.PLURAL}"


def extended_resource(name: str) -> str:
    """``name`` is the object's name (``wire.fractile.extended_resource.object_name``), not the card's UUID."""
    return f"{extended_resources()}/{_checked(name)}"


def resource_classes() -> str:
    return f"/apis/{card_api.API_VERSION}/{class_api.PLURAL}"


def resource_class(name: str) -> str:
    return f"{resource_classes()}/{_checked(name)}"


def _core(namespace: str) -> str:
    return f"/api/v1/namespaces/{_checked(namespace)}"


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise WireError(f"{name[:80]!r} is not a Kubernetes name")
    return name
