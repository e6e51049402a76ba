"""Adapters as PEFT makes, saves and merges them; `tools/fuzz/adapters.py` draws more of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FUZZ = Path(__file__).parents[2] / "tools/fuzz"
LINEAR = ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"]
BIASED: dict[str, Any] = {"attention_bias": True, "tie_word_embeddings": False}
UNTIED: dict[str, Any] = {"tie_word_embeddings": False}
PLAIN: dict[str, Any] = {"r": 4, "lora_alpha": 12, "target_modules": LINEAR}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "rank pattern": (UNTIED, {"rank_pattern": {"layers.1.self_attn.q_proj": 7, "o_proj": 2}}),
    "alpha pattern": (UNTIED, {"alpha_pattern": {"q_proj": 30, r".*\.0\..*": 3}}),
    "both": (UNTIED, {"rank_pattern": {"q.*": 3}, "alpha_pattern": {"q.*": 5}, "use_rslora": True}),
    "DoRA": (UNTIED, {"use_dora": True}),
    "DoRA with patterns": (UNTIED, {"use_dora": True, "rank_pattern": {"q_proj": 1}}),
    "biases": (BIASED, {"bias": "all"}),
    "biases of LoRA": (BIASED, {"bias": "lora_only"}),
    "bias of B": (BIASED, {"lora_bias": True, "target_modules": ["q_proj", "k_proj"]}),
    "norms": (UNTIED, {"modules_to_save": ["norm", "input_layernorm"]}),
    "head and embedding": (UNTIED, {"modules_to_save": ["lm_head", "embed_tokens"]}),
    "embedding": (UNTIED, {"target_modules": ["embed_tokens", "lm_head", "q_proj"]}),
    "tokens": (UNTIED, {"trainable_token_indices": [3, 40, 7]}),
    "tokens of a tied head": ({"tie_word_embeddings": True}, {"trainable_token_indices": [3, 40]}),
    "fan_in_fan_out": (UNTIED, {"fan_in_fan_out": True}),
    "layers": (UNTIED, {"layers_to_transform": [1]}),
    "gaussian": (UNTIED, {"init_lora_weights": "gaussian"}),
    "orthogonal": (UNTIED, {"init_lora_weights": "orthogonal"}),
}
EXPERTS: dict[str, tuple[str, dict[str, Any]]] = {
    "both stacked linears": (
        "granitemoe", {"target_parameters": ["output_linear.weight", "input_linear.weight"]}
    ),
    "one of them": ("granitemoe", {"target_parameters": ["output_linear.weight"]}),
    "both parameters": ("gpt_oss", {"target_parameters": ["gate_up_proj", "experts.down_proj"]}),
    "a rank for one": ("gpt_oss", {"target_parameters": ["down_proj", "gate_up_proj"],
                                   "rank_pattern": {"gate_up_proj": 2}, "use_rslora": True}),
    "a router": ("gpt_oss", {"target_parameters": ["router.weight", "down_proj"],
                             "alpha_pattern": {"router.weight": 40}}),
    "linears of one expert": ("mixtral", {"target_modules": ["w1", "w2", "w3", "gate"]}),
    "with DoRA": ("qwen3_moe", {"target_modules": ["gate_proj", "down_proj"], "use_dora": True}),
}  # fmt: skip
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "PiSSA": (UNTIED, {"init_lora_weights": "pissa"}, "init_lora_weights"),
    "OLoRA": (UNTIED, {"init_lora_weights": "olora"}, "init_lora_weights"),
    "squares": (
        {"family": "granitemoe", "intermediate_size": 32, "num_local_experts": 4},
        {"target_parameters": ["output_linear.weight"], "target_modules": []},
        "squares",
    ),
    "tied head": ({"tie_word_embeddings": True}, {"modules_to_save": ["lm_head"]}, "one matrix"),
}

pytestmark = [pytest.mark.parity, pytest.mark.slow]


@pytest.fixture(scope="module")
def tool() -> Iterator[Any]:
    pytest.importorskip("peft", reason="needs the dev extra")
    sys.path.insert(0, str(FUZZ))
    import adapters

    yield adapters
    sys.path.remove(str(FUZZ))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_what_peft_merges(tool: Any, tmp_path: Path, name: str) -> None:
    model, config = CASES[name]
    assert tool.compared(tmp_path, model, {**PLAIN, **config}, 0) == "equal"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("key", ["rank_pattern", "alpha_pattern", "target_modules",
                                 "exclude_modules", "modules_to_save"])  # fmt: skip
def test_names_that_peft_ignores_are_reported(tool: Any, tmp_path: Path, key: str) -> None:
    absent = ["query_key_value", "layers.7.self_attn.q_proj"]
    names: Any = dict.fromkeys(absent, 3) if key.endswith("pattern") else absent
    config = {**PLAIN, key: [*LINEAR, *absent] if key == "target_modules" else names}
    outcome = tool.compared(tmp_path, UNTIED, config, 0)
    assert outcome == "equal, and names of nothing are reported"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EXPERTS)
def test_what_peft_merges_into_experts(tool: Any, tmp_path: Path, name: str) -> None:
    family, config = EXPERTS[name]
    config = {**PLAIN, "target_modules": ["q_proj"], **config}
    model = {"family": family, **tool.MIXTURES[family]}
    assert tool.compared(tmp_path, model, config, 0) == "equal"


def test_experts_that_transformers_5_stacks(tool: Any, tmp_path: Path) -> None:
    """Adapters of its parameters, made by PEFT, for a directory with a tensor for each expert."""
    import peft
    import torch

    settings = {"family": "qwen3_moe", **UNTIED, **tool.MIXTURES["qwen3_moe"]}
    made = tool.made_by_peft(tmp_path, settings, {**PLAIN, "target_modules": ["q_proj"]}, 0)
    assert made is not None
    base = tool.HuggingFaceCheckpoint(tmp_path / "base")
    gate, up, down = (
        base.rows(f"layers.1.mlp.experts.{part}_proj.weight", 0, n).dequantize().reshape(4, -1, k)
        for part, n, k in (("gate", 96, 32), ("up", 96, 32), ("down", 128, 24))
    )

    class Stacked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            both = torch.tensor(np.concatenate([gate, up], axis=1))
            self.gate_up_proj = torch.nn.Parameter(both)
            self.down_proj = torch.nn.Parameter(torch.tensor(down))

    holder = torch.nn.Module()
    place = holder
    for name in ("model", "layers", "1", "mlp"):
        place.add_module(name, torch.nn.Module())
        place = getattr(place, name)
    place.add_module("experts", Stacked())
    config = peft.LoraConfig(
        r=3, lora_alpha=5, target_modules=[], target_parameters=["gate_up_proj", "down_proj"]
    )
    made = peft.get_peft_model(holder, config)
    for parameter in made.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.05 * parameter.requires_grad)
    made.save_pretrained(tmp_path / "stacked")
    experts = made.merge_and_unload().model.layers.get_submodule("1").mlp.experts
    merged = tool.Merged(base, ((tmp_path / "stacked", 1.0),))
    both = experts.gate_up_proj.detach().numpy()
    for part, expected in (
        ("gate", both[:, :24]), ("up", both[:, 24:]), ("down", experts.down_proj.detach().numpy())
    ):  # fmt: skip
        name = f"layers.1.mlp.experts.{part}_proj.weight"
        n = expected.shape[0] * expected.shape[1]
        found = np.concatenate(
            [merged.rows(name, at, min(at + 17, n)).dequantize() for at in range(0, n, 17)]
        )
        np.testing.assert_allclose(found, expected.reshape(n, -1), rtol=2e-5, atol=2e-6)


@pytest.mark.filterwarnings("ignore")
def test_the_router_that_transformers_5_names(tool: Any, tmp_path: Path) -> None:
    """It calls Mixtral's ``mlp.gate``; the directory says ``block_sparse_moe.gate``."""
    from safetensors.numpy import load_file, save_file

    settings = {"family": "mixtral", **UNTIED, **tool.MIXTURES["mixtral"]}
    config = {**PLAIN, "target_modules": ["gate", "q_proj"]}
    assert tool.made_by_peft(tmp_path, settings, config, 0) is not None
    path = tmp_path / "adapter/adapter_model.safetensors"
    named = {k.replace("block_sparse_moe", "mlp"): v for k, v in load_file(path).items()}
    assert "base_model.model.model.layers.1.mlp.gate.lora_A.weight" in named
    save_file(named, path)
    base, expected = (tool.HuggingFaceCheckpoint(tmp_path / name) for name in ("base", "merged"))
    merged = tool.Merged(base, ((tmp_path / "adapter", 1.0),))
    for layer in (0, 1):
        name = f"layers.{layer}.mlp.router.weight"
        theirs, ours = (source.rows(name, 0, 4).dequantize() for source in (expected, merged))
        assert abs(theirs - base.rows(name, 0, 4).dequantize()).max() > 0.01
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


