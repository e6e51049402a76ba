"""Trains a tiny masked-diffusion model, and measures the rules that decide its tokens.

    python tools/masked_model.py train tiny-llada
    edgedec export tiny-llada -o tiny-llada.edgedec
    python tools/masked_model.py measure tiny-llada.edgedec

It answers three kinds of questions about eight letters: `reverse abcd:` (dcba), `next abcd:`
(bcde) and `turn abcd:`, which has several right answers (abcd, bcda, cdab, dabc), so that a letter
depends on the others. The model is LLaDA's recipe with 0.45 M parameters. Training masks letters of
answers, as LLaDA's fine-tuning does (arXiv 2502.09992, algorithm 2).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import string
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgedec import load
from edgedec.models.errors import CheckpointError
from edgedec.models.families import find_family
from edgedec.models.fields import Fields
from edgedec.runtime.config import UnmaskConfig

WEIGHTS = "model.safetensors"
N_LETTERS, N_NEW = 8, 12
"""Letters of an answer, end tokens included."""
LETTERS = string.ascii_lowercase + " :"
END, MASK = "<|end|>", "<|mask|>"
TOKENS = (*LETTERS, END, MASK)
ID = {token: i for i, token in enumerate(TOKENS)}
SIZES = {
    "d_model": 96, "n_layers": 4, "n_heads": 4, "n_kv_heads": 4, "mlp_hidden_size": 256,
    "max_sequence_length": 128, "vocab_size": len(TOKENS), "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "weight_tying": False, "mask_token_id": ID[MASK],
    "eos_token_id": ID[END], "pad_token_id": ID[END], "model_type": "llada",
    "block_type": "llama", "activation_type": "silu", "layer_norm_type": "rms", "rope": True,
}  # fmt: skip
LARGE = {"d_model": 576, "n_layers": 30, "n_heads": 9, "n_kv_heads": 3, "mlp_hidden_size": 1536}
"""Sizes of SmolLM2-135M, but for its vocabulary."""
RULES = (
    "confidence", "confidence:steps=8", "confidence:steps=4", "confidence:block=4",
    "confidence:refresh=4", "confidence:refresh=8", "localleap", "localleap:refresh=4",
    "prophet", "prophet:block=4", "ccd", "ccd:steps=8",
)  # fmt: skip


def problem(rng: random.Random) -> tuple[str, Sequence[str]]:
    """Returns a question, and its right answers."""
    kind = rng.choice(("reverse", "next", "turn"))
    letters = "".join(rng.sample(string.ascii_lowercase, N_LETTERS))
    return f"{kind} {letters}:", answers_to(kind, letters)


def answers_to(kind: str, letters: str) -> Sequence[str]:
    """Returns the letters backwards, those behind them in the alphabet, or all rotations."""
    if kind == "turn":
        return [letters[i:] + letters[:i] for i in range(len(letters))]
    if kind == "reverse":
        return [letters[::-1]]
    alphabet = string.ascii_lowercase
    return ["".join(alphabet[(alphabet.index(x) + 1) % len(alphabet)] for x in letters)]


def ids_of(text: str) -> list[int]:
    """Returns the token of each letter."""
    return [ID[letter] for letter in text]


def tokenizer() -> dict[str, Any]:
    """Returns the document of a tokenizer that has a token for each letter."""
    stages = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    vocabulary = {letter.replace(" ", "\u0120"): i for i, letter in enumerate(LETTERS)}
    added = [
        {
            "id": ID[token], "content": token, "special": True, "normalized": False,
            "single_word": False, "lstrip": False, "rstrip": False,
        }
        for token in (END, MASK)
    ]  # fmt: skip
    return {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {**stages, "use_regex": False},
        "decoder": stages,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }


def make_model(sizes: Mapping[str, Any]) -> Any:
    """Returns the model of transformers that has the recipe, but for what its rows see."""
    import transformers

    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=len(TOKENS),
            hidden_size=sizes["d_model"],
            intermediate_size=sizes["mlp_hidden_size"],
            num_hidden_layers=sizes["n_layers"],
            num_attention_heads=sizes["n_heads"],
            num_key_value_heads=sizes["n_kv_heads"],
            max_position_embeddings=sizes["max_sequence_length"],
            rms_norm_eps=sizes["rms_norm_eps"],
            rope_theta=sizes["rope_theta"],
            tie_word_embeddings=False,
            use_cache=False,
        )
    )


def batch(rng: random.Random, n: int) -> tuple[Any, Any, Any, Any]:
    """Returns texts with masks, what is masked, the shares that are, and what rows may see.

    Shapes: texts [n, T] int64, targets [n, T] int64 with -100 where nothing is masked, shares [n],
        biases [n, 1, 1, T] float32, which hide padding.
    """
    import torch

    pairs = [problem(rng) for _ in range(n)]
    prompts = [ids_of(question) for question, _ in pairs]
    answers = [(ids_of(rng.choice(right)) + [ID[END]] * N_NEW)[:N_NEW] for _, right in pairs]
    longest = max(map(len, prompts)) + N_NEW
    texts = torch.full((n, longest), ID[END])
    targets = torch.full((n, longest), -100)
    biases = torch.zeros(n, 1, 1, longest)
    shares = torch.rand(n) * 0.98 + 0.02
    for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        stop = len(prompt) + N_NEW
        texts[i, :stop] = torch.tensor(prompt + answer)
        masked = torch.zeros(longest, dtype=torch.bool)
        masked[len(prompt) : stop] = torch.rand(N_NEW) < shares[i]
        targets[i, masked] = texts[i, masked]
        texts[i, masked] = ID[MASK]
        biases[i, 0, 0, stop:] = -1e9
    return texts, targets, shares, biases


def train(folder: Path, minutes: float, seed: int) -> None:
    """Trains for some minutes of processor time, and writes the directory now and then.

    Goes on with the weights that are there.
    """
    import torch

    torch.manual_seed(seed)
    rng, model = random.Random(seed), make_model(SIZES)
    if (folder / WEIGHTS).exists():
        model.load_state_dict(read(folder))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    started_s = time.process_time()
    n_steps, done = 0, 0.0
    while (done := (time.process_time() - started_s) / (60 * minutes)) < 1:
        rate = 3e-3 * min(1.0, n_steps / 100) * 0.5 * (1 + math.cos(math.pi * done))
        for group in optimizer.param_groups:
            group["lr"] = rate
        texts, targets, shares, biases = batch(rng, 32)
        seen = biases.expand(-1, 1, texts.shape[1], -1)
        logits = model(texts, attention_mask=seen).logits
        losses = torch.nn.functional.cross_entropy(
            logits.transpose(1, 2), targets, ignore_index=-100, reduction="none"
        )
        loss = (losses.sum(dim=1) / shares).mean() / N_NEW
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        n_steps += 1
        if n_steps % 100 == 0:
            print(f"step {n_steps}, {done:.0%}: {loss.item():.3f} nats per letter", flush=True)
            write(model, folder, SIZES)
    write(model, folder, SIZES)


def stored_names(sizes: Mapping[str, Any]) -> dict[str, str]:
    """Returns LLaDA's names of the weights of transformers' Llama, by the latter."""
    config = find_family("llada").read_hf(Fields(sizes, "config.json", CheckpointError))
    weights = find_family("llada").weights(config).items()
    outer = {"lm_head.weight": "lm_head.weight"}
    return {outer.get(name, f"model.{name}"): weight.hf.name for name, weight in weights}


def read(folder: Path) -> dict[str, Any]:
    """Returns the weights that `write` wrote, by the names of transformers."""
    from safetensors.torch import load_file

    tensors = load_file(folder / WEIGHTS)
    return {name: tensors[stored] for name, stored in stored_names(SIZES).items()}


def write(model: Any, folder: Path, sizes: Mapping[str, Any]) -> None:
    """Writes ``model`` as a directory of LLaDA's."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    state, stored = model.state_dict(), stored_names(sizes)
    tensors = {stored[name]: tensor.contiguous() for name, tensor in state.items()}
    save_file(tensors, folder / WEIGHTS)
    (folder / "config.json").write_text(json.dumps(sizes))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))


