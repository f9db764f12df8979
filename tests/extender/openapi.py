"""The extender's verbs as an OpenAPI document, generated from the structs that decode and encode them."""

from typing import Any

import msgspec

from fractile import __version__
from fractile.wire.kubernetes.extender import (
    BindingArgs,
    BindingResult,
    ExtenderArgs,
    FilterResult,
    HostPriority,
    PreemptionArgs,
    PreemptionResult,
)

_VERBS: dict[str, tuple[str, Any, Any]] = {
    "filter": ("Which of the nodes can serve the pod, and why the others cannot.", ExtenderArgs, FilterResult),
    "prioritize": ("How good each node is for the pod, 0 to 10.", ExtenderArgs, list[HostPriority]),
    "preempt": ("Which pods must leave each node so that the pod fits on its cards.", PreemptionArgs, PreemptionResult),
    "bind": ("Choose cards and bind the pod to the node.", BindingArgs, BindingResult),
}


def document(prefix: str) -> bytes:
    """The document as JSON; ``prefix`` is that of the verbs' paths."""
    types = [kind for _, asked, answered in _VERBS.values() for kind in (asked, answered)]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    pairs = zip(schemas[::2], schemas[1::2], strict=True)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Fractile scheduler extender",
                "version": __version__,
                "description": "kube-scheduler's extender protocol, version 1. Every answer of a verb is a 200: "
                "kube-scheduler does not read the body of others, so refusals and errors stand in the answer.",
            },
            "paths": {
                f"{prefix}/{name}": {"post": _operation(name, summary, asked, answered)}
                for (name, (summary, _, _)), (asked, answered) in zip(_VERBS.items(), pairs, strict=True)
            },
            "components": {"schemas": components},
        }
    )


def _operation(name: str, summary: str, asked: dict[str, Any], answered: dict[str, Any]) -> dict[str, object]:
    return {
        "operationId": name,
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": asked}}},
        "responses": {"200": {"description": "The answer.", "content": {"application/json": {"schema": answered}}}},
    }
