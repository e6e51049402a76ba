"""What decoder families share, written once over the `Ops` protocol.

Weight names are those of Hugging Face checkpoints without the leading ``model.``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from edgedec.models.config import ModelConfig
from edgedec.models.distance_bias import DISTANCE_BIAS
from edgedec.models.errors import MissingStepError

T = TypeVar("T")

GATE_SLOPE = 1.702
"""What a gate is multiplied by within the sigmoid of `Ops.clamped_experts`."""

MIN_SQUARE = 1e-5
"""See `Ops.match_size`."""

SUPPRESSED = -6e4
"""What is added to the logits of tokens that are never written. Halves hold it."""

_HERE = "the graph's compiler"


class Ops(Protocol[T]):
    """The vocabulary of a recipe. An emitter, or the NumPy reference, gives it meaning.

    ``T`` is whatever stands for an activation [n_rows, features]: an array, or a graph value.
    """

    def embed(self, weight: str) -> T:
        """Returns the embedding rows of the pass's token ids."""

    def rms_norm(self, x: T, weight: str) -> T:
        """Returns ``x / sqrt(mean(x^2) + eps) * weight``."""

    def linear(self, x: T, weight: str, bias: str | None = None) -> T:
        """Returns ``x @ W.T + b`` for W [N, K]."""

    def embed_positions(self, weight: str, first: int) -> T:
        """Returns the row of a table for each token's position; position 0 has row ``first``."""
        raise MissingStepError(f"{_HERE} has no tables of positions")

    def layer_norm(self, x: T, weight: str, bias: str | None = None) -> T:
        """Returns ``(x - mean(x)) / sqrt(var(x) + eps) * weight + bias``."""
        raise MissingStepError(f"{_HERE} has no norms that take the mean away")

    def shift_channels(self, x: T, weight: str) -> T:
        """Returns ``x`` plus a vector of as many numbers."""
        raise MissingStepError(f"{_HERE} cannot shift channels")

    def activate(self, x: T) -> T:
        """Returns the configuration's activation of each number; that of MLPs without a gate."""
        raise MissingStepError(f"{_HERE} has no MLPs without gates")

    def head_norm(self, x: T, weight: str) -> T:
        """Returns `rms_norm` of each head of ``x`` by itself, heads being as wide as ``weight``."""

    def attention(self, q: T, k: T, v: T, layer: int) -> T:
        """Rotates q and k, appends k and v to the KV cache, returns the attended heads.

        Scale and cap of the products, rotation, window and biases by distance are those of the
        layer's configuration. In an encoder each row sees all others, and nothing is appended.
        """

    def sink_attention(self, q: T, k: T, v: T, layer: int, sinks: str) -> T:
        """Returns as `attention`, a score of each head among those of its softmax.

        It has no value. Shapes: sinks [n_heads].
        """
        raise MissingStepError(f"{_HERE} has no attention sinks")

    def shared_attention(self, q: T, layer: int) -> T:
        """Returns as `attention`, over the keys and values of the configuration's ``kv_layer``."""
        raise MissingStepError(f"{_HERE} has no layers that share keys")

    def unit_norm(self, x: T, size: int) -> T:
        """Returns `rms_norm` of each run of ``size`` channels by itself, without weights."""
        raise MissingStepError(f"{_HERE} has no norms without weights")

    def embed_layers(self, weight: str) -> T:
        """Returns the rows that each token id has in a table of `layer_inputs`, side by side.

        They are as many as the model has layers, one below the other in the table; a token that
        has none there has those of token 0.
        """
        raise MissingStepError(f"{_HERE} has no inputs of layers")

    def parts(self, x: T, n: int) -> Sequence[T]:
        """Returns ``x`` as ``n`` parts of the same width."""
        raise MissingStepError(f"{_HERE} has no inputs of layers")

    def match_size(self, x: T, like: T) -> T:
        """Returns ``x`` scaled so that its root mean square is that of ``like``.

        Its own counts as `MIN_SQUARE` at least, squared.
        """
        raise MissingStepError(f"{_HERE} has no streams side by side")

    def tanh(self, x: T) -> T:
        """Returns the hyperbolic tangent of each number."""
        raise MissingStepError(f"{_HERE} has no streams side by side")

    def mix(self, bases: Sequence[T], xs: Sequence[T], weights: T) -> Sequence[T]:
        """Returns each of ``bases`` plus a sum of all ``xs``, weighted.

        The weight of ``xs[i]`` for base j is column ``j * len(xs) + i`` of ``weights``.
        """
        raise MissingStepError(f"{_HERE} has no streams side by side")

    def scale_channels(self, x: T, weight: str) -> T:
        """Returns ``x`` times a vector of as many numbers, or of one."""
        raise MissingStepError(f"{_HERE} cannot scale channels")

    def largest(self, x: T, sparsity: float) -> T:
        """Returns what each number of a row exceeds a limit by, 0 where it does not.

        Of normally distributed numbers the share ``sparsity`` is below the limit.
        """
        raise MissingStepError(f"{_HERE} has no sparse gates")

    def source_attention(self, q: T, layer: int) -> T:
        """Returns the attended heads, over the keys and values that ``layer`` has of the source."""
        raise MissingStepError(f"{_HERE} has no attention to a source")

    def relu(self, x: T) -> T:
        """Returns each number, 0 where it is negative."""
        raise MissingStepError(f"{_HERE} has no MLPs without gates")

    def recurrence(self, parts: Sequence[T], layer: int) -> T:
        """Returns what the model's recurrence makes of ``parts``, and of what its state holds.

        ``short_conv``: of parts b, c and x, ``c * conv(b * x)``. ``mamba2``: of the convolution's
        channels and gates of steps. ``delta``: of channels, and gates of strengths and of steps.
        Weights ``conv.weight`` and the like are the layer's own, below `mixer_prefix`.
        """
        raise MissingStepError(f"{_HERE} has no recurrent layers")

    def rotate(self, x: T, n_heads: int) -> T:
        """Returns the heads ``x`` rotated by the model's own base, apart from any layer's."""
        raise MissingStepError(f"{_HERE} cannot rotate heads before their norms")

    def grow_queries(self, q: T) -> T:
        """Returns queries times what the configuration's ``query_growth`` gives at their places."""
        raise MissingStepError(f"{_HERE} cannot scale queries by position")

    def sigmoid_gate(self, x: T, gate: T) -> T:
        """Returns ``x`` times the sigmoid of ``gate``, which may have one column for all."""
        raise MissingStepError(f"{_HERE} has no gates of a sigmoid")

    def gate(self, gate: T, up: T) -> T:
        """Returns ``activation(gate) * up``, the activation being that of the configuration."""

    def experts(self, x: T, router: T, prefix: str) -> T:
        """Returns what the experts of the largest logits ``router`` make of ``x``, weighted.

        Each is a gated MLP. Matrices, ``gate_proj.weight`` and the others of ``prefix``, hold those
        of all experts, rows below each other. Weights are the softmax of the logits, normed over
        the chosen experts where the configuration says so.
        """

    def clamped_experts(self, x: T, router: T, prefix: str) -> T:
        """Returns as `experts`, of MLPs with biases and a bounded activation.

        Biases, ``gate_proj.bias`` and the others, hold those of all experts one after the other.
        The activation is that of the configuration's ``expert_limit``.
        """
        raise MissingStepError(f"{_HERE} has no experts with biases")

    def squared_relu(self, x: T) -> T:
        """Returns the square of each number above 0, and 0 for the others."""
        raise MissingStepError(f"{_HERE} has no squared ReLU")

    def add(self, a: T, b: T) -> T:
        """Returns the sum."""

    def scale(self, x: T, factor: float) -> T:
        """Returns ``x`` times ``factor``."""

    def soft_cap(self, x: T, bound: float) -> T:
        """Returns ``bound * tanh(x / bound)``."""

    def suppress(self, logits: T) -> T:
        """Returns the logits, with those of the configuration's ``suppressed_tokens`` lowest.

        `SUPPRESSED` is added to them.
        """
        raise MissingStepError(f"{_HERE} cannot suppress tokens")

    def select_rows(self, x: T) -> T:
        """Returns the rows whose logits were asked for."""

    def hidden(self, x: T, layer: int) -> None:
        """Notes ``x``, the residual stream after ``layer`` layers (0: embeddings)."""


