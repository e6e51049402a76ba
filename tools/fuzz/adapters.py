"""Adapter configurations, drawn at random, against what PEFT makes of them.

    python tools/fuzz/adapters.py --tries 500 --seconds 500

Each try trains nothing: PEFT makes an adapter of a tiny llama, or of a tiny mixture of experts, its
weights get random values, PEFT saves and merges it, and edgedec merges it, too. Both have the same
weights, or edgedec refuses in one line. edgedec reports exactly the names that no module of the
model has. Called again it goes on.
"""

from __future__ import annotations

import random
import re
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from pieces import run_tries

from edgedec.export.checkpoints.lora import Merged
from edgedec.export.checkpoints.safetensors_dir import HuggingFaceCheckpoint
from edgedec.models.errors import EdgedecError
from edgedec.models.families import weight_shapes
from edgedec.models.weights import float_rows

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SIZES: dict[str, Any] = {
    "vocab_size": 48, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
MIXTURES: dict[str, dict[str, Any]] = {
    "granitemoe": {"logits_scaling": 1.0, **_EXPERTS},
    "gpt_oss": {"head_dim": 8, "layer_types": ["sliding_attention", "full_attention"], **_EXPERTS},
    "mixtral": _EXPERTS,
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
                  "head_dim": 8},
}  # fmt: skip
PARAMETERS = {
    "granitemoe": ["input_linear.weight", "block_sparse_moe.output_linear.weight"],
    "gpt_oss": ["mlp.experts.gate_up_proj", "down_proj", "router.weight"],
}
"""Parameters of experts, by models that stack them."""
OF_EXPERTS = {"mixtral": ["w1", "w2", "w3", "gate"],
              "qwen3_moe": ["gate_proj", "up_proj", "down_proj", "gate"]}  # fmt: skip


