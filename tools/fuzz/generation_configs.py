"""Generation configurations, drawn at random, against what transformers makes of them.

    python tools/fuzz/generation_configs.py --tries 500 --seconds 500

Each try writes a ``generation_config.json``, reads it as an export does, and compares the
probabilities of the next token with those that the logits processors of transformers leave, over
some beginnings of a text. Keys that the export names as not applied are left out on both sides.
"""

from __future__ import annotations

import json
import random
import re
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from pieces import run_tries

from edgedec.export.checkpoints.published import SAMPLING_KEYS
from edgedec.export.checkpoints.safetensors_dir import HuggingFaceTexts
from edgedec.models.errors import CheckpointError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.sampling.bans import Bans
from edgedec.runtime.sampling.sampling import History, edit, truncate

V, EOS = 24, 2


def drawn(rng: random.Random) -> dict[str, Any]:
    """Returns the keys of a generation configuration."""
    values: dict[str, Any] = {
        "do_sample": rng.random() < 0.8,
        "temperature": rng.choice((0.3, 0.7, 1.0, 1.8)),
        "top_k": rng.choice((1, 3, 10, 50)),
        "top_p": rng.choice((0.3, 0.8, 0.95, 1.0)),
        "min_p": rng.choice((0.01, 0.1, 0.4)),
        "typical_p": rng.choice((0.4, 0.9, 1.0)),
        "repetition_penalty": rng.choice((0.8, 1.0, 1.1, 1.7)),
        "no_repeat_ngram_size": rng.randint(0, 4),
        "bad_words_ids": [
            [rng.randrange(V) for _ in range(rng.randint(1, 3))] for _ in range(rng.randint(1, 6))
        ],
        "min_new_tokens": rng.randint(0, 5),
        "begin_suppress_tokens": rng.sample(range(V), rng.randint(1, 4)),
        "suppress_tokens": rng.sample(range(3, V), 2),
        "sequence_bias": [[[rng.randrange(V)], 3.0]],
        "num_beams": rng.choice((1, 4)),
        "epsilon_cutoff": rng.choice((0.0, 0.02)),
        "eta_cutoff": rng.choice((0.0, 0.02)),
        "min_length": rng.choice((0, 9)),
        "forced_bos_token_id": 3,
        "forced_eos_token_id": 2,
        "exponential_decay_length_penalty": [2, 1.3],
        "encoder_repetition_penalty": rng.choice((1.0, 1.2)),
        "guidance_scale": rng.choice((1.0, 1.5)),
        "renormalize_logits": True,
        "max_new_tokens": 64,
        "length_penalty": 1.3,
        "stop_strings": ["END"],
        "pad_token_id": 0,
    }  # fmt: skip
    return {key: values[key] for key in rng.sample(sorted(values), rng.randint(1, 9))}


def try_once(rng: random.Random) -> str:
    """Returns what became of one try: equal, equal but for named keys, or refused.

    Raises:
        AssertionError: The probabilities differ.
    """
    return compared(drawn(rng), rng)


def compared(settings: dict[str, Any], rng: random.Random) -> str:
    """Returns what becomes of ``settings``, over some texts that ``rng`` draws."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = {"model_type": "llama", "vocab_size": V}
        (folder / "config.json").write_text(json.dumps(config))
        whole = {**settings, "eos_token_id": EOS}
        (folder / "generation_config.json").write_text(json.dumps(whole))
        texts = HuggingFaceTexts(folder)
        try:
            request, unapplied = GenerationConfig.from_bundle(texts.sampling), texts.unapplied
        except CheckpointError:
            return "refused"
    named = {re.match(r"generation_config\.json: (\w+) ", line)[1] for line in unapplied}  # type: ignore[index]
    applied = {key: value for key, value in whole.items() if key not in named}
    for _ in range(4):
        _compare(request, applied, rng)
    return f"equal but for {', '.join(sorted(named))}" if named else "equal"


def _compare(request: GenerationConfig, applied: dict[str, Any], rng: random.Random) -> None:
    prompt = [rng.randrange(3, 12) for _ in range(rng.randint(2, 12))]
    output = [rng.randrange(3, 12) for _ in range(rng.randint(0, 6))]
    row = np.array([rng.gauss(0, 3) for _ in range(V)], np.float32)
    theirs = _theirs(applied, prompt, output, row)
    row[applied.get("suppress_tokens", [])] = -np.inf  # a model's own, not a request's
    history, bans = History(prompt), Bans(request.sampling, V, frozenset([EOS]))
    bans.begin(prompt)
    n_accepted = rng.randint(0, len(output))
    for token in output:
        history.add(token)
    for token in output[:n_accepted]:
        bans.accept(token)
    allowed = bans.row_after(output[n_accepted:])
    values = edit(row, request.sampling, history, allowed).astype(np.float64)
    if not np.isfinite(values).any():
        assert not np.isfinite(theirs).any()
        return
    scores = np.zeros(V)
    if request.sampling.is_greedy:
        assert values.argmax() == theirs.argmax(), (applied, prompt, output)
        return
    survivors = truncate(values, request.sampling)
    scores[survivors.ids] = survivors.probs()
    expected = np.exp(theirs - theirs.max())
    np.testing.assert_allclose(
        scores, expected / expected.sum(), atol=1e-5, err_msg=f"{applied} {prompt} {output}"
    )


def _theirs(
    applied: dict[str, Any], prompt: list[int], output: list[int], row: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Returns the scores that transformers leaves."""
    import torch
    import transformers

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(vocab_size=V, num_attention_heads=1, **sizes)
    model = transformers.LlamaForCausalLM(config)
    generation_config = transformers.GenerationConfig(**applied)
    if not {"top_k", "do_sample", *SAMPLING_KEYS} & set(applied) or "top_k" not in applied:
        generation_config.top_k = 0  # nothing is truncated unless it is stated
    model._prepare_special_tokens(generation_config, device="cpu")
    processors = model._get_logits_processor(
        generation_config,
        input_ids_seq_length=len(prompt),
        encoder_input_ids=torch.tensor([prompt]),
        device="cpu",
    )
    ids = torch.tensor([[*prompt, *output]])
    scores = processors(ids, torch.tensor(row.astype(np.float64))[None])
    return np.asarray(scores[0].numpy())


def main() -> int:
    """Tries configurations; prints how many came out how."""
    outcomes: Counter[str] = Counter()

    def piece(seed: int) -> int:
        outcomes[try_once(random.Random(seed)).partition(" for")[0]] += 1
        return 1

    return run_tries(__doc__ or "", "generation_configs", 500, piece, outcomes)


if __name__ == "__main__":
    sys.exit(main())
