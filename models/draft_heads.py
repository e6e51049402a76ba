"""Draft heads: what guesses a model's next tokens from its hidden states.

A head of the kind `EAGLE` is one decoder layer. Row t reads the embedding of token t beside
*features* of token t - 1: hidden states of the target model where that has computed them, else what
the head itself made of row t - 1. Its logits are about token t + 1.

Heads of the kinds `EXIT` and `ADAPTER` end the model early: the features of row t are the hidden
state of token t behind the first layers. `EXIT` is the model's own norm and some rows of its LM
head, one for all exits; `ADAPTER` has a decoder layer before them, trained for one exit.

`MTP_LAYER` is a layer that the model's publisher trained for drafting. Its rows read as those of
`EAGLE` do: the last layer's hidden states behind the model's final norm, else the head's own
outputs. Its LM head is the model's.

`EAGLE3` is an EAGLE-3 head as publishers train it: the states of three layers as they are, through
a matrix, or its own output before the norm; attention reads the normed token beside them.

`DFLASH` is a stack of layers that publishers train to fill masks in behind the text. Rows of the
text give it keys and values alone, made of hidden states of some layers. Rows of a block, the last
token and masks behind it, see these and each other. Embeddings and LM head are the model's. In
some, convolutions around the sub-layers mix each row of a block with the one before.

`PARD2` is a whole draft model, with embeddings and LM head of its own. Hidden states of some layers
are added to its embeddings, through a matrix.

Source: EAGLE (Li et al., 2024) for the shift by one and the head's own outputs as features, EAGLE-3
(Li et al., 2025) for features of several layers; Medusa (Cai et al., 2024), Hydra (Ankner et al.,
2024), whose residual blocks are gated MLPs here; LayerSkip (Elhoushi et al., 2024) for exits,
Kangaroo (Liu et al., 2024) for their adapters; vllm-project/vllm ``qwen3_next_mtp.py``
(Apache-2.0) for what `MTP_LAYER` computes, sgl-project/SpecForge ``llama3_eagle.py`` (Apache-2.0)
for `EAGLE3`, z-lab/dflash ``model.py`` (MIT) for `DFLASH`,
AMD-AGI/PARD ``pard2_infer.py`` for `PARD2`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from edgedec.models.blocks import (
    Ops,
    add_attention,
    attended,
    attention_half,
    decoder_head,
    decoder_shapes,
    head_weight,
    mlp,
    mlp_half,
)
from edgedec.models.config import ModelConfig
from edgedec.models.errors import ConfigError, UnsupportedModelError
from edgedec.models.fields import Fields
from edgedec.models.hidden_states import normed
from edgedec.models.model_entry import DRAFT_MODEL, ModelEntry, read_model_entry
from edgedec.models.recurrence import Recurrence

EAGLE, HYDRA, MEDUSA, EXIT, ADAPTER = "eagle", "hydra", "medusa", "exit", "adapter"
MTP_LAYER, EAGLE3, DFLASH, PARD2 = "mtp", "eagle-3", "dflash", "pard-2"
DRAFT_HEADS = (EAGLE, HYDRA, MEDUSA)
"""Kinds of heads that are trained to go on from the end of the model."""

LIGHT_HEADS = (HYDRA, MEDUSA)
"""Those that are one light head for each token that is drafted."""

HEAD_KINDS = (*DRAFT_HEADS, EXIT, ADAPTER, MTP_LAYER, EAGLE3, DFLASH, PARD2)
"""Kinds of the entries below."""

PUBLISHED = (MTP_LAYER, EAGLE3, DFLASH, PARD2)
"""Kinds that publishers trained: of their texts and of what they guess nothing is stated."""

CONVOLUTIONS = ("attention_conv", "mlp_conv")
"""Those of a layer of `DFLASH` that has some: before and behind its sub-layer, of two rows each."""

N_FLAGS = 2
"""Numbers behind the states that a row of `DFLASH` reads."""

EAGLE3_LAYERS = 3
"""Layers whose hidden states `EAGLE3` reads."""

OUTPUT = 1
"""Layer under which a head's graph returns what its next rows read: what `EAGLE`, `EAGLE3` or
`MTP_LAYER` made of a row, the normed embeddings of `HYDRA`."""

FILE_SCHEMES = ("int8", "int4")
"""How heads in files by themselves may be quantised."""

OF_MODEL = ("embed_tokens.weight", "lm_head.weight")
"""Weights of which a head has some rows from its model, and which stay as they are."""

INPUT, TOKEN_NORM = "input_proj.weight", "token_norm.weight"
"""Weights of a head that a decoder layer has not: what makes its residual stream, and the norm of
embeddings before that."""

STATE_NORM, MODEL_NORM = "state_norm.weight", "model_norm.weight"
"""Of `MTP_LAYER`: the norm of what it reads beside the token, and the model's final norm."""

