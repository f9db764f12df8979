"""Paths: a name from outside never leaves its place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.errors import WireError
from fractile.kube import paths


def test_the_paths_are_those_of_the_api() -> None:
    assert paths.pods() == "/api/v1/pods"
    assert paths.pods("default") == "/api/v1/namespaces/default/pods"
    assert paths.binding("default", "p-0.x") == "/api/v1/namespaces/default/pods/p-0.x/binding"
    assert paths.event("default", "p.1") == "/api/v1/namespaces/default/events/p.1"
    assert paths.lease("kube-system", "l") == "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/l"
    assert paths.extended_resource("gpu-1") == "/apis/fractile.dev/v1alpha1/extendedresources/gpu-1"


@pytest.mark.parametrize("name", ["", ".", "..", "../nodes", "a/b", "A", "a\n", "a?x=1", "a#", "a%2f", "ä", "a" * 254])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(WireError, match="is not a Kubernetes name"):
        paths.pod("default", name)


@given(st.text())
def test_any_text_is_one_segment_or_refused(name: str) -> None:
    try:
        path = paths.node(name)
    except WireError:
        return
    assert path.split("/") == ["", "api", "v1", "nodes", name]
    assert name not in (".", "..")
