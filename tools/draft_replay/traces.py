"""What target model and drafters said along greedy texts: recorded once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

N_TARGET, N_DRAFT, N_MTP = 8, 4, 4
"""Likeliest tokens that are kept of a row of each."""


@dataclass(frozen=True, eq=False)
class Trace:
    """A greedy text. Row i of each array is about the token ``n_prompt + i``, given those before.

    kind: of the prompt. is_held_out: rules are reported on it, not chosen by it.

    Shapes, for n tokens of output and D light heads:
        tokens: [n_prompt + n] int32.
        target_ids, target_logs: [n, 8] int32 and float16, the target's likeliest. Units: nats.
        draft_ids, draft_logs: [n, 4], the draft model's; [0, 4] where there is none.
        mtp_ids, mtp_logs: [n, D, 4], what light heads say of the D tokens behind that one.
    """

    kind: str
    is_held_out: bool
    n_prompt: int
    tokens: npt.NDArray[np.int32]
    target_ids: npt.NDArray[np.int32]
    target_logs: npt.NDArray[np.float16]
    draft_ids: npt.NDArray[np.int32]
    draft_logs: npt.NDArray[np.float16]
    mtp_ids: npt.NDArray[np.int32]
    mtp_logs: npt.NDArray[np.float16]

    def __len__(self) -> int:
        return len(self.tokens) - self.n_prompt


_ARRAYS = (
    "tokens",
    "target_ids",
    "target_logs",
    "draft_ids",
    "draft_logs",
    "mtp_ids",
    "mtp_logs",
)


def save(path: Path, traces: Sequence[Trace]) -> None:
    """Writes traces of one target model, at once or not at all."""
    columns = {name: np.concatenate([getattr(t, name) for t in traces]) for name in _ARRAYS}
    lengths = {
        f"n_{name}": np.array([len(getattr(t, name)) for t in traces], np.int32) for name in _ARRAYS
    }
    facts = {
        "kind": np.array([t.kind for t in traces]),
        "is_held_out": np.array([t.is_held_out for t in traces]),
        "n_prompt": np.array([t.n_prompt for t in traces], np.int32),
    }
    part = path.with_suffix(".part.npz")
    np.savez_compressed(part, **columns, **lengths, **facts)
    part.replace(path)


def load(path: Path) -> list[Trace]:
    """Returns the traces of a file that `save` wrote."""
    with np.load(path, allow_pickle=False) as file:
        stored = {name: file[name] for name in file.files}
    ends = {name: np.cumsum(stored[f"n_{name}"])[:-1] for name in _ARRAYS}
    parts = {name: np.split(stored[name], ends[name]) for name in _ARRAYS}
    return [
        Trace(
            str(stored["kind"][i]),
            bool(stored["is_held_out"][i]),
            int(stored["n_prompt"][i]),
            **{name: parts[name][i] for name in _ARRAYS},
        )
        for i in range(len(stored["kind"]))
    ]
