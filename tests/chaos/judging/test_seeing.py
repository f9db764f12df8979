"""What is read of the books of others is in the form in which they write them."""

from pathlib import Path

import pytest

from fractile.debug.figures import figures
from fractile.ledger.ledger import Ledger
from fractile.metrics.control_plane import page
from fractile.model.units import ContainerName, NodeName, PodUID
from fractile.region import directory
from fractile.region.page import CardLimits, ContainerLimits
from fractile.watch.waiting_pods import WaitingPods
from tests import builders
from tests.chaos.judging.seeing import report_of, token_of
from tests.chaos.judging.snapshot import LedgerReport, Token


@pytest.mark.parametrize("openmetrics", [True, False])
def test_the_ledgers_report_is_read_from_the_metrics_page(openmetrics: bool) -> None:
    ledger = builders.cluster({"n1": [builders.card("n1", 0)]})
    for i in range(3):
        assert ledger.observe(PodUID(f"bound-{i}"), builders.on_card(0, 4000)) is None
    assert ledger.assume(PodUID("assumed"), builders.on_card(0, 4000)) is None
    assert ledger.observe(PodUID("doubted"), builders.on_card(0, 4000)) is not None
    made = page(figures(ledger, WaitingPods(), ready=True, quota_problem=""))
    assert report_of(made.render(openmetrics=openmetrics).decode()) == LedgerReport(3, 1, 1)


def test_a_page_of_nobody_is_no_report() -> None:
    assert report_of("") is None


def test_an_empty_ledger_has_a_report() -> None:
    made = page(figures(Ledger(lambda: 0.0), WaitingPods(), ready=True, quota_problem=""))
    assert report_of(made.render(openmetrics=False).decode()) == LedgerReport(0, 0, 0)


def test_a_directory_says_whose_it_is_once_it_is_granted(tmp_path: Path) -> None:
    directory.prepare(tmp_path)
    assert token_of(NodeName("n1"), tmp_path) == Token("n1", tmp_path.name)
    cards = (CardLimits(uuid=builders.card_uuid("n1", 0), memory=4000 * 2**20),)
    uid, main = PodUID("uid-p"), ContainerName("main")
    directory.put(tmp_path, ContainerLimits(pod_uid=uid, namespace="default", pod="p", container=main, cards=cards))
    assert token_of(NodeName("n1"), tmp_path) == Token(
        "n1", tmp_path.name, "uid-p", "main", ((cards[0].uuid, 4000 * 2**20),)
    )