def drawn(rng: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns settings of a model, and of an adapter for it."""
    return drawn_mixture(rng) if rng.random() < 0.3 else drawn_llama(rng)


def drawn_mixture(rng: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns settings of a mixture of experts, and of an adapter for its experts."""
    family = rng.choice(list(MIXTURES))
    model = {"family": family, "tie_word_embeddings": rng.random() < 0.3, **MIXTURES[family]}
    if rng.random() < 0.2:  # squares
        model |= {"intermediate_size": 32, "moe_intermediate_size": 32}
    config: dict[str, Any] = {
        "r": rng.randint(1, 4), "lora_alpha": rng.randint(1, 24), "use_rslora": rng.random() < 0.3,
        "target_modules": rng.sample(["q_proj", "o_proj", "k_proj"], rng.randint(0, 3)),
    }  # fmt: skip
    if family in OF_EXPERTS:
        some = OF_EXPERTS[family]
        config["target_modules"] += rng.sample(some, rng.randint(1, len(some)))
        config["use_dora"] = rng.random() < 0.3
        keys = [*some, r".*experts\.2\..*"]
    else:
        some = PARAMETERS[family]
        config["target_parameters"] = rng.sample(some, rng.randint(1, len(some)))
        keys = [key.rpartition(".")[2] for key in some] + [r".*\.1\..*"]
    for pattern, most in (("rank_pattern", 5), ("alpha_pattern", 30)):
        if rng.random() < 0.3:
            config[pattern] = {rng.choice(keys): rng.randint(1, most)}
    return model, config


def drawn_llama(rng: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns settings of a llama, and of an adapter for it."""
    is_tied, has_bias = rng.random() < 0.25, rng.random() < 0.4
    model = {"tie_word_embeddings": is_tied, "attention_bias": has_bias}
    modules = rng.sample(LINEAR, rng.randint(1, 7))
    modules += rng.sample(["lm_head", "embed_tokens"], rng.choice((0, 0, 0, 1, 2)))
    config: dict[str, Any] = {
        "r": rng.randint(1, 6), "lora_alpha": rng.randint(1, 24), "target_modules": modules,
        "use_rslora": rng.random() < 0.3, "use_dora": rng.random() < 0.3,
        "bias": rng.choice(("none", "none", "all", "lora_only")),
        "fan_in_fan_out": rng.random() < 0.1, "lora_dropout": rng.choice((0.0, 0.1)),
        "init_lora_weights": rng.choice(
            (True, True, True, False, "gaussian", "pissa", "pissa_niter_4", "olora", "orthogonal")
        ),
    }  # fmt: skip
    if rng.random() < 0.3:
        config["rank_pattern"] = {rng.choice(_patterns(modules)): rng.randint(1, 8)}
    if rng.random() < 0.3:
        config["alpha_pattern"] = {rng.choice(_patterns(modules)): rng.randint(1, 30)}
    if rng.random() < 0.2:
        config["modules_to_save"] = rng.sample(
            ["norm", "lm_head", "embed_tokens", "input_layernorm"], rng.randint(1, 2)
        )
    if rng.random() < 0.15:
        config["trainable_token_indices"] = rng.sample(range(48), 3)
    if rng.random() < 0.15:
        config["layers_to_transform"] = rng.choice(([0], [1], 1))
    if rng.random() < 0.1:
        config["lora_bias"] = True
    if rng.random() < 0.25:
        _name_nothing(rng, config)
    return model, config


def _name_nothing(rng: random.Random, config: dict[str, Any]) -> None:
    """Adds a name that no module has."""
    key = rng.choice((*PATTERNS, *LISTS))
    if key in PATTERNS:
        config[key] = {**config.get(key, {}), "query_key_value": 3}
    else:
        config[key] = [*(config.get(key) or []), "query_key_value"]


PATTERNS = ("rank_pattern", "alpha_pattern")
LISTS = ("target_modules", "exclude_modules", "modules_to_save")


def names_of_nothing(model: Any, config: dict[str, Any]) -> set[tuple[str, str]]:
    """Returns each key with each of its names that no module, or parameter, of ``model`` has.

    transformers 5 stacks experts that 4 has one by one. PEFT knows them by their names in 4.
    """
    parameters = [name for name, _ in model.named_parameters()]
    modules = [*(name for name, _ in model.named_modules()), *parameters]
    of_experts = OF_EXPERTS.get(model.config.model_type, ())
    modules += [f"mlp.experts.{i}.{name}" for i in range(4) for name in of_experts]
    return {
        (key, name)
        for key in (*PATTERNS, *LISTS)
        for name in config.get(key) or ()
        if not any(
            re.match(rf"(.*\.)?({name})$", module)
            if key in PATTERNS
            else module == name or module.endswith(f".{name}")
            for module in modules
        )
    }


def _patterns(modules: list[str]) -> list[str]:
    return [*modules, f"layers.1.self_attn.{modules[0]}", r".*\.0\..*", "q.*", "model.norm"]


def try_once(rng: random.Random) -> str:
    """Returns what became of one try: equal, refused, or not made by PEFT.

    Raises:
        AssertionError: The weights differ.
    """
    model, config = drawn(rng)
    folder = Path(tempfile.mkdtemp())
    try:
        return compared(folder, model, config, rng.randrange(2**31))
    finally:
        shutil.rmtree(folder)


def compared(folder: Path, model: dict[str, Any], config: dict[str, Any], seed: int) -> str:
    """Returns what becomes of an adapter with ``config`` in the empty ``folder``."""
    absent = made_by_peft(folder, model, config, seed)
    if absent is None:
        return "not made by PEFT"
    base = HuggingFaceCheckpoint(folder / "base")
    try:
        ours = Merged(base, ((folder / "adapter", 1.0),))
    except EdgedecError as error:
        return f"refused: {_kind(str(error))}"
    theirs = HuggingFaceCheckpoint(folder / "merged")
    for name, shape in weight_shapes(theirs.config).items():
        if len(shape) == 2:
            pair = [float_rows(source, name, 0, shape[0]) for source in (ours, theirs)]
        else:
            pair = [source.vector(name) for source in (ours, theirs)]
        np.testing.assert_allclose(
            *pair, rtol=2e-4, atol=2e-5, err_msg=f"{name} of {model} {config}"
        )
    lines = [re.search(r": (\w+) names '(.*)', which no", line) for line in ours.unapplied]
    reported = {(match[1], match[2].replace("\\\\", "\\")) for match in lines if match}
    assert None not in lines, ours.unapplied
    assert reported == absent, f"{reported} of {absent} in {config}"
    return "equal, and names of nothing are reported" if absent else "equal"


def _kind(text: str) -> str:
    kinds = (
        "squares",
        "init_lora_weights",
        "one matrix",
        "vocabulary",
        "does not have",
        "magnitudes",
    )
    return next((kind for kind in kinds if kind in text), text)


def made_by_peft(
    folder: Path, model: dict[str, Any], config: dict[str, Any], seed: int
) -> set[tuple[str, str]] | None:
    """Has PEFT make, save, load and merge such an adapter, in ``folder``.

    Returns:
        The `names_of_nothing` of it; None where PEFT cannot make it.
    """
    import peft
    import torch
    import transformers

    warnings.simplefilter("ignore")
    torch.manual_seed(seed)
    settings = {"family": "llama", **SIZES, **model}
    config_of = transformers.AutoConfig.for_model(settings.pop("family"), **settings)
    llama = transformers.AutoModelForCausalLM.from_config(config_of)
    for name, parameter in llama.named_parameters():
        if name.endswith("bias") or "norm" in name or "experts" in name:
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
    llama.save_pretrained(folder / "base")
    absent = names_of_nothing(llama, config)
    try:
        made = peft.get_peft_model(llama, peft.LoraConfig(task_type="CAUSAL_LM", **config))
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter.data.add_(torch.randn_like(parameter) * 0.05)
        made.save_pretrained(folder / "adapter")
        again = transformers.AutoModelForCausalLM.from_pretrained(folder / "base")
        loaded = peft.PeftModel.from_pretrained(again, str(folder / "adapter"))
        merged = loaded.merge_and_unload()
        if any("modules_to_save" in name for name in merged.state_dict()):
            return None  # tokens that are trained beside their whole embedding, in some orders
        merged.save_pretrained(folder / "merged")
    except Exception:  # PEFT raises bare exceptions for what it cannot do
        return None
    return absent


def main() -> int:
    """Tries adapters; prints how many came out how."""
    outcomes: Counter[str] = Counter()

    def piece(seed: int) -> int:
        outcomes[try_once(random.Random(seed))] += 1
        return 1

    return run_tries(__doc__ or "", "adapters", 500, piece, outcomes)


if __name__ == "__main__":
    sys.exit(main())
