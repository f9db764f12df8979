"""The chart as Helm renders it, without a cluster."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import helm_python
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "fractile"
NAMESPACE = "fractile-system"

Document = dict[str, Any]


def render(
    values: Mapping[str, Any] | None = None, *, version: str = "v1.36.3", namespace: str = NAMESPACE
) -> dict[str, str]:
    """Template -> text; HelmError when the values are refused."""
    chart = helm_python.Chart.load(str(CHART))
    given = {"kubeVersion": version, **(values or {})}
    rendered = chart.render(given, name="fractile", namespace=namespace)
    return {name.removeprefix("fractile/templates/"): text for name, text in rendered.items()}


def documents(values: Mapping[str, Any] | None = None, *, version: str = "v1.36.3") -> list[Document]:
    """All objects of the release."""
    texts = [text for name, text in render(values, version=version).items() if name.endswith(".yaml")]
    return [cast(Document, d) for text in texts for d in yaml.safe_load_all(text) if d]


def named(found: list[Document], kind: str, name: str) -> Document:
    (one,) = [d for d in found if d["kind"] == kind and d["metadata"]["name"] == name]
    return one


def kinds(found: list[Document]) -> set[tuple[str, str]]:
    return {(d["kind"], d["metadata"]["name"]) for d in found}


def container(found: list[Document], kind: str, name: str) -> Document:
    (one,) = named(found, kind, name)["spec"]["template"]["spec"]["containers"]
    return cast(Document, one)


def generator(name: str = "chart") -> ModuleType:
    """hack/NAME.py."""
    spec = importlib.util.spec_from_file_location(f"hack_{name}", ROOT / "hack" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
