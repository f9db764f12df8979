"""Objects that we change without knowing all of their fields: the Secret of the webhook's certificates, and the webhook
configurations. They are replaced as a whole (with the resourceVersion that was read), and unknown fields are kept. Only
the Secret is also recreated if it was deleted.
"""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from typing import Any, cast

from fractile.errors import WireError

CERT_MANAGER = ("cert-manager.io/inject-ca-from", "cert-manager.io/inject-ca-from-secret")
"""Annotations that say that another program writes the bundle."""

Json = dict[str, Any]


def secret_value(secret: Json, key: str) -> bytes:
    """One value of a Secret; empty when it is missing or not base64."""
    data: Any = secret.get("data")
    try:
        return b64decode(data[key], validate=True)
    except (KeyError, TypeError, ValueError, Base64Error):
        return b""


def with_values(secret: Json, values: Mapping[str, bytes]) -> Json:
    """The same Secret with these data added or replaced."""
    before: Json = secret.get("data") or {}
    return {**secret, "data": {**before, **{key: b64encode(value).decode() for key, value in values.items()}}}


def secret_again(before: Json, name: str) -> Json:
    """A Secret to apply in place of a deleted one. ``before``: the deleted one as last seen, if it was seen; its data,
    labels and annotations are restored (helm identifies its objects by these)."""
    old = _object(before.get("metadata"))
    kept = {key: old[key] for key in ("labels", "annotations") if old.get(key)}
    metadata = {"name": name, **kept}
    data = _object(before.get("data"))
    return {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": data}


def _object(value: Any) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}


def with_bundle(configuration: Json, bundle: bytes) -> Json | None:
    """The configuration with this bundle of authorities in each of its webhooks; None when nothing has to change.
    WireError when it is not a webhook configuration."""
    text = b64encode(bundle).decode()
    try:
        annotations: Json = configuration["metadata"].get("annotations") or {}
        if any(key in annotations for key in CERT_MANAGER):
            return None
        before: list[Json] = list(configuration.get("webhooks") or ())
        after: list[Json] = [{**h, "clientConfig": {**h["clientConfig"], "caBundle": text}} for h in before]
    except (KeyError, TypeError, AttributeError):
        raise WireError("the object is not a webhook configuration") from None
    return {**configuration, "webhooks": after} if after != before else None
