"""Family-neutral hyper-parameters of a decoder, validated once."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

from edgedec.models.errors import ConfigError
from edgedec.models.fields import shown
from edgedec.models.recurrence import Recurrence

MAX_LAYERS = 10_000
"""More than any model has: lists are made that are as long."""

Activation = Literal["silu", "gelu_tanh", "gelu", "relu"]
Mixer = Literal["attention", "recurrence", "both", "none"]
Stack = Literal["decoder", "encoder", "masked", "embedder"]
RopeScalingKind = Literal["none", "linear", "llama3", "factors", "longrope"]


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched for contexts longer than the trained one.

    kind: ``none``; ``linear`` divides every frequency by ``factor``; ``llama3`` stretches long
    wavelengths only; ``factors`` divides frequency ``i`` by ``factors[i]`` (GGUF ``rope_freqs``)
    and multiplies cosines and sines by ``factor``; ``longrope`` does so where the model has more
    than ``original_max_positions``, divides by
    ``short_factors`` where it has not, and multiplies cosines and sines by ``factor`` in both.

    Source: transformers ``modeling_rope_utils.py`` (linear, llama3, longrope), GGUF specification.
    """

    kind: RopeScalingKind = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    factors: tuple[float, ...] = ()
    short_factors: tuple[float, ...] = ()


@dataclass(frozen=True)
class LayerConfig:
    """What layers may differ in.

    intermediate_size: width of the MLP. rope_theta: base of the rotary frequencies, 0 for a layer
    that rotates nothing (NoPE). window: tokens that a token attends to, itself and those before it,
    in an embedding model as many behind it; 0 for all. has_rope_scaling: whether the model's
    scaling stretches this layer's frequencies. mixer: what lets a token see those before it:
    attention, the model's recurrence, both side by side over the same norm, or nothing. has_mlp:
    whether an MLP follows. kv_layer: an earlier layer whose keys and values it reads, having none
    of its own. gate_sparsity: share of the gates of its MLP that are left out, the smallest; what
    the others exceed the limit by counts. head_size: of its attention; 0 for the model's.
    is_causal: its rows see those before them alone, in a head whose rows see each other otherwise.
    """

    intermediate_size: int
    rope_theta: float
    window: int = 0
    has_rope_scaling: bool = True
    mixer: Mixer = "attention"
    kv_layer: int | None = None
    gate_sparsity: float = 0.0
    head_size: int = 0
    has_mlp: bool = True
    is_causal: bool = False

    def __post_init__(self) -> None:
        _check_size("intermediate_size of a layer", self.intermediate_size)
        if self.mixer not in get_args(Mixer):
            raise ConfigError(
                f"mixer of a layer is {self.mixer!r}, expected {' or '.join(get_args(Mixer))}"
            )
        if self.window:
            _check_size("window of a layer", self.window)
        if self.window and self.is_recurrent:
            raise ConfigError(
                "a layer has a window and is recurrent, expected one of these at most"
            )
        if not (math.isfinite(self.rope_theta) and self.rope_theta >= 0):
            raise ConfigError(f"rope_theta of a layer is {self.rope_theta!r}, expected 0 or more")
        if self.head_size % 2 or not 0 <= self.head_size < 2**31:
            raise ConfigError(f"head_size of a layer is {self.head_size!r}, expected 0 or even")
        if not 0 <= self.gate_sparsity < 1:
            raise ConfigError(
                f"gate_sparsity of a layer is {self.gate_sparsity!r}, expected 0 to less than 1"
            )

    @property
    def is_recurrent(self) -> bool:
        """Whether it has the model's recurrence."""
        return self.mixer in ("recurrence", "both")

    @property
    def has_attention(self) -> bool:
        """Whether it has attention."""
        return self.mixer in ("attention", "both")