def measure(bundle: Path, n: int, rules: Sequence[str], threads: int | None) -> None:
    """Prints a row for each of ``rules``: accuracy, agreement, passes, rows and time."""
    from edgedec import EngineOptions

    rng = random.Random(1)
    problems = [problem(rng) for _ in range(n)]
    with load(bundle, EngineOptions(threads=threads)) as engine:
        rows: dict[str, list[Any]] = {rule: [] for rule in rules}
        times: dict[str, list[float]] = {rule: [] for rule in rules}
        for question, _ in problems:
            for rule in rules:  # in turn, so that the machine is the same for all
                started_s = time.perf_counter()
                result = engine.generate(
                    question, max_new_tokens=N_NEW, unmask=UnmaskConfig.parse(rule), ignore_eos=True
                )
                times[rule].append(1000 * (time.perf_counter() - started_s))
                rows[rule].append(result)
    print("| rule | right | same text | passes | rows | time (ms) |\n|---|---|---|---|---|---|")
    for line in table(problems, rows, times):
        print(line)


def table(
    problems: Sequence[tuple[str, Sequence[str]]],
    by_rule: dict[str, list[Any]],
    times: dict[str, list[float]],
) -> Iterator[str]:
    """Yields a row for each rule; texts and times are compared with those of the first."""
    plain = next(iter(by_rule))
    for rule, results in by_rule.items():
        n = len(results)
        n_right = sum(
            result.text in right for (_, right), result in zip(problems, results, strict=True)
        )
        same = sum(
            result.text == other.text for result, other in zip(results, by_rule[plain], strict=True)
        )
        passes = statistics.mean(result.stats.n_passes for result in results)
        rows = statistics.mean(result.switch["n_rows"] for result in results)
        ms = statistics.median(times[rule])
        ratio = ms / statistics.median(times[plain])
        yield (
            f"| `{rule}` | {n_right / n:.1%} | {same / n:.1%} | {passes:.1f} | {rows:.0f} "
            f"| {ms:.1f} (× {ratio:.2f}) |"
        )


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    training = verbs.add_parser("train")
    training.add_argument("folder", type=Path)
    training.add_argument("--minutes", type=float, default=3, help="of processor time")
    training.add_argument("--seed", type=int, default=0)
    untrained = verbs.add_parser("untrained", help="a larger one, to measure times alone")
    untrained.add_argument("folder", type=Path)
    measuring = verbs.add_parser("measure")
    measuring.add_argument("bundle", type=Path)
    measuring.add_argument("--problems", type=int, default=200)
    measuring.add_argument("--threads", type=int)
    measuring.add_argument("--rules", nargs="+", default=RULES)
    options = parser.parse_args()
    if options.verb == "train":
        train(options.folder, options.minutes, options.seed)
    elif options.verb == "untrained":
        sizes = {**SIZES, **LARGE}
        write(make_model(sizes), options.folder, sizes)
    else:
        measure(options.bundle, options.problems, options.rules, options.threads)


if __name__ == "__main__":
    main()