T = TypeVar("T")
Float32 = npt.NDArray[np.float32]

_MAX_COUNT = 2**62


@dataclass(frozen=True)
class HeadEntry:
    """A draft head of the target model.

    kind: one of `HEAD_KINDS`. model: fingerprint of the model it is for. head: its graph, of at
    most one layer, a layer for each light head, or those of `DFLASH`, with a trimmed LM head.
    hidden_layers: those whose hidden states are its features; of an exit those it can follow, one
    or the other. corpus: what it was trained on. n_tokens: of it. held_out: share of the model's
    own choices, in text it was not trained on, that the head finds: for the next token, for the one
    after if that was found, and so on. Exits without an adapter were trained on nothing, and of
    what a publisher trained nothing is stated. joined: the target model once more, in a graph that
    has light heads inside; None of other kinds. token_pairs: file of what each drafted token adds
    to the logits of the next, see `TokenPairs`; None where it adds nothing.
    """

    kind: str
    model: str
    head: ModelEntry
    hidden_layers: tuple[int, ...]
    corpus: str
    n_tokens: int
    held_out: tuple[float, ...]
    joined: ModelEntry | None = None
    token_pairs: str | None = None

    @property
    def models(self) -> dict[str, ModelEntry]:
        """Its graphs, by what errors call them."""
        joined = {} if self.joined is None else {"head.joined": self.joined}
        return {"head": self.head, **joined}

    @property
    def files(self) -> tuple[str, ...]:
        """Its files, as keys of `BundleManifest.files`; some may be the target model's, too."""
        pairs = () if self.token_pairs is None else (self.token_pairs,)
        of_models = (path for m in self.models.values() for path in m.files)
        return tuple(dict.fromkeys((*of_models, *pairs)))

    def check_fits(self, model: str, config: ModelConfig, hidden: tuple[int, ...]) -> None:
        """Raises a ConfigError, which names what differs, where the head is of another model."""
        again = "train one for it with `edgedec train head`"
        if self.model != model:
            raise ConfigError(
                f"the draft head was trained for the model {self.model[:12]}, this one is "
                f"{model[:12]}: {again}"
            )
        if self.kind != PARD2 and self.head.config.hidden_size != config.hidden_size:
            raise ConfigError(
                f"the draft head is {self.head.config.hidden_size} wide, the model "
                f"{config.hidden_size}: {again}"
            )
        is_exit, exits = self.kind in (EXIT, ADAPTER), self.hidden_layers
        if is_exit and not (exits and exits[0] > 0 and exits[-1] < config.n_layers):
            raise ConfigError(
                f"the head of early exits names no exit that a model of {config.n_layers} layers "
                f"has, but {list(exits)}: export the model again"
            )
        if self.kind in LIGHT_HEADS and len(self.hidden_layers) != 1:
            raise ConfigError(
                f"light heads read {len(self.hidden_layers)} layers, expected one: {again}"
            )
        if missing := sorted(set(self.hidden_layers) - set(hidden)):
            raise ConfigError(
                f"the draft head needs hidden states of layer {missing[0]}, the model's graph "
                f"returns those of {list(hidden)}: {again}"
            )
        n_heads = self.head.config.n_layers
        if self.joined is not None and self.joined.config != config:
            raise ConfigError(f"the graph with draft heads inside is another model's: {again}")
        width = feature_width(config, len(self.hidden_layers), self.kind, n_heads)
        if self.head.contract.can.features != width:
            raise ConfigError(
                f"the draft head reads {self.head.contract.can.features} features, expected "
                f"{width} of {len(self.hidden_layers)} layers: {again}"
            )