@dataclass(frozen=True)
class ModelConfig:
    """Hyper-parameters of a decoder-only transformer with rotary positions and gated MLP.

    A field that is added needs a default: what names a model by its configuration, a saved session
    for one, uses `canonical`, which leaves out whatever equals its default.

    has_qkv_bias: biases on q, k and v. has_o_bias: one behind the heads. has_mlp_bias: biases on
        the matrices of MLPs. has_qk_norm: an RMS norm over each head of q and of k.
    trimmed_head_size: rows of an LM head, apart from the embedding, of whose tokens there is a
        list, mostly some of all; 0 when row and token are the same.
    layers: of each layer; empty where all are as the model.
    rotary_size: channels of a head that rotate, the others keep still; 0 for all.
    attention_scale: what products of q and k are multiplied by; 0 for 1 / sqrt(head_size).
    attention_softcap: bound that these products bend towards, 0 for none.
    embedding_scale, logit_scale: what embeddings and logits are multiplied by.
    logit_softcap: bound that logits bend towards, 0 for none.
    has_pre_norms, has_post_norms: RMS norms before a sub-layer, and behind it, before its result is
        added to the residual stream.
    is_qk_norm_whole: the norm of q, and that of k, is over all heads at once.
    has_output_gate: what comes out of each head is multiplied by the sigmoid of a projection.
    is_qk_norm_late: q and k are rotated before their norms, by the model's own base; then no layer
        has one.
    query_growth, query_growth_start: queries at position p are multiplied by 1 + growth *
        ln(1 + floor(p / start)); 0 for none. Source: transformers ``modeling_ministral3.py``.
    activation: of the gate of an MLP; relu is that of an MLP without a gate.
    shared_expert_size: width of an MLP beside the experts that all tokens go through; 0 for none.
        has_shared_gate: its result is multiplied by the sigmoid of a product of its own.
    n_experts, n_experts_used: MLPs of a layer, of which a router chooses some for each token; 0 for
        one MLP without a router. is_routing_normed: the weights of those chosen sum to 1.
    recurrence: what the recurrent ones of ``layers`` compute.
    has_sinks: each head has a score that counts in the softmax of attention, and no value.
    expert_limit: bound of gate and up of experts whose products have biases, the router's too, and
        whose activation is ``gate * sigmoid(1.702 * gate) * (up + 1)``; 0 for plain experts.
    has_value_norm: an RMS norm without weights over each head of v.
    layer_input_size: numbers that each layer gets of the token itself, besides the residual stream;
        0 for none. layer_input_tokens: tokens that have some of their own, the others have those of
        token 0. See `layer_inputs`.
    has_layer_scales: what comes out of each layer is multiplied by a number of its own.
    has_squared_relu: MLPs have no gate: between their two matrices stands the square of ReLU.
    stack: what a row of attention sees: in a decoder itself and what is before it; in an encoder,
        which has no head, all rows; so in an embedder, an encoder by itself; in a masked model,
        which fills masks in, all rows of its pass and all before them. mask_token: what stands
        where a token is to be found. predicts_next: the logits of a row are of the token behind it,
        as those of other models are, not of its own. drafts_in_one_pass: a decoder was trained to
        say beside mask tokens what follows in their places. block_size: the last token of a text
        and most mask tokens behind it, of a masked head that drafts; 0 for others. conv_group:
        channels that share what such a head's convolutions get from a row; 0: it has none.
        n_candidates: tokens of a place that it chooses among by the token before; 0 for all.
    n_token_types: rows of the table of token types; texts have type 0. 0: there is no table.
    suppressed_tokens: those that are never written, rising; a trimmed head has them all the same.
    n_streams: residual streams of AltUp, see `families.gemma3n`. laurel_rank: of its products.
    n_distance_buckets, max_distance: scores of attention have biases by distance, see
        `distance_bias`; 0 for none.
    encoder: of an encoder-decoder model the stack that reads the source. What is said here is of
        the decoder then, whose layers attend to the source as well.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_size: int
    max_positions: int
    rms_norm_eps: float
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling = field(default_factory=RopeScaling)
    has_qkv_bias: bool = False
    is_head_tied: bool = False
    trimmed_head_size: int = 0
    has_qk_norm: bool = False
    layers: tuple[LayerConfig, ...] = ()
    rotary_size: int = 0
    attention_scale: float = 0.0
    attention_softcap: float = 0.0
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    has_pre_norms: bool = True
    has_post_norms: bool = False
    is_qk_norm_whole: bool = False
    activation: Activation = "silu"
    n_experts: int = 0
    n_experts_used: int = 0
    is_routing_normed: bool = True
    has_o_bias: bool = False
    has_mlp_bias: bool = False
    recurrence: Recurrence = field(default_factory=Recurrence)
    is_qk_norm_late: bool = False
    query_growth: float = 0.0
    query_growth_start: int = 1
    shared_expert_size: int = 0
    has_output_gate: bool = False
    has_sinks: bool = False
    expert_limit: float = 0.0
    has_value_norm: bool = False
    layer_input_size: int = 0
    layer_input_tokens: int = 0
    n_streams: int = 1
    laurel_rank: int = 0
    has_layer_scales: bool = False
    has_shared_gate: bool = True
    has_squared_relu: bool = False
    stack: Stack = "decoder"
    mask_token: int = 0
    predicts_next: bool = False
    drafts_in_one_pass: bool = False
    block_size: int = 0
    conv_group: int = 0
    n_candidates: int = 0
    n_distance_buckets: int = 0
    max_distance: int = 0
    encoder: ModelConfig | None = None
    suppressed_tokens: tuple[int, ...] = ()
    n_token_types: int = 0

    def __post_init__(self) -> None:
        for name in (
            "vocab_size", "hidden_size", "intermediate_size", "n_layers",
            "n_heads", "n_kv_heads", "head_size", "max_positions",
        ):  # fmt: skip
            _check_size(name, getattr(self, name))
        self._check_layers()
        self._check_heads()
        self._check_mlps()
        self._check_factors()
        self._check_tables()

    def _check_layers(self) -> None:
        """Checks how many layers there are, and which kinds stand beside each other."""
        if self.n_layers > MAX_LAYERS:
            raise ConfigError(f"n_layers is {self.n_layers}, expected at most {MAX_LAYERS}")
        if self.layers and len(self.layers) != self.n_layers:
            raise ConfigError(f"layers are {len(self.layers)}, expected none or {self.n_layers}")
        if bool(self.recurrent_layers) != (self.recurrence.kind != "none"):
            raise ConfigError(
                f"layers {list(self.recurrent_layers)} are recurrent and the recurrence is "
                f"{self.recurrence.kind!r}, expected both or neither"
            )
        if self.recurrent_layers and self.windowed_layers:
            raise ConfigError("layers with a window beside recurrent ones, expected either alone")
        if self.stack not in get_args(Stack):
            raise ConfigError(
                f"stack is {shown(self.stack)}, expected one of {', '.join(get_args(Stack))}"
            )
        if any(layer.is_causal for layer in self.layers) and not self.block_size:
            raise ConfigError("a layer states that it is causal, in a model that is no such head")
        if self.fills_masks and (self.windowed_layers or self.recurrent_layers):
            raise ConfigError("a masked model has windows or recurrent layers, expected neither")
        if self.is_embedder and (
            self.recurrent_layers or self.has_sinks or self.n_distance_buckets
        ):
            raise ConfigError(
                "an embedding model has recurrences, sinks or biases by distance, expected none"
            )
        if self.block_size and not 2 <= self.block_size <= self.max_positions:
            raise ConfigError(
                f"block_size is {self.block_size}, expected 2 to {self.max_positions}"
            )
        if self.conv_group and self.hidden_size % self.conv_group:
            raise ConfigError(
                f"conv_group is {self.conv_group}, expected a divisor of {self.hidden_size}"
            )
        if not 0 <= self.mask_token < self.vocab_size:
            raise ConfigError(
                f"mask_token is {self.mask_token}, expected 0 to {self.vocab_size - 1}"
            )
        if not self.kv_layers:
            raise ConfigError("no layer has attention, expected it in one or more")
        self._check_kv_layers()
        self._check_encoder()

    def _check_heads(self) -> None:
        """Checks the heads of attention and their rotation."""
        if self.n_heads % self.n_kv_heads:
            raise ConfigError(
                f"n_heads {self.n_heads} is not a multiple of n_kv_heads {self.n_kv_heads}"
            )
        if self.head_size % 2:
            raise ConfigError(f"head_size {self.head_size} is odd, rotary positions need it even")
        if not (math.isfinite(self.rope_theta) and self.rope_theta > 0):
            raise ConfigError(f"rope_theta is {self.rope_theta!r}, expected a positive number")
        if self.rotary_size % 2 or not 0 <= self.rotary_size <= self.head_size:
            raise ConfigError(
                f"rotary_size is {self.rotary_size}, expected an even number up to head_size "
                f"{self.head_size}"
            )
        if self.query_growth_start < 1:
            raise ConfigError(
                f"query_growth_start is {self.query_growth_start}, expected 1 or more"
            )

    def _check_mlps(self) -> None:
        """Checks the MLPs and their experts."""
        if self.activation not in get_args(Activation):
            raise ConfigError(
                f"activation is {self.activation!r}, expected {' or '.join(get_args(Activation))}"
            )
        if not min(self.n_experts, 1) <= self.n_experts_used <= self.n_experts < 1 << 16:
            raise ConfigError(
                f"n_experts_used is {self.n_experts_used}, expected 1 to n_experts {self.n_experts}"
            )
        if self.shared_expert_size < 0:
            raise ConfigError(
                f"shared_expert_size is {self.shared_expert_size}, expected 0 or more"
            )

    def _check_factors(self) -> None:
        """Checks what numbers are multiplied or bounded by."""
        for name in (
            "attention_scale", "attention_softcap", "embedding_scale", "logit_scale",
            "logit_softcap", "query_growth", "expert_limit",
        ):  # fmt: skip
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)!r}, expected 0 or more")

    def _check_tables(self) -> None:
        """Checks the rows of the LM head, and of the table of layer inputs."""
        if not 0 <= self.trimmed_head_size <= self.vocab_size:
            raise ConfigError(
                f"trimmed_head_size is {self.trimmed_head_size}, expected 0 (whole head) to "
                f"{self.vocab_size}"
            )
        ids = self.suppressed_tokens
        in_order = all(a < b for a, b in itertools.pairwise((-1, *ids, self.vocab_size)))
        if not in_order or len(ids) == self.vocab_size:
            raise ConfigError(
                f"suppressed_tokens are {shown(str(ids))}, expected some of 0 to "
                f"{self.vocab_size - 1}, rising"
            )
        if self.trimmed_head_size and self.is_head_tied:
            raise ConfigError("a trimmed head is a matrix of its own, it cannot be tied")
        if bool(self.layer_input_size) != (0 < self.layer_input_tokens <= self.vocab_size):
            raise ConfigError(
                f"layer_input_tokens is {self.layer_input_tokens}, expected 1 to vocab_size "
                f"{self.vocab_size} with a layer_input_size, 0 else"
            )

    def _check_encoder(self) -> None:
        """Checks what encoder-decoder models alone have."""
        n_buckets = self.n_distance_buckets
        if n_buckets and (n_buckets % 4 or not n_buckets < 2 * self.max_distance < 1 << 17):
            raise ConfigError(
                f"n_distance_buckets is {n_buckets} and max_distance {self.max_distance}, expected "
                "a multiple of 4 that is less than twice the distance, and that below 65536"
            )
        if self.encoder is None:
            return
        if not self.encoder.is_encoder or self.encoder.encoder is not None or self.is_encoder:
            raise ConfigError("the encoder is no encoder, or has one itself")
        if self.windowed_layers or self.recurrent_layers or self.has_sinks:
            raise ConfigError(
                "a decoder that attends to a source has windows, recurrences or sinks, expected "
                "none of these"
            )

    def _check_kv_layers(self) -> None:
        """Checks that layers without keys and values read those of an earlier one like them."""
        for i, layer in enumerate(self.layers):
            if layer.kv_layer is None:
                if layer.has_attention:
                    self._check_head_size(i)
                continue
            source = self.layers[layer.kv_layer] if layer.kv_layer in range(i) else None
            if source is None or _attention_of(source) != _attention_of(layer):
                raise ConfigError(
                    f"layer {i} reads keys and values of layer {layer.kv_layer}, expected an "
                    "earlier one with keys and values of its own and the same window and rotation"
                )

    def _check_head_size(self, layer: int) -> None:
        """Checks that heads are as wide as those of layers that keep as many tokens."""
        size, expected = (
            self.head_size_of(layer),
            self.kv_head_size(bool(self.layer(layer).window)),
        )
        if size != expected:
            raise ConfigError(
                f"layer {layer} has heads of {size}, expected {expected} as the layers before it "
                "with a window, or without one"
            )

    def without(self, tokens: Iterable[int]) -> ModelConfig:
        """Returns the configuration of a model that never writes ``tokens``.

        Ids that are no tokens of its are left out.
        """
        known = sorted({token for token in tokens if 0 <= token < self.vocab_size})
        return dataclasses.replace(self, suppressed_tokens=tuple(known))

    @property
    def n_logits(self) -> int:
        """Width of a row that a pass returns: logits, or an embedding model's hidden state."""
        if self.is_embedder:
            return self.hidden_size
        return self.trimmed_head_size or self.vocab_size

    @property
    def is_gated(self) -> bool:
        """Whether an MLP has a gate, or the activation between its two matrices."""
        return not (self.has_squared_relu or self.activation == "relu")

    @property
    def n_token_ids(self) -> int:
        """Ids that tokens of a text may have, see `source_tokens`."""
        return self.vocab_size if self.encoder is None else 3 * self.vocab_size

    @property
    def n_kv_numbers(self) -> int:
        """Numbers that keys and values of one token are, in all layers that keep some."""
        return sum(2 * self.n_kv_heads * self.head_size_of(i) for i in self.kv_layers)

    @property
    def product_scale(self) -> float:
        """What products of q and k are multiplied by."""
        return self.attention_scale or self.head_size**-0.5

    def layer(self, index: int) -> LayerConfig:
        """Returns the hyper-parameters of layer ``index``."""
        if self.layers:
            return self.layers[index]
        return LayerConfig(self.intermediate_size, self.rope_theta)

    def head_size_of(self, layer: int) -> int:
        """Returns the channels of a head of the attention of ``layer``."""
        return self.layer(layer).head_size or self.head_size

    def kv_head_size(self, is_ring: bool) -> int:
        """Returns that of the layers with a window, or of those that keep all tokens."""
        windowed = self.windowed_layers
        sizes = (self.head_size_of(i) for i in self.kv_layers if (i in windowed) == is_ring)
        return next(sizes, self.head_size)

    @property
    def is_encoder(self) -> bool:
        """Whether it is a stack whose rows all see each other, without a head."""
        return self.stack == "encoder"

    @property
    def fills_masks(self) -> bool:
        """Whether the model fills masks in, in any order, instead of writing from left to right."""
        return self.stack == "masked"

    @property
    def is_embedder(self) -> bool:
        """Whether it is an encoder by itself, whose rows are hidden states and not logits."""
        return self.stack == "embedder"

    @property
    def is_bidirectional(self) -> bool:
        """Whether rows of a pass all see each other, and a pass is a block of tokens."""
        return self.fills_masks or self.is_embedder

    @property
    def kv_layers(self) -> tuple[int, ...]:
        """The layers that keep keys and values."""
        layers = (self.layer(i) for i in range(self.n_layers))
        return tuple(
            i for i, layer in enumerate(layers) if layer.has_attention and layer.kv_layer is None
        )

    @property
    def recurrent_layers(self) -> tuple[int, ...]:
        """The layers that keep a state."""
        return tuple(i for i, layer in enumerate(self.layers) if layer.is_recurrent)

    @property
    def windowed_layers(self) -> tuple[int, ...]:
        """The layers that keep keys and values of the latest tokens only."""
        if self.is_embedder:  # a pass is a whole text
            return ()
        return tuple(i for i in self.kv_layers if self.layer(i).window)

    @property
    def can_skip_layers(self) -> bool:
        """Whether a pass may leave sub-layers out: each adds to one stream and keeps its own."""
        has_shared_kv = any(layer.kv_layer is not None for layer in self.layers)
        adds_alone = not (self.layer_input_size or self.has_layer_scales or self.encoder)
        is_whole = self.recurrent_layers or has_shared_kv or self.is_bidirectional
        return adds_alone and not is_whole

    @property
    def look_back(self) -> int:
        """Tokens before its own whose rows a token needs in layers that keep the latest alone."""
        if self.is_embedder:  # a pass is a whole text
            return 0
        windows = [layer.window - 1 for layer in self.layers if layer.window]
        return max([*windows, self.recurrence.look_back])

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Returns the config stated by ``fields``; unknown or missing keys are a ConfigError."""
        known = {f.name for f in dataclasses.fields(cls)}
        if unknown := sorted(set(fields) - known):
            raise ConfigError(f"unknown model config key {unknown[0]!r}; known: {sorted(known)}")
        values = dict(fields)
        try:
            if isinstance(scaling := values.get("rope_scaling"), dict):
                lists = {key: tuple(v) for key, v in scaling.items() if isinstance(v, list)}
                values["rope_scaling"] = RopeScaling(**{**scaling, **lists})
            if isinstance(recurrence := values.get("recurrence"), dict):
                values["recurrence"] = Recurrence(**recurrence)
            if isinstance(layers := values.get("layers"), list | tuple):
                values["layers"] = tuple(
                    LayerConfig(**layer) if isinstance(layer, dict) else layer for layer in layers
                )
            if isinstance(encoder := values.get("encoder"), dict):
                values["encoder"] = cls.from_dict(encoder)
            if isinstance(suppressed := values.get("suppressed_tokens"), list):
                values["suppressed_tokens"] = tuple(suppressed)
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"model config is incomplete: {error}") from None

    def canonical(self) -> dict[str, Any]:
        """Returns JSON-ready fields that `from_dict` reads back, without those left at default.

        Two configs are equal if these are; and they stay what they are when fields are added that
        a model does not use.
        """
        return _without_defaults(self)


def _attention_of(layer: LayerConfig) -> tuple[Any, ...]:
    """Returns what layers that share keys and values have in common."""
    return (
        layer.window, layer.rope_theta, layer.has_rope_scaling, layer.mixer, layer.head_size,
    )  # fmt: skip


def _without_defaults(value: Any) -> dict[str, Any]:
    values = {}
    for f in dataclasses.fields(value):
        default = f.default_factory() if callable(f.default_factory) else f.default
        got = getattr(value, f.name)
        if got == default:
            continue
        if isinstance(got, tuple):
            got = [_without_defaults(v) if dataclasses.is_dataclass(v) else v for v in got]
        values[f.name] = _without_defaults(got) if dataclasses.is_dataclass(got) else got
    return values


def _check_size(name: str, got: object) -> None:
    if not isinstance(got, int) or not 0 < got < 2**31:
        raise ConfigError(f"{name} is {got!r}, expected a positive integer below 2**31")
