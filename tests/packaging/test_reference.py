"""The generated pages of docs/reference say what the code says."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def _source() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "hack" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES: dict[str, str] = dict(_source().pages())


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    assert (ROOT / "docs" / "reference" / name).read_text() == PAGES[name], "run `make reference`"


def test_the_pages_hold_options_defaults_resources_and_codes() -> None:
    assert "| `--memory-unit [" in PAGES["commands.md"]
    assert "| `webhook.timeoutSeconds` | `3` | " in PAGES["chart-values.md"]
    assert "| `aliyun.com/gpu-mem` | aliyun | kubelet" in PAGES["resources.md"]
    assert "| `no-room` | " in PAGES["refusals.md"]