def read_head(name: str, fields: Fields) -> HeadEntry:
    """Returns the head that a manifest states, types and ranges checked. name: in errors."""
    known = {f.name for f in dataclasses.fields(HeadEntry)}
    fields.exactly(known - ({"joined", "token_pairs"} - fields.values.keys()))
    if (kind := fields.text("kind")) not in HEAD_KINDS:
        fields.fail("kind", kind, f"one of {', '.join(HEAD_KINDS)}")
    head = read_model_entry(name, fields.table("head"))
    if head.kind != DRAFT_MODEL or not head.config.trimmed_head_size:
        fields.refuse_with("head", f"is a {head.kind} model, expected a draft with a trimmed head")
    is_trained = kind not in (EXIT, *PUBLISHED)
    return HeadEntry(
        kind=kind,
        model=fields.text("model"),
        head=head,
        hidden_layers=fields.integers("hidden_layers", 0, 10_000),
        corpus=fields.text("corpus"),
        n_tokens=fields.integer("n_tokens", least=int(is_trained), most=_MAX_COUNT),
        held_out=read_shares(fields, is_trained),
        joined=fields.optional("joined", lambda key: read_model_entry(key, fields.table(key))),
        token_pairs=fields.optional("token_pairs", fields.text),
    )


def feature_width(config: ModelConfig, n_layers: int, kind: str = EAGLE, n_heads: int = 1) -> int:
    """Returns the numbers that a row of a head reads beside its token.

    `EAGLE`, `EAGLE3` and `MTP_LAYER` read hidden states of ``n_layers``, then their own; `HYDRA`,
    of ``n_heads``, the last layer's, then the normed embeddings of the tokens behind that; `DFLASH`
    those of ``n_layers``, then 1 behind the first row of a block, then 1 in all of its rows;
    `PARD2` those of ``n_layers``; the others one layer's.
    """
    if kind in (DFLASH, PARD2):
        return n_layers * config.hidden_size + (N_FLAGS if kind == DFLASH else 0)
    n_parts = {HYDRA: n_heads, **dict.fromkeys((EAGLE, EAGLE3, MTP_LAYER), n_layers + 1)}
    return n_parts.get(kind, 1) * config.hidden_size


def head_config(
    config: ModelConfig, n_logits: int, kind: str = EAGLE, n_heads: int = 1
) -> ModelConfig:
    """Returns the configuration of a head: the model's last layer, and some of its tokens.

    n_heads: how many light ones there are, each a layer as wide as the model.

    Raises:
        ConfigError: The model's layers are mixtures of experts, and the head is to be trained.
    """
    config = dataclasses.replace(config, suppressed_tokens=())  # what it guesses is checked
    if kind == MTP_LAYER:
        return _mtp_config(config, n_logits)
    if config.n_experts:
        raise ConfigError("draft heads for mixtures of experts are not supported")
    layers = tuple(dataclasses.replace(layer, window=0) for layer in config.layers[-1:])
    small = dataclasses.replace(
        config,
        n_layers=1,
        layers=layers,
        is_head_tied=False,
        trimmed_head_size=n_logits,
        embedding_scale=1.0,
    )
    if kind == EXIT:
        return small
    small = dataclasses.replace(small, logit_scale=1.0, logit_softcap=0.0)
    if kind not in LIGHT_HEADS:
        return small
    return dataclasses.replace(
        small, n_layers=n_heads, layers=(), intermediate_size=config.hidden_size
    )


def _mtp_config(config: ModelConfig, n_logits: int) -> ModelConfig:
    """Returns ``config`` with a single layer, one that has attention."""
    return dataclasses.replace(
        config,
        n_layers=1,
        layers=(config.layer(config.kv_layers[-1]),),
        recurrence=Recurrence(),
        is_head_tied=False,
        trimmed_head_size=n_logits,
    )


