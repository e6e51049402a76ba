"""Decoding with layers left out, against transformers with the same layers taken away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import edgedec
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.labs.methods.layer_policies import LayerPolicy, make_policy
from edgedec.runtime.config import GenerationConfig, LayersConfig
from edgedec.runtime.sequences.rows import Rows

from ..tiny_llama import TOKENIZER, sizes

torch = pytest.importorskip("torch", reason="needs the extra train")
transformers = pytest.importorskip("transformers", reason="needs the dev extra")

N_LAYERS, N_NEW = 8, 24
PROMPTS = ["hello there, hello", "4242 4242 hello he", "w,w"]
SETTINGS = [
    "unified:keep=0.75",
    "unified:keep=0.4",
    "skipdecode:keep=0.5,over=12",
    "ffn:cosine=0.8,warm_up=3,every=4",
]


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(5)
    made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes(N_LAYERS))).eval()
    for name, parameter in made.named_parameters():
        is_norm = "norm" in name
        torch.nn.init.normal_(parameter, mean=float(is_norm), std=0.3 if is_norm else 0.15)
    return made


@pytest.fixture(scope="module")
def engine(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[edgedec.Engine]:
    folder = tmp_path_factory.mktemp("layers")
    model.save_pretrained(folder / "hf")
    (folder / "hf" / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    hidden = tuple(range(2, N_LAYERS - 1))
    asked = ExportConfig(str(folder / "hf"), folder / "tiny.edgedec", hidden_layers=hidden)
    export(asked)
    with edgedec.load(folder / "tiny.edgedec") as opened:
        yield opened


class Reference:
    """The model of transformers, of which each pass runs what the policy says."""

    def __init__(self, model: Any, policy: LayerPolicy) -> None:
        self._model = model
        self._policy = policy
        self._cache = transformers.DynamicCache()

    def logits(self, tokens: list[int], n_new: int | None) -> np.ndarray:
        """Returns the logits behind the tokens; of the prompt, where n_new is None, all runs."""
        gates = None if n_new is None else self._policy.gates(n_new)
        inner, layers = self._model.model, list(self._model.model.layers)
        hooks = []
        if gates is not None:
            kept = [layer for i, layer in enumerate(layers) if gates[2 * i]]
            hooks = [
                layer.mlp.register_forward_hook(lambda _module, _inputs, out: 0 * out)
                for i, layer in enumerate(layers)
                if gates[2 * i] and not gates[2 * i + 1]
            ]
            inner.layers = torch.nn.ModuleList(kept)
        past = self._cache.get_seq_length()
        with torch.inference_mode():
            found = self._model(
                torch.tensor([tokens]),
                past_key_values=self._cache,
                cache_position=torch.arange(past, past + len(tokens)),
                output_hidden_states=True,
            )
        for hook in hooks:
            hook.remove()
        inner.layers = torch.nn.ModuleList(layers)
        if n_new is not None and gates is None:
            hidden = {i: states[0].numpy() for i, states in enumerate(found.hidden_states)}
            self._policy.learn(Rows(found.logits[0].numpy(), hidden=hidden))
        return np.asarray(found.logits[0, -1])


@pytest.mark.parametrize("text", SETTINGS)
def test_tokens_are_the_likeliest_of_what_is_left(
    engine: edgedec.Engine, model: Any, text: str
) -> None:
    """Weights of 8 bits: a token may be another where two are as good as equal."""
    setting = LayersConfig.parse(text)
    n_other = n_left_out = 0
    for prompt in PROMPTS:
        found = engine.generate(
            prompt, GenerationConfig(max_new_tokens=N_NEW, ignore_eos=True, layers=setting)
        )
        assert found.lossless is False
        assert found.method == text
        policy = make_policy(setting, N_LAYERS, N_NEW, range(N_LAYERS + 1))
        reference, fed = Reference(model, policy), list(engine.encode(prompt))
        for i, token in enumerate(found.token_ids):
            logits = reference.logits(fed, None if i == 0 else i - 1)
            assert logits.max() - logits[token] < 0.05 * logits.std()
            n_other += int(logits.argmax()) != token
            n_left_out += 0 if i == 0 else 2 * N_LAYERS - sum(policy.gates(i - 1) or [True] * 16)
            fed = [token]
    assert n_other < 0.05 * N_NEW * len(PROMPTS)
    assert n_left_out > 20


def test_what_is_left_out_matters(engine: edgedec.Engine) -> None:
    """Else the test above could not fail."""
    plain = engine.generate(PROMPTS[0], GenerationConfig(max_new_tokens=N_NEW, ignore_eos=True))
    for text in SETTINGS:
        config = GenerationConfig(
            max_new_tokens=N_NEW, ignore_eos=True, layers=LayersConfig.parse(text)
        )
        assert engine.generate(PROMPTS[0], config).token_ids != plain.token_ids


def test_nothing_of_it_stays_in_the_kv_cache(engine: edgedec.Engine) -> None:
    asked = GenerationConfig(max_new_tokens=N_NEW, ignore_eos=True)
    approximate = GenerationConfig(
        max_new_tokens=N_NEW, ignore_eos=True, layers=LayersConfig.parse(SETTINGS[1])
    )
    before = engine.generate(PROMPTS[0], asked)
    found = engine.generate(PROMPTS[0], approximate)
    follows = [*engine.encode(PROMPTS[0]), *found.token_ids]
    after = engine.generate(follows, asked)
    engine.forget_prompts()
    assert after.token_ids == engine.generate(follows, asked).token_ids
    assert before.token_ids == engine.generate(PROMPTS[0], asked).token_ids


def test_all_layers_are_plain_decoding(engine: edgedec.Engine) -> None:
    asked = GenerationConfig(max_new_tokens=N_NEW, ignore_eos=True, method="plain")
    every = GenerationConfig(
        max_new_tokens=N_NEW, ignore_eos=True, layers=LayersConfig.parse("unified:keep=1")
    )
    for prompt in PROMPTS:
        found = engine.generate(prompt, every)
        assert found.token_ids == engine.generate(prompt, asked).token_ids
        assert not found.lossless