def whole_state(tool: Any, folder: Path, model: dict[str, Any], config: dict[str, Any]) -> Any:
    """Returns the adapter whose file is the whole state of PEFT's model, and what PEFT merges."""
    import peft
    import transformers
    from safetensors.torch import save_file

    assert tool.made_by_peft(folder, model, {**PLAIN, **config}, 0) is not None
    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "base")
    state = peft.PeftModel.from_pretrained(base, str(folder / "adapter")).state_dict()
    copies = {name: tensor.clone().contiguous() for name, tensor in state.items()}
    save_file(copies, folder / "adapter/adapter_model.safetensors")
    return (
        tool.Merged(tool.HuggingFaceCheckpoint(folder / "base"), ((folder / "adapter", 1.0),)),
        tool.HuggingFaceCheckpoint(folder / "merged"),
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("is_tied", "config"),
    [
        (False, {}),
        (True, {}),
        (False, {"trainable_token_indices": [3, 40, 7]}),
        (True, {"trainable_token_indices": [3, 40, 7]}),
        (False, {"trainable_token_indices": {"embed_tokens": [3, 5], "lm_head": [7]}}),
        (False, {"modules_to_save": ["lm_head", "norm"]}),
        (False, {"target_modules": ["embed_tokens", "q_proj"]}),
    ],
)
def test_a_whole_state_of_peft(
    tool: Any, tmp_path: Path, is_tied: bool, config: dict[str, Any]
) -> None:
    """It holds all weights of the base model beside the adapter's, under PEFT's names."""
    ours, theirs = whole_state(tool, tmp_path, {"tie_word_embeddings": is_tied}, config)
    for name, shape in tool.weight_shapes(theirs.config).items():
        if len(shape) == 2:
            values, expected = (tool.float_rows(one, name, 0, shape[0]) for one in (ours, theirs))
            np.testing.assert_allclose(values, expected, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.filterwarnings("ignore")
def test_a_whole_state_with_stacked_experts_is_refused(tool: Any, tmp_path: Path) -> None:
    from edgedec.models.errors import UnsupportedModelError

    model = {"family": "granitemoe", **UNTIED, **tool.MIXTURES["granitemoe"]}
    with pytest.raises(UnsupportedModelError, match=r"of the base model: save the adapter alone"):
        whole_state(tool, tmp_path, model, {"target_modules": ["q_proj"]})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_what_merging_cannot_do(tool: Any, tmp_path: Path, name: str) -> None:
    model, config, reason = REFUSED[name]
    assert tool.compared(tmp_path, model, {**PLAIN, **config}, 0) == f"refused: {reason}"


@pytest.mark.filterwarnings("ignore")
def test_adapters_drawn_at_random(tool: Any) -> None:
    import random

    outcomes = [tool.try_once(random.Random(seed)) for seed in range(1000, 1024)]
    assert outcomes.count("equal") > 5


@pytest.mark.filterwarnings("ignore")
def test_the_conversion_that_refusals_name(tool: Any, tmp_path: Path) -> None:
    """Merging with PEFT gives the trained model of PiSSA: its logits are those of the adapter."""
    import peft
    import torch
    import transformers

    made = tool.made_by_peft(tmp_path, UNTIED, {**PLAIN, "init_lora_weights": "pissa"}, 0)
    assert made is not None
    base = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "base")
    trained = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
    merged = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "merged")
    ids = torch.arange(1, 20)[None]
    with torch.no_grad():
        torch.testing.assert_close(merged(ids).logits, trained(ids).logits, atol=1e-4, rtol=1e-4)