def head_shapes(config: ModelConfig, width: int, kind: str = EAGLE) -> dict[str, tuple[int, ...]]:
    """Returns every weight of the head of this ``config``, with its shape (matrices [N, K])."""
    size, of_decoder = config.hidden_size, decoder_shapes(config)
    if kind in LIGHT_HEADS:
        return _light_shapes(config, kind)
    if kind == EXIT:
        return {name: of_decoder[name] for name in ("norm.weight", head_weight(config))}
    if kind == ADAPTER:
        del of_decoder["embed_tokens.weight"]
        return of_decoder | {INPUT: (size, width)}
    if kind == MTP_LAYER:
        norms = dict.fromkeys((TOKEN_NORM, STATE_NORM, MODEL_NORM), (size,))
        return of_decoder | norms | {INPUT: (size, 2 * size)}
    if kind == EAGLE3:
        for part in ("q_proj", "k_proj", "v_proj"):
            name = f"layers.0.self_attn.{part}.weight"
            of_decoder[name] = (of_decoder[name][0], 2 * size)
        return of_decoder | {STATE_NORM: (size,), INPUT: (size, width - size)}
    if kind == PARD2:
        return of_decoder | {INPUT: (size, width)}
    if kind == DFLASH:
        of_states = {STATE_NORM: (size,), INPUT: (size, width - N_FLAGS)}
        return of_decoder | of_states | _convolution_shapes(config)
    return of_decoder | {TOKEN_NORM: (size,), INPUT: (size, size + width)}


