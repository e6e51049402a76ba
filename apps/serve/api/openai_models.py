"""OpenAI's list of models: `GET /v1/models`."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.apps.serve.api.endpoint import Document
from edgedec.apps.serve.model_registry import Offer


def listing(offers: Sequence[Offer], loaded: Sequence[Offer]) -> Document:
    """Returns the models that may be asked for."""
    return {"object": "list", "data": [entry(offer, loaded) for offer in offers]}


def entry(offer: Offer, loaded: Sequence[Offer]) -> Document:
    """Returns what is known of one model, with llama-server's ``status`` and ``meta``."""
    target = offer.manifest.target
    return {
        "id": offer.name,
        "object": "model",
        "created": offer.created,
        "owned_by": "edgedec",
        "status": {"value": "loaded" if offer in loaded else "unloaded"},
        "meta": {
            "n_ctx": target.context,
            "n_ctx_train": target.config.max_positions,
            "n_vocab": target.config.vocab_size,
            "n_embd": target.config.hidden_size,
            "size": offer.n_bytes,
        },
    }