def attention_half(ops: Ops[T], config: ModelConfig, layer: int, x: T) -> T:
    """Returns ``x`` plus the attention sub-layer."""
    h = ops.rms_norm(x, f"layers.{layer}.input_layernorm.weight") if config.has_pre_norms else x
    return add_attention(ops, config, layer, x, h)


def add_attention(ops: Ops[T], config: ModelConfig, layer: int, x: T, h: T) -> T:
    """Returns ``x`` plus what the attention of ``layer`` makes of ``h``."""
    return _added(ops, config, x, attended(ops, config, layer, h), f"layers.{layer}.self_attn")


def attended(ops: Ops[T], config: ModelConfig, layer: int, h: T) -> T:
    """Returns what the attention of ``layer`` makes of ``h``."""
    prefix = f"layers.{layer}.self_attn"
    heads = _heads(ops, config, layer, h)
    if config.has_output_gate:
        heads = ops.sigmoid_gate(heads, _projected(ops, config, h, f"{prefix}.g_proj"))
    bias = f"{prefix}.o_proj.bias" if config.has_o_bias else None
    return ops.linear(heads, f"{prefix}.o_proj.weight", bias)


def source_half(ops: Ops[T], config: ModelConfig, layer: int, x: T) -> T:
    """Returns ``x`` plus the sub-layer of attention to the source."""
    prefix = f"layers.{layer}.source_attn"
    h = ops.rms_norm(x, f"layers.{layer}.source_layernorm.weight")
    heads = ops.source_attention(ops.linear(h, f"{prefix}.q_proj.weight"), layer)
    return _added(ops, config, x, ops.linear(heads, f"{prefix}.o_proj.weight"), prefix)


