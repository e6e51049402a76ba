"""Verifiers: rules by which drafted tokens are accepted."""

from edgedec.models.errors import ConfigError
from edgedec.runtime.decoding.verifiers.k_seq import KSeq
from edgedec.runtime.decoding.verifiers.rejection import Deterministic, Rejection
from edgedec.runtime.decoding.verifiers.shared_gumbel import SharedGumbel
from edgedec.runtime.decoding.verifiers.typical import Typical
from edgedec.runtime.decoding.verifiers.verifier import Verdict, Verifier
from edgedec.runtime.drafting.draft_tree import SiblingKind

DEFAULT_VERIFIER: Verifier = SharedGumbel()
VERIFIERS: dict[str, Verifier] = {
    verifier.name: verifier
    for verifier in (DEFAULT_VERIFIER, Deterministic(), Rejection(), KSeq(), Typical())
}
"""By the name users choose them with."""

_DRAWN = {"rejection": SiblingKind.WITHOUT_REPLACEMENT}
"""Verifiers that accept more when siblings are drawn than when they are chosen."""


def find_verifier(name: str | None) -> Verifier:
    """Returns the verifier called ``name``, the default when None; a ConfigError if none is."""
    if name is None:
        return DEFAULT_VERIFIER
    if name not in VERIFIERS:
        raise ConfigError(f"unknown verifier {name!r}, expected one of {', '.join(VERIFIERS)}")
    return VERIFIERS[name]


def kind_for(verifier: Verifier) -> SiblingKind:
    """Returns how a drafter that can choose should choose siblings for ``verifier``."""
    if SiblingKind.DETERMINISTIC not in verifier.kinds:
        return SiblingKind.INDEPENDENT
    return _DRAWN.get(verifier.name, SiblingKind.DETERMINISTIC)


__all__ = ["DEFAULT_VERIFIER", "VERIFIERS", "Verdict", "Verifier", "find_verifier", "kind_for"]
