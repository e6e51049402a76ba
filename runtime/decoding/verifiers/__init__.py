"""Verifiers: rules by which drafted tokens are accepted."""

from __future__ import annotations

from edgedec.models.errors import ConfigError
from edgedec.runtime.decoding.verifiers.deterministic import Deterministic
from edgedec.runtime.decoding.verifiers.shared_gumbel import SharedGumbel
from edgedec.runtime.decoding.verifiers.typical import Typical
from edgedec.runtime.decoding.verifiers.verifier import Verdict, Verifier

DEFAULT_VERIFIER: Verifier = SharedGumbel()
_VERIFIERS: dict[str, Verifier] = {
    verifier.name: verifier for verifier in (DEFAULT_VERIFIER, Deterministic(), Typical())
}


def verifier_names() -> tuple[str, ...]:
    """Returns the names `find_verifier` knows."""
    return tuple(_VERIFIERS)


def find_verifier(name: str | None) -> Verifier:
    """Returns the verifier called ``name``, the default when None; a ConfigError if none is."""
    if name is None:
        return DEFAULT_VERIFIER
    if name not in _VERIFIERS:
        raise ConfigError(f"unknown verifier {name!r}, expected one of {', '.join(_VERIFIERS)}")
    return _VERIFIERS[name]


__all__ = ["DEFAULT_VERIFIER", "Verdict", "Verifier", "find_verifier", "verifier_names"]
