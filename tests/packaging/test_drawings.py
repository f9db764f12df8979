import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _drawings() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("drawings", ROOT / "hack" / "drawings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: draw().svg() for name, draw in module.DRAWINGS.items()}


@pytest.mark.parametrize(("name", "drawn"), _drawings().items())
def test_a_picture_is_what_its_source_draws(name: str, drawn: str) -> None:
    assert (ROOT / "docs" / "pictures" / name).read_text() == drawn, "run `make drawings`"
