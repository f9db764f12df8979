"""What the API server says of a bearer, asked as the bearer and remembered for a moment."""

from pathlib import Path

import pytest

from fractile.kube.credentials import Credentials, load
from fractile.kube.review import KEPT, May, Reviewer
from fractile.kube.tokens import StaticToken
from tests.builders import Clock
from tests.fakes.apiserver import FakeApiServer, Fault

PATH = "/debug/state"


@pytest.mark.parametrize(
    ("token", "said"), [("good", May.YES), ("weak", May.NO), ("forged", May.STRANGER)], ids=["may", "may not", "nobody"]
)
async def test_the_api_server_decides(token: str, said: May) -> None:
    async with FakeApiServer() as server:
        server.reviews = {"good": True, "weak": False}
        assert await Reviewer(server.credentials()).may(token, path=PATH) is said


async def test_no_answer_is_no_yes() -> None:
    async with FakeApiServer() as server:
        server.reviews = {"good": True}
        server.inject(Fault(method="POST", status=500))
        assert await Reviewer(server.credentials()).may("good", path=PATH) is May.UNKNOWN
        server.inject(Fault(method="POST", status=200, body=b"<html>"))
        assert await Reviewer(server.credentials()).may("good", path=PATH) is May.UNKNOWN
    assert await Reviewer(Credentials("http://127.0.0.1:1")).may("good", path=PATH) is May.UNKNOWN


async def test_it_is_asked_as_the_bearer_and_not_as_ourselves() -> None:
    async with FakeApiServer() as server:
        server.reviews = {"ours": True, "theirs": False}
        reviewer = Reviewer(server.credentials(token=StaticToken("ours")))
        assert await reviewer.may("theirs", path=PATH) is May.NO


async def test_an_answer_is_kept_for_ten_seconds_and_for_that_token_alone() -> None:
    clock = Clock()
    async with FakeApiServer() as server:
        server.reviews = {"good": True, "weak": False}
        reviewer = Reviewer(server.credentials(), clock=clock)
        for _ in range(3):
            assert await reviewer.may("good", path=PATH) is May.YES
        assert len(server.requests) == 1
        assert await reviewer.may("weak", path=PATH) is May.NO
        server.reviews = {"good": False}
        assert await reviewer.may("good", path=PATH) is May.YES
        clock.now += KEPT + 1
        assert await reviewer.may("good", path=PATH) is May.NO


async def test_that_the_api_server_is_away_is_not_kept() -> None:
    async with FakeApiServer() as server:
        server.reviews = {"good": True}
        reviewer = Reviewer(server.credentials())
        server.inject(Fault(method="POST", status=503))
        assert await reviewer.may("good", path=PATH) is May.UNKNOWN
        assert await reviewer.may("good", path=PATH) is May.YES


def test_a_certificate_of_a_kubeconfig_is_not_shown_beside_the_token_of_a_caller(tmp_path: Path) -> None:
    """Else the API server would answer for us, who may do much."""
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    ours = authority.issue_cert("fractile")
    ca, pair = tmp_path / "ca.pem", tmp_path / "pair.pem"
    authority.cert_pem.write_to_path(ca)
    ours.private_key_and_cert_chain_pem.write_to_path(pair)
    config = tmp_path / "config"
    config.write_text(
        f"""
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "https://127.0.0.1:1", certificate-authority: {ca}}}}}]
users: [{{name: u, user: {{client-certificate: {pair}, client-key: {pair}}}}}]
"""
    )
    access = load(config)
    bearer = access.bearing(StaticToken("theirs"))
    assert bearer.tls is not None
    assert bearer.tls is not access.tls
    assert bearer.tls.get_ca_certs() == access.tls.get_ca_certs() if access.tls else False
