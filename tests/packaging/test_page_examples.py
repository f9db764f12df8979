"""The manifests and commands on the pages for users are ones that Kubernetes and Fractile accept."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import msgspec
import pytest
import yaml

from fractile.dialects.table import parse_pod
from fractile.main.cli import cli
from fractile.model.request import PodRequest
from fractile.model.units import MemoryUnit
from fractile.wire.kubernetes.objects import Pod

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "start").glob("*.md")),
    *sorted((ROOT / "docs" / "use").glob("*.md")),
]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def manifests() -> Iterator[Any]:
    """The whole objects of the pages; other YAML is a part of one."""
    for page in PAGES:
        blocks = [text for kind, text in _BLOCK.findall(page.read_text()) if kind == "yaml"]
        document: Any
        for document in (d for text in blocks for d in yaml.safe_load_all(text)):
            if {"kind", "metadata"} <= set(document):
                name = f"{page.name}: {document['kind']} {document['metadata']['name']}"
                yield pytest.param(document, id=name)


def commands() -> Iterator[Any]:
    for page in PAGES:
        for kind, text in _BLOCK.findall(page.read_text()):
            for line in text.replace("\\\n", " ").splitlines() if kind in ("", "sh") else ():
                found = re.match(r"(?:\$ )?(?:\.venv/bin/|kubectl )?fractile ([a-z].*)", line)
                if found:
                    yield pytest.param(found[1], id=f"{page.name}: {found[1]}")


@pytest.mark.parametrize("document", list(manifests()))
def test_kubernetes_accepts_the_manifest(document: dict[str, Any]) -> None:
    if not document["apiVersion"].startswith("fractile.dev/"):
        kubernetes_validate.validate(document, "1.36", strict=True)


@pytest.mark.parametrize("document", [m for m in manifests() if m.values[0]["kind"] in ("Pod", "Deployment")])
def test_fractile_reads_what_the_pod_asks_for(document: dict[str, Any]) -> None:
    template = document["spec"].get("template", document)
    pod = msgspec.convert({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": template["spec"]}, Pod)
    assert isinstance(parse_pod(pod, MemoryUnit.MiB), PodRequest)


@pytest.mark.parametrize("line", list(commands()))
def test_the_command_line_is_one_that_the_program_takes(line: str) -> None:
    name, *arguments = shlex.split(re.sub(r"\s#.*$", "", line).split(" | ")[0].split(" > ")[0])
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    known = {option for p in command.params for option in (*p.opts, *p.secondary_opts)} | {"--help", "-h"}
    given = {a.partition("=")[0] for a in arguments if re.match(r"--?[a-z]", a)}
    assert name in ("kubectl",) or given <= known