def _projected(ops: Ops[T], config: ModelConfig, h: T, stem: str) -> T:
    return ops.linear(h, f"{stem}.weight", f"{stem}.bias" if config.has_qkv_bias else None)


def _heads(ops: Ops[T], config: ModelConfig, layer: int, h: T) -> T:
    """Returns the attended heads, side by side."""
    prefix = f"layers.{layer}.self_attn"
    q = _placed(ops, config, _projected(ops, config, h, f"{prefix}.q_proj"), prefix, "q")
    if config.query_growth:
        q = ops.grow_queries(q)
    if config.layer(layer).kv_layer is not None:
        return ops.shared_attention(q, layer)
    k = _placed(ops, config, _projected(ops, config, h, f"{prefix}.k_proj"), prefix, "k")
    v = _projected(ops, config, h, f"{prefix}.v_proj")
    if config.has_value_norm:
        v = ops.unit_norm(v, config.head_size_of(layer))
    if config.has_sinks:
        return ops.sink_attention(q, k, v, layer, f"{prefix}.sinks")
    return ops.attention(q, k, v, layer)


def _placed(ops: Ops[T], config: ModelConfig, x: T, prefix: str, part: str) -> T:
    """Returns queries or keys as attention reads them."""
    if config.is_qk_norm_late:
        x = ops.rotate(x, config.n_heads if part == "q" else config.n_kv_heads)
    if config.has_qk_norm:
        norm = ops.rms_norm if config.is_qk_norm_whole else ops.head_norm
        x = norm(x, f"{prefix}.{part}_norm.weight")
    return x


def mixer_prefix(layer: int) -> str:
    """Returns what the names of a recurrent layer's weights begin with."""
    return f"layers.{layer}.mixer"


