"""How fast a head would be, alone and in `auto`: answers replayed by `tools/draft_replay`."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from texts import Answers
from torch import Tensor

from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions
from edgedec.system.files import replace_text
from edgedec.training.features.feature_file import TextFeatures
from edgedec.training.heads.torch_head import TorchWeights

sys.path.append(str(Path(__file__).parents[1] / "draft_replay"))
from accuracy import Ids
from check import measured_machine
from replay import Machine, Replay
from traces import N_MTP, N_TARGET, Trace

_COSTS = "costs.json"
_NEVER = -30.0
"""Log-probability of what a head did not say."""


def known_costs(bundle: Path, folder: Path) -> Machine:
    """Returns what passes of ``bundle`` cost, measured once on this machine."""
    file = folder / _COSTS
    if not file.is_file():
        with closing(load(bundle, EngineOptions(draft=False))) as engine:
            machine = measured_machine(engine)
        costs = {"target": machine.target, "ask_ms": machine.ask_ms}
        replace_text(file, json.dumps(costs, indent=1))
    stored = json.loads(file.read_text(encoding="utf-8"))
    target = {int(rows): ms for rows, ms in stored["target"].items()}
    return Machine("here", target, {1: 1.0}, stored["ask_ms"])


@torch.no_grad()
def traces_of(
    head: TorchWeights, answers: Answers, token_ids: Ids, head_ids: Ids, n_steps: int
) -> list[Trace]:
    """Returns ``answers`` as `Replay` plays them, with what ``head`` says beside each row.

    token_ids: rising, those of the embedding's rows. head_ids: rising, those of the logits.
    """
    head.eval()
    traces = []
    for text, start in zip(answers.texts, answers.starts, strict=True):
        tokens = torch.from_numpy(np.searchsorted(token_ids, text.tokens))[None]
        hidden = torch.from_numpy(text.hidden.astype(np.float32))[None]
        said = head(tokens, hidden, n_steps)
        traces.append(_trace(text, start, [logits[0] for logits in said], head_ids))
    return traces


def _trace(text: TextFeatures, start: int, said: list[Tensor], head_ids: Ids) -> Trace:
    n = len(text.tokens)
    ids = np.full((n - start, len(said), N_MTP), -1, np.int32)
    logs = np.full(ids.shape, _NEVER, np.float16)
    for step, logits in enumerate(said):
        best = logits.float().log_softmax(-1).topk(N_MTP)
        # Row i knows the state before token start + i: step s guesses what follows s tokens later.
        first = start + step - (n - len(logits))
        rows = best.indices.numpy()[first:], best.values.numpy()[first:]
        ids[: len(rows[0]), step], logs[: len(rows[0]), step] = head_ids[rows[0]], rows[1]
    before = slice(start - 1, n - 1)
    with np.errstate(divide="ignore"):
        target_logs = np.log(text.top_probs[before, :N_TARGET].astype(np.float32))
    return Trace(
        text.kind,
        True,
        start,
        text.tokens.astype(np.int32),
        text.top_ids[before, :N_TARGET],
        np.maximum(target_logs, _NEVER).astype(np.float16),
        np.zeros((0, N_MTP), np.int32),
        np.zeros((0, N_MTP), np.float16),
        ids,
        logs,
    )


def speeds(
    traces: list[Trace], machine: Machine, share: float, n_beside: int = 0
) -> dict[str, list[float]]:
    """Returns the speed of each text over plain decoding: the head alone, in `auto`, and without.

    share: what the head takes, in passes. n_beside: rows of its own beside each row of a pass.
    """

    def played(drafters: tuple[str, ...], is_alone: bool) -> list[float]:
        engine = Replay(machine, drafters, mtp_share=share, n_beside=n_beside, is_alone=is_alone)
        return [engine.play(trace) for trace in traces]

    return {
        "alone": played(("mtp",), True),
        "auto": played(("mtp",), False),
        "without": played((), False),
    }


def mean_speed(of_texts: list[float]) -> float:
    """Returns the speed of texts that each take as long as the others without drafts."""
    return len(of_texts) / sum(1 / speed for speed in of_texts)
