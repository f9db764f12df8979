"""The manifests on the pages for users, shown to a real API server with Fractile's webhook and policies."""

from typing import Any

import pytest
import yaml

from fractile.lab.cluster.local import LocalCluster
from tests.packaging.test_page_examples import manifests


@pytest.mark.parametrize("document", list(manifests()))
def test_the_api_server_takes_the_manifest(document: dict[str, Any], cluster: LocalCluster) -> None:
    said = cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(document))
    assert "dry run" in said
