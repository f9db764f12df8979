"""The image's bill of materials, as CycloneDX 1.6 (ecma-international.org, ECMA-424): Debian and Python packages.

Equal images give equal documents: the serial number is derived from the components, and there is no timestamp.
"""

import json
import uuid
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

from fractile.lab.image.debian import Package

_SERIALS = uuid.UUID("0f6a52c2-3c1b-4a53-8b70-2a0b54d0f3ab")  # our own name space for uuid5


def document(version: str, packages: Sequence[Package], folder: Path) -> bytes:
    """The document. ``folder``: holds the records of the image's Python packages."""
    found = sorted(distributions(path=[str(folder)]), key=lambda d: d.name.lower())
    components = [*map(_debian, sorted(packages)), *(_python(d) for d in found if d.name.lower() != "fractile")]
    own = f"pkg:pypi/fractile@{version}"
    references = [str(c["bom-ref"]) for c in components]
    return json.dumps(
        {
            "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "serialNumber": f"urn:uuid:{uuid.uuid5(_SERIALS, ' '.join([own, *references]))}",
            "version": 1,
            "metadata": {
                "component": {
                    "type": "container",
                    "bom-ref": own,
                    "name": "fractile",
                    "version": version,
                    "purl": own,
                    "licenses": [{"license": {"id": "Apache-2.0"}}],
                }
            },
            "components": components,
            "dependencies": [{"ref": own, "dependsOn": references}, *_dependencies(found)],
        },
        indent=1,
    ).encode()


def _debian(package: Package) -> dict[str, object]:
    return {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "purl": package.purl,
        "properties": [{"name": "fractile:debian-source", "value": package.source}],
    }


def _python(one: Distribution) -> dict[str, object]:
    licence = one.metadata["License-Expression"] if "License-Expression" in one.metadata else ""  # noqa: SIM401, its type has no get
    return {
        "type": "library",
        "bom-ref": _purl(one),
        "name": one.name,
        "version": one.version,
        "purl": _purl(one),
        **({"licenses": [{"expression": licence}]} if licence else {}),
    }


def _dependencies(found: Iterable[Distribution]) -> list[dict[str, object]]:
    """The packages without their own dependencies: the image depends directly on each of them."""
    return [{"ref": _purl(one)} for one in found if one.name.lower() != "fractile"]


def _purl(one: Distribution) -> str:
    return f"pkg:pypi/{one.name.lower().replace('_', '-')}@{one.version}"
