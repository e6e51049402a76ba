"""Verifiers: rules by which drafted tokens are accepted."""

from edgedec.runtime.decoding.verifiers.k_seq import KSeq
from edgedec.runtime.decoding.verifiers.rejection import Deterministic, Rejection
from edgedec.runtime.decoding.verifiers.shared_gumbel import SharedGumbel
from edgedec.runtime.decoding.verifiers.typical import Typical
from edgedec.runtime.decoding.verifiers.verifier import Verdict, Verifier

DEFAULT_VERIFIER: Verifier = SharedGumbel()
VERIFIERS: dict[str, Verifier] = {
    verifier.name: verifier
    for verifier in (DEFAULT_VERIFIER, Deterministic(), Rejection(), KSeq(), Typical())
}
"""By the name users choose them with."""

__all__ = ["DEFAULT_VERIFIER", "VERIFIERS", "Verdict", "Verifier"]
