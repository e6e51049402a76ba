"""Kinds of draft heads against what their publishers' code computes, a token at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edgedec.models.config import ModelConfig
from edgedec.models.draft_heads import head_config

torch = pytest.importorskip("torch", reason="needs the extra train")
pytest.importorskip("transformers", reason="an oracle of tests")

from torch import Tensor  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from transformers.models.llama import modeling_llama as llama  # noqa: E402

from edgedec.labs.head_kinds import chimera, clover, falcon, fspad, inside  # noqa: E402
from edgedec.labs.head_kinds.kind import Kind, layer_of  # noqa: E402

pytestmark = pytest.mark.parity

T, N = 12, 3
Weights = dict[str, Any]


class Oracle:
    """The modules of a Llama in transformers, with weights of ours."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = llama.LlamaConfig(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.n_layers,
            num_attention_heads=config.n_heads,
            num_key_value_heads=config.n_kv_heads,
            head_dim=config.head_size,
            rms_norm_eps=config.rms_norm_eps,
            rope_theta=config.rope_theta,
            max_position_embeddings=64,
        )
        self.config._attn_implementation = "eager"
        self._rotary = llama.LlamaRotaryEmbedding(self.config)

    def layer(self, weights: Weights, i: int = 0) -> Any:
        """A decoder layer; what ``weights`` has not is as torch made it."""
        layer = llama.LlamaDecoderLayer(self.config, i).eval()
        prefix = f"layers.{i}."
        own = {k[len(prefix) :]: v for k, v in weights.items() if k.startswith(prefix)}
        shapes = {k: v.shape for k, v in layer.state_dict().items()}
        fitting = {k: v for k, v in own.items() if v.shape == shapes[k]}
        layer.load_state_dict(fitting, strict=False)
        return layer

    def run(self, module: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """What a layer, or the attention of one, makes of rows [T, D], causally without a mask."""
        n = len(x)
        if mask is None:
            mask = torch.ones(n, n, dtype=torch.bool).tril()
        bias = torch.zeros(n, n).masked_fill(~mask, -torch.inf)[None, None]
        places = self._rotary(x, torch.arange(n)[None])
        out = module(x[None], attention_mask=bias, position_embeddings=places)
        return (out[0] if isinstance(out, tuple) else out).reshape(n, -1)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        norm = llama.LlamaRMSNorm(len(weight), self.config.rms_norm_eps)
        norm.load_state_dict({"weight": weight})
        return norm(x)


@pytest.fixture(scope="module")
def model(make_source: Callable[..., Any]) -> tuple[ModelConfig, Weights]:
    source = make_source(n_layers=4)
    return source.config, dict(source.weights)


@pytest.fixture(scope="module")
def of_model(model: tuple[ModelConfig, Weights]) -> Weights:
    config, weights = model
    last = f"layers.{config.n_layers - 1}."
    outside = {name: w for name, w in weights.items() if not name.startswith("layers.")}
    of_last = {name: w for name, w in weights.items() if name.startswith(last)}
    return outside | {name.replace(last, "layers.0."): w for name, w in of_last.items()}


@pytest.fixture(scope="module")
def inputs(model: tuple[ModelConfig, Weights]) -> tuple[Tensor, Tensor]:
    config, _ = model
    rng = np.random.default_rng(3)
    tokens = torch.from_numpy(rng.integers(0, config.vocab_size, (1, T)))
    hidden = torch.from_numpy(rng.standard_normal((1, T, config.hidden_size)).astype(np.float32))
    return tokens, hidden


def random(kind: Kind) -> Weights:
    """Gives all trained weights random values; returns those of the head by name."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in kind.trained().values():
            spread = p.shape[-1] ** -0.5 if p.ndim == 2 else 0.3
            p.add_(spread * torch.randn(p.shape, generator=generator))
    names = [*kind.trained(), "embed_tokens.weight", "lm_head.weight"]
    return {name: kind.weight(name).detach() for name in names}


def made(module: Any, model: tuple[ModelConfig, Weights], of_model: Weights, **more: int) -> Kind:
    config = head_config(model[0], model[0].vocab_size)
    kind: Kind = module.make(config, of_model, T, np.random.default_rng(0), **more)
    return kind.eval()


def check(logits: list[Tensor], wanted: Callable[[int, int], Tensor], first: int) -> None:
    """Compares every row t from ``first`` on, of every step s; lists end with the last row."""
    for step, of_step in enumerate(logits):
        rows = dict(zip(range(T - of_step.shape[1], T), of_step[0], strict=True))
        for t in range(first + step, T):
            torch.testing.assert_close(rows[t], wanted(step, t), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_layer_adds_nothing_to_its_rows_at_first(
    model: tuple[ModelConfig, Weights], of_model: Weights
) -> None:
    made = layer_of(of_model, np.random.default_rng(0))
    weights = {name: torch.from_numpy(values) for name, values in made.items()}
    rows, oracle = torch.arange(T * model[0].hidden_size).float().view(T, -1), Oracle(model[0])
    torch.testing.assert_close(oracle.run(oracle.layer(weights), rows), rows, rtol=0, atol=0)


@torch.no_grad()
def test_clover(
    model: tuple[ModelConfig, Weights], of_model: Weights, inputs: tuple[Tensor, Tensor]
) -> None:
    kind, oracle = made(clover, model, of_model), Oracle(model[0])
    w, (tokens, hidden) = random(kind), inputs
    states, token = kind.states(hidden)[0], w["embed_tokens.weight"][tokens[0]]
    size, n_heads = model[0].hidden_size, model[0].n_heads

    def remembered(x: Tensor, y: Tensor, name: str) -> Tensor:
        """`ResAttentionBlock.forward`."""
        q, k, v = (
            F.linear(z, w[f"{name}.{part}.weight"], w[f"{name}.{part}.bias"])
            for part, z in (("q", oracle.norm(x, w[f"{name}.norm.weight"])), ("k", y), ("v", y))
        )
        width = size // n_heads
        share = F.cosine_similarity(q.view(-1, width), k.view(-1, width), eps=model[0].rms_norm_eps)
        return x + (v.view(-1, n_heads, width) * share.view(-1, n_heads, 1)).view(v.size())

    x = oracle.run(oracle.layer(w), remembered(states[:-1], token[1:], "first"))
    carried = [oracle.norm(x, w["norm.weight"])]
    outs = [F.linear(carried[0], w["out.weight"], w["out.bias"])]
    for step in range(1, N):
        carried.append(remembered(carried[-1][:-1], token[1 + step :], "later"))
        both = torch.cat([carried[-1], token[1 + step :]], -1)
        outs.append(F.linear(both, w["later_out.weight"], w["later_out.bias"]))

    def wanted(step: int, t: int) -> Tensor:
        return F.linear(
            oracle.norm(outs[step][t - step - 1], w["head_norm.weight"]), w["lm_head.weight"]
        )

    check(kind(tokens, hidden, N), wanted, 1)


@torch.no_grad()
def test_fspad(
    model: tuple[ModelConfig, Weights], of_model: Weights, inputs: tuple[Tensor, Tensor]
) -> None:
    kind, oracle = made(fspad, model, of_model), Oracle(model[0])
    w, (tokens, hidden) = random(kind), inputs
    states, token = kind.states(hidden)[0], w["embed_tokens.weight"][tokens[0]]
    attention = oracle.layer(w).self_attn

    def rows(features: Tensor) -> Tensor:
        """`Model.forward` of as many tokens as there are features."""
        e = token[: len(features)]
        x = F.linear(torch.cat([e, features], -1), w["fc.weight"], w["fc.bias"])
        gate = F.silu(F.linear(e, w["fc_gate.weight"]))
        up = F.linear(oracle.norm(x, w["fc_norm.weight"]), w["fc_up.weight"])
        x = x + F.linear(gate * up, w["fc_down.weight"])
        x = x + oracle.run(attention, x)
        h = oracle.norm(x, w["layers.0.post_attention_layernorm.weight"])
        mlp = {p: w[f"layers.0.mlp.{p}_proj.weight"] for p in ("gate", "up", "down")}
        inner = F.silu(F.linear(h, mlp["gate"])) * F.linear(h, mlp["up"])
        return torch.cat([x, x], -1) + F.linear(inner, mlp["down"])

    def wanted(step: int, t: int) -> Tensor:
        features = torch.cat([torch.zeros(1, states.shape[1]), states])[: t - step + 1]
        for _ in range(step):
            regressed = rows(features)[-1].chunk(2)[1]
            features = torch.cat([features, regressed[None]])
        return F.linear(rows(features)[-1].chunk(2)[0], w["lm_head.weight"])

    check(kind(tokens, hidden, N), wanted, 0)


@torch.no_grad()
def test_chimera(
    model: tuple[ModelConfig, Weights], of_model: Weights, inputs: tuple[Tensor, Tensor]
) -> None:
    kind, oracle = made(chimera, model, of_model, n_steps=N), Oracle(model[0])
    w, (tokens, hidden) = random(kind), inputs
    states, token = kind.states(hidden)[0], w["embed_tokens.weight"][tokens[0]]
    layer = oracle.layer(w)

    def trigram(t: int) -> Tensor:
        x = torch.cat([token[t - 2], token[t - 1], token[t]])
        x = x + F.silu(F.linear(x, w["block.weight"], w["block.bias"]))
        return F.linear(x, w["gram.weight"])

    def wanted(step: int, t: int) -> Tensor:
        rows = states[: t - step]
        last = rows[-1]
        for at in range(t - step, t + 1):
            out = oracle.run(layer, torch.cat([rows, trigram(at)[None]]))[-1:]
            rows = torch.cat([rows, out])
        row = F.linear(torch.cat([last, rows[-1]]), w[f"heads.{step}.weight"])
        return F.linear(row, w["lm_head.weight"])

    check(kind(tokens, hidden, N), wanted, 2)


@torch.no_grad()
def test_falcon(
    model: tuple[ModelConfig, Weights], of_model: Weights, inputs: tuple[Tensor, Tensor]
) -> None:
    kind, oracle = made(falcon, model, of_model), Oracle(model[0])
    w, (tokens, hidden) = random(kind), inputs
    states, token = kind.states(hidden)[0], w["embed_tokens.weight"][tokens[0]]
    size = model[0].hidden_size
    lstm = torch.nn.LSTM(2 * size, size, 2, batch_first=True)
    lstm.load_state_dict(
        {
            f"{name}_{part}_l{i}": w[f"lstm.{i}.{part}.{name}"]
            for i in range(2)
            for part in ("ih", "hh")
            for name in ("weight", "bias")
        }
    )
    layer = oracle.layer(w)

    def block(t: int) -> Tensor:
        """Logits of the block that ends with the token ``t``: `Model.forward`, `k_mask` rows."""
        before = torch.cat([torch.zeros(1, size), states])[: t + 1]
        x = lstm(torch.cat([token[: t + 1], before], -1)[None])[0][0]
        mask = torch.zeros(t + 1, t + 1, dtype=torch.bool)
        for i in range(0, t + 1, N):
            mask[i : i + N, : i + N] = True
        x = x + oracle.run(layer.self_attn, x, mask)
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        return F.linear(x[-N:], w["lm_head.weight"])

    logits = kind(tokens, hidden, N)
    for t in range(N - 1, T, N):
        for step, of_block in enumerate(block(t)):
            if t + step < T:  # of step s, row t + s stands for the block's token s
                torch.testing.assert_close(
                    logits[step][0, t + step - (N - 1)], of_block, rtol=1e-4, atol=1e-4
                )


@torch.no_grad()
@pytest.mark.parametrize("layers", [(0, 0, 0), (1, 2, 3), (2, 2, 2)], ids=str)
def test_rows_inside_the_model(
    model: tuple[ModelConfig, Weights], inputs: tuple[Tensor, Tensor], layers: tuple[int, ...]
) -> None:
    """Prompt tokens, and hidden states that are transferred behind some of the layers."""
    (config, weights), (tokens, hidden) = model, inputs
    context, rng = T + N, np.random.default_rng(0)
    if any(layers):
        kind = inside.make_hidden_transfer(config, weights, context, rng, layers)
    else:
        kind = inside.make_ppd(config, weights, context, rng, N)
    own, oracle = random(kind), Oracle(config)
    w = {name: torch.from_numpy(values) for name, values in weights.items()}
    stack = [oracle.layer(w, i) for i in range(config.n_layers)]
    token = w["embed_tokens.weight"][tokens[0]]

    def wanted(step: int, t: int) -> Tensor:
        n = t - step  # tokens that were read
        x = token[:n]
        for i, layer in enumerate(stack):
            last = x[n - 1]
            entering = [j for j in range(step + 1) if layers[j] == i]
            for j in entering:
                row = own[f"prompt.{j}.weight"] if i == 0 else own[f"map.{j}.weight"] @ last
                x = torch.cat([x, row[None]])
            x = oracle.run(layer, x)
        return F.linear(oracle.norm(x[-1], w["norm.weight"]), w["lm_head.weight"])

    check(kind(tokens, hidden, N), wanted, 1)
