"""Another implementation's word on a GGUF file: transformers, dequantised weights, float32.

Token ids come from the caller: transformers ignores the pre-tokenizer that a GGUF file names.
"""

from __future__ import annotations

import functools
import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree

PROMPTS: list[str] = json.loads((Path(__file__).parent / "prompts.json").read_text())


def load_reference(gguf: Path) -> Any:
    """Returns the transformers model of ``gguf``, dequantised by transformers itself."""
    import torch
    from transformers import AutoModelForCausalLM

    names: Any = importlib.import_module("gguf")  # made anew for each module of the model, slowly
    names.get_tensor_name_map = functools.cache(names.get_tensor_name_map)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    return model.eval()


def reference_logits(model: Any, token_ids: list[int]) -> npt.NDArray[np.float32]:
    """Returns the logits after each token, [T, V] float32."""
    import torch

    with torch.inference_mode():
        logits = model(torch.tensor([token_ids])).logits[0]
    return np.asarray(logits.numpy(), np.float32)


def pooled(model: Any, tokens: list[int], pooling: str) -> npt.NDArray[np.float32]:
    """Returns the vector that the model's last hidden states give."""
    import torch

    with torch.inference_mode():
        states = model.model(torch.tensor([tokens])).last_hidden_state[0]
    state = states[-1] if pooling == "last" else states.mean(0)
    return np.asarray(state / state.norm(), np.float32)


def greedy(session: TokenSequence, prompt: list[int], n_new: int) -> list[int]:
    """Returns ``n_new`` greedy tokens after ``prompt``."""
    session.truncate(0)
    pending, out = prompt, []
    for _ in range(n_new):
        logits = session.forward(TokenTree.chain(pending), [len(pending) - 1]).logits[0]
        session.commit(range(len(pending)))
        pending = [int(np.argmax(logits))]
        out += pending
    return out


@dataclass(frozen=True)
class Agreement:
    """How greedy tokens stand with the reference, teacher-forced along our own tokens.

    gaps: per prompt, per token: the reference's best logit minus that of our token.
    """

    gaps: list[npt.NDArray[np.float32]]

    @property
    def largest_gap(self) -> float:
        return float(max(gap.max() for gap in self.gaps))

    def n_identical(self, n_tokens: int) -> int:
        """Returns how many prompts agree on all of the first ``n_tokens``."""
        return sum(not gap[:n_tokens].any() for gap in self.gaps)


def agreement(model: Any, prompts: list[list[int]], answers: list[list[int]]) -> Agreement:
    """Compares greedy ``answers`` with the reference's own choices."""
    gaps = []
    for prompt, answer in zip(prompts, answers, strict=True):
        logits = reference_logits(model, prompt + answer[:-1])[len(prompt) - 1 :]
        gaps.append(logits.max(axis=1) - logits[np.arange(len(answer)), answer])
    return Agreement(gaps)


def summed_nll(logits: npt.NDArray[np.float32], targets: list[int]) -> float:
    """Returns the summed negative log-likelihood in nats of ``targets`` given [T, V] logits."""
    top = logits.max(axis=1)
    log_sum = top + np.log(np.exp(logits - top[:, None]).sum(axis=1, dtype=np.float64))
    return float((log_sum - logits[np.arange(len(targets)), targets]).sum())


def session_nll(session: TokenSequence, token_ids: list[int], chunk: int = 128) -> float:
    """Returns the summed NLL of ``token_ids[1:]`` under the session."""
    session.truncate(0)
    total = 0.0
    for start in range(0, len(token_ids) - 1, chunk):
        tokens = token_ids[start : min(start + chunk, len(token_ids) - 1)]
        rows = session.forward(TokenTree.chain(tokens), range(len(tokens)))
        total += summed_nll(rows.logits, token_ids[start + 1 : start + 1 + len(tokens)])
        session.commit(range(len(tokens)))
    return total


def reference_nll(model: Any, token_ids: list[int]) -> float:
    """Returns the summed NLL of ``token_ids[1:]`` under the reference."""
    return summed_nll(reference_logits(model, token_ids)[:-1], token_ids[1:])
