"""Whether kube-scheduler would ask a proxy for its extender."""

import pytest

from fractile.wire.foreign.proxy_variables import proxy

URL = "https://10.96.0.77/scheduler"
NAMED = "https://fractile.example:8443/scheduler"


@pytest.mark.parametrize(
    ("environment", "url", "found"),
    [
        ({}, URL, ""),
        ({"HTTPS_PROXY": "http://p:1"}, URL, "http://p:1"),
        ({"https_proxy": "http://p:1"}, URL, "http://p:1"),
        ({"HTTP_PROXY": "http://p:1"}, URL, ""),
        ({"HTTP_PROXY": "http://p:1"}, "http://10.96.0.77/s", "http://p:1"),
        ({"HTTPS_PROXY": "http://p:1"}, "https://127.0.0.1:8443/s", ""),
        ({"HTTPS_PROXY": "http://p:1"}, "https://localhost/s", ""),
        ({"HTTPS_PROXY": "p", "NO_PROXY": "10.96.0.77"}, URL, ""),
        ({"HTTPS_PROXY": "p", "NO_PROXY": "a.b, 10.96.0.0/12"}, URL, ""),
        ({"HTTPS_PROXY": "p", "no_proxy": "10.96.0.78,10.97.0.0/16"}, URL, "p"),
        ({"HTTPS_PROXY": "p", "NO_PROXY": "*"}, URL, ""),
        ({"HTTPS_PROXY": "p", "NO_PROXY": "example"}, NAMED, ""),
        ({"HTTPS_PROXY": "p", "NO_PROXY": ".example"}, NAMED, ""),
        ({"HTTPS_PROXY": "p", "NO_PROXY": "fractile.example:8443"}, NAMED, ""),
        ({"HTTPS_PROXY": "p", "NO_PROXY": "tile.example"}, NAMED, "p"),
    ],
)
def test_the_proxy_of_the_scheme_is_asked_unless_it_is_to_be_passed_by(
    environment: dict[str, str], url: str, found: str
) -> None:
    assert proxy(environment, url) == found