def _convolution_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    size, shapes = config.hidden_size, dict[str, tuple[int, ...]]()
    for i in range(config.n_layers if config.conv_group else 0):
        for name, side, tap in product(CONVOLUTIONS, range(2), range(2)):
            stem = f"layers.{i}.{name}"
            shapes[f"{stem}.base_{side}_{tap}.weight"] = (size,)
            shapes[f"{stem}.kernel_{side}_{tap}.weight"] = (size // config.conv_group, size)
    return shapes


def _light_shapes(config: ModelConfig, kind: str) -> dict[str, tuple[int, ...]]:
    size, of_decoder = config.hidden_size, decoder_shapes(config)
    shapes: dict[str, tuple[int, ...]] = {}
    if kind == HYDRA:
        shapes = {"embed_tokens.weight": of_decoder["embed_tokens.weight"], TOKEN_NORM: (size,)}
    for i in range(config.n_layers):
        prefix, inner = f"layers.{i}.mlp", config.layer(i).intermediate_size
        for name in ("gate_proj", "up_proj"):
            shapes[f"{prefix}.{name}.weight"] = (inner, n_seen(kind, i) * size)
        shapes[f"{prefix}.down_proj.weight"] = (size, inner)
    return shapes | {name: of_decoder[name] for name in ("norm.weight", "lm_head.weight")}


def n_seen(kind: str, head: int) -> int:
    """Returns how many vectors light head ``head``, from 0 on, reads: a state, and tokens."""
    return head + 2 if kind == HYDRA else 1


def light_gates(n_heads: int, head: int) -> list[bool]:
    """Returns the layer gates with which light head ``head`` of ``n_heads`` runs alone."""
    return [i == 2 * head + 1 for i in range(2 * n_heads)]


def head_features(
    hidden: Mapping[int, Float32], layers: tuple[int, ...], epsilon: float | None
) -> Float32:
    """Returns the features of tokens whose hidden states are known.

    Each layer's are divided by their root mean square, unless ``epsilon`` is None. Nothing of the
    head's own stands beside.

    Shapes: hidden [T, D] each, result [T, (len(layers) + 1) * D].
    """
    parts = [
        hidden[layer] if epsilon is None else normed(hidden[layer], epsilon) for layer in layers
    ]
    return np.concatenate([*parts, np.zeros_like(parts[0])], axis=1)


def own_features(outputs: Float32, n_layers: int) -> Float32:
    """Returns the features of tokens that only the head has read, by its ``outputs`` [T, D]."""
    unknown = np.zeros((len(outputs), n_layers * outputs.shape[1]), np.float32)
    return np.concatenate([unknown, outputs], axis=1)


class HeadOps(Ops[T], Protocol[T]):
    """`Ops` over a head's rows."""

    def features(self) -> T:
        """Returns the features of each row."""

    def beside_features(self, x: T) -> T:
        """Returns each row of ``x`` with its features behind it."""

    def first(self, x: T, n: int) -> T:
        """Returns the first ``n`` numbers of each row of ``x``; of -1, all but the last."""

    def side_by_side(self, a: T, b: T) -> T:
        """Returns each row of ``a`` with that of ``b`` behind it."""
        raise UnsupportedModelError("layers for drafting are not trained here, only exported")

    def of_block(self, x: T) -> T:
        """Returns ``x`` with zeros in each row whose last feature is 0."""
        raise UnsupportedModelError("heads that fill masks in are not trained here, only exported")

    def row_before(self, x: T) -> T:
        """Returns, in each row whose last feature but one is 1, the row of ``x`` before."""
        raise UnsupportedModelError("heads that fill masks in are not trained here, only exported")

    def scale_groups(self, x: T, scales: T, size: int) -> T:
        """Returns each row of ``x``, in groups of ``size`` numbers, times its ``scales``."""
        raise UnsupportedModelError("heads that fill masks in are not trained here, only exported")


def head_recipe(
    ops: HeadOps[T], config: ModelConfig, kind: str = EAGLE, heads: Sequence[int] | None = None
) -> T:
    """Returns the logits of the selected rows of a head of this ``kind``.

    heads: the light ones that take part; all when None, which only gates make sense of.
    """
    if kind == EAGLE:
        return _eagle(ops, config)
    if kind == MTP_LAYER:
        return _mtp_layer(ops, config)
    if kind == EAGLE3:
        return _eagle3(ops, config)
    if kind == DFLASH:
        return _dflash(ops, config)
    if kind == PARD2:
        return _pard2(ops, config)
    if kind in LIGHT_HEADS:
        return _light(ops, config, kind, range(config.n_layers) if heads is None else heads)
    x = ops.features()
    if kind == ADAPTER:
        x = ops.linear(x, INPUT)
        x = mlp_half(ops, config, 0, attention_half(ops, config, 0, x))
    return decoder_head(ops, config, x)


def _eagle(ops: HeadOps[T], config: ModelConfig) -> T:
    """Returns the logits; notes the head's outputs."""
    token = ops.rms_norm(ops.embed("embed_tokens.weight"), TOKEN_NORM)
    x = ops.linear(ops.beside_features(token), INPUT)
    x = mlp_half(ops, config, 0, attention_half(ops, config, 0, x))
    x = ops.rms_norm(x, "norm.weight")
    ops.hidden(x, OUTPUT)
    return ops.linear(ops.select_rows(x), "lm_head.weight")


def _mtp_layer(ops: HeadOps[T], config: ModelConfig) -> T:
    """Returns the logits; notes the layer's outputs. One half of a row's features is zeros."""
    of_model, of_token = ops.parts(ops.features(), 2)
    state = ops.add(ops.scale_channels(of_model, MODEL_NORM), of_token)
    token = ops.rms_norm(ops.embed("embed_tokens.weight"), TOKEN_NORM)
    x = ops.linear(ops.side_by_side(token, ops.rms_norm(state, STATE_NORM)), INPUT)
    x = mlp_half(ops, config, 0, attention_half(ops, config, 0, x))
    x = ops.rms_norm(x, "norm.weight")
    ops.hidden(x, OUTPUT)
    return ops.linear(ops.select_rows(x), "lm_head.weight")


def _eagle3(ops: HeadOps[T], config: ModelConfig) -> T:
    """Returns the logits; notes the layer's outputs. One half of a row's features is zeros."""
    features = ops.features()
    of_head = ops.parts(features, EAGLE3_LAYERS + 1)[-1]
    of_model = ops.first(features, EAGLE3_LAYERS * config.hidden_size)
    state = ops.add(ops.linear(of_model, INPUT), of_head)
    token = ops.rms_norm(ops.embed("embed_tokens.weight"), "layers.0.input_layernorm.weight")
    h = ops.side_by_side(token, ops.rms_norm(state, STATE_NORM))
    x = mlp_half(ops, config, 0, add_attention(ops, config, 0, state, h))
    ops.hidden(x, OUTPUT)
    return ops.linear(ops.select_rows(ops.rms_norm(x, "norm.weight")), "lm_head.weight")


def _pard2(ops: HeadOps[T], config: ModelConfig) -> T:
    """Returns the logits of a decoder whose embeddings have states added."""
    x = ops.add(ops.embed("embed_tokens.weight"), ops.linear(ops.features(), INPUT))
    for i in range(config.n_layers):
        x = mlp_half(ops, config, i, attention_half(ops, config, i, x))
    return ops.linear(ops.select_rows(ops.rms_norm(x, "norm.weight")), "lm_head.weight")


def _dflash(ops: HeadOps[T], config: ModelConfig) -> T:
    """Returns the logits. Each row reads either the text's states or, in a block, its token.

    It notes the normed rows that the logits are of, where candidates are chosen by them.
    """
    states = ops.first(ops.features(), -N_FLAGS)
    of_text = ops.rms_norm(ops.linear(states, INPUT), STATE_NORM)
    x = ops.embed("embed_tokens.weight")
    for i in range(config.n_layers):
        x = _dflash_layer(ops, config, i, ops.of_block(x), of_text)
    x = ops.rms_norm(x, "norm.weight")
    if config.n_candidates:
        ops.hidden(x, OUTPUT)
    return ops.linear(ops.select_rows(x), "lm_head.weight")


def _dflash_layer(ops: HeadOps[T], config: ModelConfig, i: int, x: T, of_text: T) -> T:
    """Returns the rows behind layer ``i``. of_text: keys and values of the text are made of it."""
    h = ops.rms_norm(x, f"layers.{i}.input_layernorm.weight")
    if not config.conv_group:
        return mlp_half(ops, config, i, add_attention(ops, config, i, x, ops.add(h, of_text)))

    def convolved(y: T, h: T, name: str, side: int) -> T:
        stem, of_row = f"layers.{i}.{name}", []
        for tap, rows in enumerate((y, ops.row_before(y))):
            scales = ops.linear(h, f"{stem}.kernel_{side}_{tap}.weight")
            of_row += [
                ops.scale_channels(rows, f"{stem}.base_{side}_{tap}.weight"),
                ops.scale_groups(rows, scales, config.conv_group),
            ]
        return reduce(ops.add, of_row)

    of_attention, of_mlp = CONVOLUTIONS
    seen = ops.add(convolved(h, h, of_attention, 0), of_text)
    x = ops.add(x, convolved(attended(ops, config, i, seen), h, of_attention, 1))
    h = ops.rms_norm(x, f"layers.{i}.post_attention_layernorm.weight")
    y = mlp(ops, config, i, convolved(h, h, of_mlp, 0))
    return ops.add(x, convolved(y, h, of_mlp, 1))


def _light(ops: HeadOps[T], config: ModelConfig, kind: str, heads: Sequence[int]) -> T:
    """Returns the logits; of `HYDRA` it notes the normed embedding of each row's token.

    A row reads the token that it follows, then its features: the state, and the tokens between.
    """
    size, state = config.hidden_size, ops.features()
    seen = state
    if kind == HYDRA:
        state = ops.first(state, size)
        token = ops.rms_norm(ops.embed("embed_tokens.weight"), TOKEN_NORM)
        ops.hidden(token, OUTPUT)
        seen = ops.beside_features(token)
    x = ops.rms_norm(state, "norm.weight")
    for i in heads:
        prefix = f"layers.{i}.mlp"
        z = ops.first(seen, n_seen(kind, i) * size) if kind == HYDRA else seen
        gate = ops.linear(z, f"{prefix}.gate_proj.weight")
        up = ops.linear(z, f"{prefix}.up_proj.weight")
        x = ops.add(x, ops.linear(ops.gate(gate, up), f"{prefix}.down_proj.weight"))
    return ops.linear(ops.select_rows(x), "lm_head.weight")


def read_shares(fields: Fields, is_trained: bool) -> tuple[float, ...]:
    """Returns ``held_out``, which heads that were trained have, each from 0 to 1."""
    held_out = fields.numbers("held_out")
    if is_trained != bool(held_out) or not all(0 <= share <= 1 for share in held_out):
        fields.fail("held_out", list(held_out), "shares of 0 to 1")
    return held_out
