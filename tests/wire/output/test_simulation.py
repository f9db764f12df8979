"""What ``fractile simulate -o json`` prints."""

import json
from pathlib import Path

from fractile.wire.output.simulation import (
    SCHEMA,
    Paired,
    PolicyReport,
    RunFigures,
    SeedReport,
    Simulation,
    decode,
    encode,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "simulation.json"

REPORT = Simulation(
    mode="fill",
    nodes=1213,
    gpus=6212,
    tune=1.3,
    load=None,
    policies=(
        PolicyReport(
            "bestfit",
            mean=RunFigures(allocation_at_100=92.86, failed_pods=2675.0),
            stdev=RunFigures(),
            seeds=(SeedReport(42, RunFigures(allocation_at_100=92.86, failed_pods=2675)),),
        ),
    ),
    paired=(Paired("bestfit", "random", "allocation_at_100", mean=6.5, stdev=None, better=1, seeds=1),),
    orders="published",
    sample="adaptive",
)


def test_the_golden_file_is_what_is_written_and_is_read_back() -> None:
    assert encode(REPORT) + "\n" == GOLDEN.read_text()
    assert decode(GOLDEN.read_text()) == REPORT


def test_a_document_from_before_orders_and_samples_were_told_is_read() -> None:
    body = json.loads(GOLDEN.read_text())
    del body["orders"], body["sample"]

    assert decode(json.dumps(body)).orders is None


def test_numbers_have_four_digits_at_most() -> None:
    rough = Simulation(
        "fill", 1, 1, 1.3, None, (PolicyReport("p", RunFigures(allocation=1 / 3), RunFigures(), ()),), ()
    )

    assert decode(encode(rough)).policies[0].mean.allocation == 0.3333
    assert decode(encode(rough)).schema == SCHEMA
