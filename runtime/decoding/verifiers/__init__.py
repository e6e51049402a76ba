"""Verifiers: rules by which drafted tokens are accepted."""

from __future__ import annotations

from functools import cache

from edgedec.models.errors import ConfigError
from edgedec.runtime.decoding.verifiers.deterministic import Deterministic
from edgedec.runtime.decoding.verifiers.shared_gumbel import SharedGumbel
from edgedec.runtime.decoding.verifiers.typical import Typical
from edgedec.runtime.decoding.verifiers.verifier import Verdict, Verifier
from edgedec.runtime.drafting.extensions import extension_names, load_extension

DEFAULT_VERIFIER: Verifier = SharedGumbel()
_OWN: dict[str, Verifier] = {
    verifier.name: verifier for verifier in (DEFAULT_VERIFIER, Deterministic(), Typical())
}


@cache
def verifier_names() -> tuple[str, ...]:
    """Returns the names `find_verifier` knows; those of other packages come last."""
    return (*_OWN, *extension_names("verifier"))


def find_verifier(name: str | None) -> Verifier:
    """Returns the verifier called ``name``, the default when None; a ConfigError if none is."""
    if name is None:
        return DEFAULT_VERIFIER
    if name in _OWN:
        return _OWN[name]
    if name not in verifier_names():
        raise ConfigError(
            f"unknown verifier {name!r}, expected one of {', '.join(verifier_names())}"
        )
    found: Verifier = load_extension("verifier", name).VERIFIER
    return found


__all__ = ["DEFAULT_VERIFIER", "Verdict", "Verifier", "find_verifier", "verifier_names"]