def mixer_half(ops: Ops[T], config: ModelConfig, layer: int, x: T) -> T:
    """Returns ``x`` plus attention, a recurrence, or both, which read the same."""
    layer_config = config.layer(layer)
    if not layer_config.is_recurrent:
        return attention_half(ops, config, layer, x) if layer_config.has_attention else x
    h = ops.rms_norm(x, f"layers.{layer}.input_layernorm.weight")
    x = _add_recurrence(ops, config, layer, x, h)
    return add_attention(ops, config, layer, x, h) if layer_config.has_attention else x


def _add_recurrence(ops: Ops[T], config: ModelConfig, layer: int, x: T, h: T) -> T:
    """Returns ``x`` plus what the recurrence of ``layer`` makes of ``h``."""
    prefix = mixer_prefix(layer)

    def project(h: T, name: str) -> T:
        bias = f"{prefix}.{name}.bias" if config.recurrence.has_bias else None
        return ops.linear(h, f"{prefix}.{name}.weight", bias)

    kind = config.recurrence.kind
    parts = [project(h, f"{name}_proj") for name in _PARTS[kind]]
    y = ops.recurrence(parts, layer)
    if config.recurrence.output_scale != 1:
        y = ops.scale(y, config.recurrence.output_scale)
    if kind == "mamba2":
        y = _gated_norm(ops, config, f"{prefix}.norm.weight", project(h, "z_proj"), y)
    elif kind == "delta":
        y = ops.gate(project(h, "z_proj"), ops.head_norm(y, f"{prefix}.norm.weight"))
    return ops.add(x, project(y, "out_proj"))


