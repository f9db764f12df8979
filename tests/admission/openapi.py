"""The webhook's OpenAPI document, generated from its structs."""

from typing import Any

import msgspec

from fractile import __version__
from fractile.wire.kubernetes.admission import AdmissionReview, AdmissionReviewAnswer

_VERBS = {
    "mutate": "What to change in a pod, a template or a quota before it is stored.",
    "validate": "Whether a pod may be stored.",
}
_ERRORS = {
    "400": "The body is not an AdmissionReview.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "503": "Too many requests at once.",
}


def document(prefix: str) -> bytes:
    """The document as JSON; ``prefix`` is the prefix of the verbs' paths."""
    (asked, answered), components = msgspec.json.schema_components(
        [AdmissionReview, AdmissionReviewAnswer], ref_template="#/components/schemas/{name}"
    )
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Fractile admission webhook",
                "version": __version__,
                "description": "AdmissionReview, admission.k8s.io/v1. A refusal is an answer with the status 200.",
            },
            "paths": {
                f"{prefix}/{name}": {"post": _operation(name, says, asked, answered)} for name, says in _VERBS.items()
            },
            "components": {"schemas": components},
        }
    )


def _operation(name: str, summary: str, asked: dict[str, Any], answered: dict[str, Any]) -> dict[str, object]:
    errors: dict[str, object] = {
        code: {"description": says, "content": {"text/plain": {}}} for code, says in _ERRORS.items()
    }
    answer = {"description": "The answer.", "content": {"application/json": {"schema": answered}}}
    return {
        "operationId": name,
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": asked}}},
        "responses": {"200": answer, **errors},
    }
