"""Which models a server offers, and by what names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgedec.apps.model_names import named_bundle, open_library
from edgedec.apps.serve.model_registry import Offer
from edgedec.models.errors import ConfigError
from edgedec.models.manifest import MANIFEST_NAME, TOKENIZER_NAME, read_manifest
from edgedec.runtime.opening.bundle_parts import TEMPLATE_NAME
from edgedec.runtime.text.infill import find_infill_tokens
from edgedec.runtime.text.tokenizer import Tokenizer


def find_offers(texts: Sequence[str]) -> list[Offer]:
    """Returns the models that ``texts`` mean, each ``[NAME=]BUNDLE``; all exported ones for none.

    Raises:
        EdgedecError: One is no bundle, two have one name, or there is none at all.
    """
    offers = [_offer(text) for text in texts] or [
        _of_bundle(path.stem, path) for path in open_library().bundles()
    ]
    if not offers:
        raise ConfigError("there is no model to serve: name a bundle, or a model to export")
    names = [offer.name for offer in offers]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"two models are called {twice[0]}: give one another name, NAME=BUNDLE")
    return offers


def _offer(text: str) -> Offer:
    name, is_named, place = text.rpartition("=")
    if Path(text).exists() or not is_named:
        name, place = "", text
    bundle = named_bundle(Path(place))
    is_path = Path(place) == bundle
    return _of_bundle(name or (bundle.name.removesuffix(".edgedec") if is_path else place), bundle)


def _of_bundle(name: str, bundle: Path) -> Offer:
    if not name.isprintable():
        raise ConfigError(f"a model is called {name!r}, expected a name that can be shown")
    manifest = read_manifest(bundle)
    created = int((bundle / MANIFEST_NAME).stat().st_mtime)
    has_template = TEMPLATE_NAME in manifest.files
    template = (bundle / TEMPLATE_NAME).read_text(encoding="utf-8") if has_template else ""
    tokenizer = Tokenizer.load(bundle / TOKENIZER_NAME)
    can_infill = find_infill_tokens(tokenizer) is not None
    return Offer(name, bundle, manifest, created, template, can_infill)