def _gated_norm(ops: Ops[T], config: ModelConfig, weight: str, z: T, y: T) -> T:
    """Returns what Mamba-2 makes of the ``y`` that comes out and its gate ``z``."""
    recurrence = config.recurrence

    def normed(y: T) -> T:
        if recurrence.n_groups == 1:
            return ops.rms_norm(y, weight)
        return ops.scale_channels(
            ops.unit_norm(y, recurrence.value_size // recurrence.n_groups), weight
        )

    if recurrence.gated_norm == "first":
        return ops.gate(z, normed(y))
    y = ops.gate(z, y)
    return normed(y) if recurrence.gated_norm == "last" else y


_PARTS = {
    "short_conv": ("b", "c", "x"),
    "mamba2": ("x", "dt"),
    "delta": ("x", "b", "dt"),
}
"""Kind of a recurrence -> projections whose outputs it reads."""


def mlp_half(ops: Ops[T], config: ModelConfig, layer: int, x: T) -> T:
    """Returns ``x`` plus the sub-layer of the MLP, or of a mixture of experts, if there is one."""
    if not config.layer(layer).has_mlp:
        return x
    prefix = f"layers.{layer}.mlp"
    norm = f"layers.{layer}.post_attention_layernorm.weight"
    h = ops.rms_norm(x, norm) if config.has_pre_norms else x
    if config.n_experts:
        bias = f"{prefix}.router.bias" if config.expert_limit else None
        router = ops.linear(h, f"{prefix}.router.weight", bias)
        experts = ops.clamped_experts if config.expert_limit else ops.experts
        x = _added(ops, config, x, experts(h, router, f"{prefix}.experts"), prefix)
        if not config.shared_expert_size:
            return x
        return ops.add(x, shared_expert(ops, h, prefix, config.has_shared_gate))
    return _added(ops, config, x, mlp(ops, config, layer, h), prefix)


def mlp(ops: Ops[T], config: ModelConfig, layer: int, h: T) -> T:
    """Returns what the MLP of ``layer`` makes of ``h``."""
    inner = _inner(ops, config, layer, h)
    return _mlp_linear(ops, config, inner, f"layers.{layer}.mlp.down_proj")


def _mlp_linear(ops: Ops[T], config: ModelConfig, h: T, stem: str) -> T:
    return ops.linear(h, f"{stem}.weight", f"{stem}.bias" if config.has_mlp_bias else None)


def _inner(ops: Ops[T], config: ModelConfig, layer: int, h: T) -> T:
    """Returns what the last matrix of an MLP reads."""
    prefix = f"layers.{layer}.mlp"
    if config.has_squared_relu:
        return ops.squared_relu(ops.linear(h, f"{prefix}.up_proj.weight"))
    if not config.is_gated:
        return ops.relu(ops.linear(h, f"{prefix}.up_proj.weight"))
    gate = _mlp_linear(ops, config, h, f"{prefix}.gate_proj")
    up = _mlp_linear(ops, config, h, f"{prefix}.up_proj")
    if sparsity := config.layer(layer).gate_sparsity:
        gate = ops.largest(gate, sparsity)
    return ops.gate(gate, up)


def shared_expert(ops: Ops[T], h: T, prefix: str, has_gate: bool) -> T:
    """Returns what the expert of all tokens makes of ``h``.

    Its gate stands before the last product, which comes to the same as behind it.
    """
    inner = ops.gate(
        ops.linear(h, f"{prefix}.shared.gate_proj.weight"),
        ops.linear(h, f"{prefix}.shared.up_proj.weight"),
    )
    if has_gate:
        inner = ops.sigmoid_gate(inner, ops.linear(h, f"{prefix}.shared_gate.weight"))
    return ops.linear(inner, f"{prefix}.shared.down_proj.weight")


def _added(ops: Ops[T], config: ModelConfig, x: T, y: T, prefix: str) -> T:
    """Returns the residual stream ``x`` plus what a sub-layer made of it."""
    return ops.add(x, ops.rms_norm(y, f"{prefix}.post_norm.weight") if config.has_post_norms else y)


def decoder(ops: Ops[T], config: ModelConfig, layer_gates: Sequence[bool] | None = None) -> T:
    """Returns the logits of the selected rows: the recipe of every decoder.

    layer_gates: which sub-layers take part: 2i is the attention of layer i, 2i + 1 its MLP; all
        when None.
    """
    runs = [True] * (2 * config.n_layers) if layer_gates is None else layer_gates
    x = embedded(ops, config)
    for layer in range(config.n_layers):
        x = mixer_half(ops, config, layer, x) if runs[2 * layer] else x
        x = source_half(ops, config, layer, x) if config.encoder else x
        x = mlp_half(ops, config, layer, x) if runs[2 * layer + 1] else x
        ops.hidden(x, layer + 1)
    return decoder_head(ops, config, x)


def encoder(ops: Ops[T], config: ModelConfig) -> T:
    """Returns what an encoder makes of the source: its recipe, ``config`` being the encoder's."""
    x = embedded(ops, config)
    for layer in range(config.n_layers):
        x = mlp_half(ops, config, layer, attention_half(ops, config, layer, x))
    return ops.rms_norm(x, "norm.weight")


def source_kv(ops: Ops[T], x: T, layer: int) -> tuple[T, T]:
    """Returns the keys and values that a layer of the decoder has of an encoder's result ``x``."""
    k, v = (ops.linear(x, f"layers.{layer}.source_attn.{part}_proj.weight") for part in "kv")
    return k, v


def embedded(ops: Ops[T], config: ModelConfig) -> T:
    """Returns what the residual stream begins as."""
    x = ops.embed("embed_tokens.weight")
    if config.embedding_scale != 1:
        x = ops.scale(x, config.embedding_scale)
    ops.hidden(x, 0)
    return x


def decoder_head(ops: Ops[T], config: ModelConfig, x: T) -> T:
    """Returns the logits of the selected rows of the residual stream ``x``.

    Of an embedding model these are the hidden states behind the last norm.
    """
    x = ops.rms_norm(ops.select_rows(x), "norm.weight")
    if config.is_embedder:
        return x
    if config.logit_scale != 1:
        x = ops.scale(x, config.logit_scale)
    logits = ops.linear(x, head_weight(config))
    if config.logit_softcap:
        logits = ops.soft_cap(logits, config.logit_softcap)
    is_whole = not config.trimmed_head_size
    return ops.suppress(logits) if config.suppressed_tokens and is_whole else logits


def head_weight(config: ModelConfig) -> str:
    """Returns the name of the LM head's matrix; a tied head is the embedding itself."""
    return "embed_tokens.weight" if config.is_head_tied else "lm_head.weight"


def decoder_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns every weight that `decoder` reads, with its shape (matrices [N, K]).

    Of experts N is that of all together.
    """
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (config.vocab_size, hidden)}
    for i in range(config.n_layers):
        shapes |= _mixer_shapes(config, i)
        if config.encoder is not None:
            shapes |= _source_shapes(config, config.encoder, i)
        if config.layer(i).has_mlp:
            shapes |= _mlp_shapes(config, i)
    shapes["norm.weight"] = (hidden,)
    if config.n_distance_buckets:
        shapes[DISTANCE_BIAS] = (config.n_distance_buckets * config.n_heads,)
    if not (config.is_head_tied or config.is_embedder):
        shapes["lm_head.weight"] = (config.n_logits, hidden)
    return shapes


def _mixer_shapes(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    layer_config, norm = config.layer(layer), (config.hidden_size,)
    shapes: dict[str, tuple[int, ...]] = {}
    if layer_config.mixer == "none":
        return shapes
    if config.has_pre_norms:
        shapes[f"layers.{layer}.input_layernorm.weight"] = norm
    attention = f"layers.{layer}.self_attn"
    if layer_config.is_recurrent:
        shapes |= _recurrent_shapes(config, mixer_prefix(layer))
    if layer_config.has_attention:
        shapes |= _attention_shapes(config, attention, layer)
    if config.has_post_norms:
        shapes[f"{attention}.post_norm.weight"] = norm
    return shapes


def _mlp_shapes(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    hidden, n_mlps, mlp = config.hidden_size, max(config.n_experts, 1), f"layers.{layer}.mlp"
    inner, norm = config.layer(layer).intermediate_size, (hidden,)
    shapes: dict[str, tuple[int, ...]] = {}
    if config.has_post_norms:
        shapes[f"{mlp}.post_norm.weight"] = norm
    if config.has_pre_norms:
        shapes[f"layers.{layer}.post_attention_layernorm.weight"] = norm
    if config.n_experts:
        shapes |= _routing_shapes(config, mlp)
        mlp = f"{mlp}.experts"
    if config.is_gated:
        shapes[f"{mlp}.gate_proj.weight"] = (n_mlps * inner, hidden)
    shapes[f"{mlp}.up_proj.weight"] = (n_mlps * inner, hidden)
    shapes[f"{mlp}.down_proj.weight"] = (n_mlps * hidden, inner)
    if config.expert_limit or config.has_mlp_bias:
        shapes[f"{mlp}.gate_proj.bias"] = (n_mlps * inner,)
        shapes[f"{mlp}.up_proj.bias"] = (n_mlps * inner,)
        shapes[f"{mlp}.down_proj.bias"] = (n_mlps * hidden,)
    return shapes


def _routing_shapes(config: ModelConfig, mlp: str) -> dict[str, tuple[int, ...]]:
    """Returns the router's weights, and those of the expert of all tokens."""
    hidden, shared = config.hidden_size, config.shared_expert_size
    shapes: dict[str, tuple[int, ...]] = {f"{mlp}.router.weight": (config.n_experts, hidden)}
    if config.expert_limit:
        shapes[f"{mlp}.router.bias"] = (config.n_experts,)
    if not shared:
        return shapes
    if config.has_shared_gate:
        shapes[f"{mlp}.shared_gate.weight"] = (1, hidden)
    shapes[f"{mlp}.shared.gate_proj.weight"] = (shared, hidden)
    shapes[f"{mlp}.shared.up_proj.weight"] = (shared, hidden)
    shapes[f"{mlp}.shared.down_proj.weight"] = (hidden, shared)
    return shapes


def _attention_shapes(config: ModelConfig, prefix: str, layer: int) -> dict[str, tuple[int, ...]]:
    hidden, head = config.hidden_size, config.head_size_of(layer)
    has_own_kv = config.layer(layer).kv_layer is None
    q, kv = config.n_heads * head, config.n_kv_heads * head
    shapes: dict[str, tuple[int, ...]] = {}
    rows = {"q_proj": q}
    if has_own_kv:
        rows |= {"k_proj": kv, "v_proj": kv}
    if config.has_output_gate:
        rows["g_proj"] = q
    for name, n in rows.items():
        shapes[f"{prefix}.{name}.weight"] = (n, hidden)
        if config.has_qkv_bias:
            shapes[f"{prefix}.{name}.bias"] = (n,)
    if config.has_qk_norm:
        is_whole = config.is_qk_norm_whole
        shapes[f"{prefix}.q_norm.weight"] = (q if is_whole else head,)
        if has_own_kv:
            shapes[f"{prefix}.k_norm.weight"] = (kv if is_whole else head,)
    shapes[f"{prefix}.o_proj.weight"] = (hidden, q)
    if config.has_o_bias:
        shapes[f"{prefix}.o_proj.bias"] = (hidden,)
    if config.has_sinks:
        shapes[f"{prefix}.sinks"] = (config.n_heads,)
    return shapes


def _source_shapes(
    config: ModelConfig, encoder: ModelConfig, layer: int
) -> dict[str, tuple[int, ...]]:
    """Returns the weights of `source_half`, and of `source_kv`."""
    prefix, head = f"layers.{layer}.source_attn", config.head_size_of(layer)
    q, kv = config.n_heads * head, config.n_kv_heads * head
    shapes: dict[str, tuple[int, ...]] = {
        f"layers.{layer}.source_layernorm.weight": (config.hidden_size,),
        f"{prefix}.q_proj.weight": (q, config.hidden_size),
        f"{prefix}.k_proj.weight": (kv, encoder.hidden_size),
        f"{prefix}.v_proj.weight": (kv, encoder.hidden_size),
        f"{prefix}.o_proj.weight": (config.hidden_size, q),
    }
    if config.has_post_norms:
        shapes[f"{prefix}.post_norm.weight"] = (config.hidden_size,)
    return shapes


def _recurrent_shapes(config: ModelConfig, prefix: str) -> dict[str, tuple[int, ...]]:
    hidden, recurrence = config.hidden_size, config.recurrence
    widths = dict.fromkeys(_PARTS[recurrence.kind], hidden)
    if recurrence.has_states:
        widths |= {"x": recurrence.conv_channels, "b": recurrence.n_heads, "dt": recurrence.n_heads}
        widths = {name: widths[name] for name in _PARTS[recurrence.kind]} | {
            "z": recurrence.value_size
        }
    shapes: dict[str, tuple[int, ...]] = {}
    for name, n in widths.items():
        shapes[f"{prefix}.{name}_proj.weight"] = (n, hidden)
        if recurrence.has_bias:
            shapes[f"{prefix}.{name}_proj.bias"] = (n,)
    shapes[f"{prefix}.out_proj.weight"] = (hidden, recurrence.value_size)
    if recurrence.has_bias:
        shapes[f"{prefix}.out_proj.bias"] = (hidden,)
    shapes[f"{prefix}.conv.weight"] = (recurrence.conv_channels, 1, recurrence.conv_size)
    if recurrence.has_conv_bias:
        shapes[f"{prefix}.conv.bias"] = (recurrence.conv_channels,)
    if recurrence.has_states:
        vectors = ["a_log", "dt_bias", *(["skip"] if recurrence.kind == "mamba2" else [])]
        shapes |= {f"{prefix}.{name}": (recurrence.n_heads,) for name in vectors}
        width = recurrence.value_size if recurrence.kind == "mamba2" else recurrence.head_size
        if recurrence.gated_norm != "none":
            shapes[f"{prefix}.norm.weight"] = (width,)
    return shapes
