"""One model of a bundle: its graph, what the graph can do, and its configuration."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast, get_args

from edgedec.models.config import LayerConfig, ModelConfig, RopeScaling, RopeScalingKind
from edgedec.models.errors import BundleError, ConfigError
from edgedec.models.fields import Fields, shown
from edgedec.models.graph import Capabilities, GraphContract, KVLayout
from edgedec.models.kv_formats import KVKind
from edgedec.models.quant import FORMATS, QuantFormat
from edgedec.models.recurrence import Recurrence

TARGET_MODEL, DRAFT_MODEL = "target", "draft"
MODEL_KINDS = (TARGET_MODEL, DRAFT_MODEL)
"""What a model of a bundle is for. A bundle has one target model, and at most one draft model."""

_MAX_COUNT = 2**31 - 1
_SCALING_KINDS = get_args(RopeScalingKind)
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


@dataclass(frozen=True)
class ModelEntry:
    """One model of the bundle. ``graph`` and ``weights`` are keys of `BundleManifest.files`.

    kind: what it is for, one of `MODEL_KINDS`. contract: what its graph takes, gives and can do.
    context: most positions the graph serves. tensor_formats: storage format of every matrix, by
    weight name. head_ids: file of the token ids that the rows of a trimmed head stand for.
    final_norm: file of the weights of the norm in front of the LM head; may be absent. encoder: the
    graph that reads sources, which has the same weights; may be absent. name, licence: as
    published, where they are not the bundle's own.
    """

    kind: str
    graph: str
    weights: tuple[str, ...]
    contract: GraphContract
    config: ModelConfig
    context: int
    tensor_formats: dict[str, str]
    head_ids: str | None = None
    final_norm: str | None = None
    encoder: str | None = None
    name: str | None = None
    licence: str | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """The model's files, as keys of `BundleManifest.files`."""
        optional = self.head_ids, self.final_norm, self.encoder
        more = (path for path in optional if path is not None)
        return (self.graph, *self.weights, *more)

    def format_of(self, matrix: str) -> QuantFormat:
        """Returns the storage format of a matrix, by our name.

        Raises:
            BundleError: It is not stated, though the configuration has such a matrix.
        """
        if (name := self.tensor_formats.get(matrix)) is None:
            raise BundleError(
                f"manifest: tensor_formats do not name {matrix}, which the config beside them has: "
                "export the model again"
            )
        return FORMATS[name]

    def n_bits(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Returns the bits of those of ``shapes`` that are matrices and read for every token."""
        unread = set() if self.config.is_head_tied else {"embed_tokens.weight"}
        return sum(
            self.format_of(name).bits * math.prod(shape)
            for name, shape in shapes.items()
            if len(shape) == 2 and name not in unread
        )


def read_model_entry(name: str, fields: Fields) -> ModelEntry:
    """Returns the model called ``name`` that ``fields`` state.

    Raises:
        BundleError: A key is unknown, missing, or of the wrong type or range.
    """
    if not _NAME.fullmatch(name):
        fields.refuse_with(None, f"is called {shown(name)}, expected lower-case letters and digits")
    known = {f.name for f in dataclasses.fields(ModelEntry)}
    fields.exactly(known - ({"final_norm", "encoder"} - fields.values.keys()))
    if (kind := fields.text("kind")) not in MODEL_KINDS:
        fields.fail("kind", kind, f"one of {', '.join(MODEL_KINDS)}")
    config = _read_config(fields.table("config"))
    context = fields.integer("context", least=1, most=_MAX_COUNT)
    if context > config.max_positions:
        fields.fail("context", context, f"at most the model's {config.max_positions} positions")
    contract = _read_contract(fields.table("contract"), config.n_layers)
    if contract.can.blocks != config.is_bidirectional:
        expected = "as its rows all see each other" if config.is_bidirectional else "of this model"
        block_size = contract.can.blocks
        fields.fail("contract.can.blocks", block_size, f"{not block_size}, {expected}")
    formats = fields.table("tensor_formats")
    for weight, fmt in formats.values.items():
        if not isinstance(fmt, str) or fmt not in FORMATS:
            formats.fail(weight, fmt, f"one of {', '.join(FORMATS)}")
    return ModelEntry(
        kind=kind,
        graph=fields.text("graph"),
        weights=fields.texts("weights"),
        contract=contract,
        config=config,
        context=context,
        tensor_formats=dict(formats.values),
        head_ids=fields.optional("head_ids", fields.text),
        final_norm=fields.optional("final_norm", fields.text),
        encoder=_read_encoder(fields, config),
        name=fields.optional("name", fields.text),
        licence=fields.optional("licence", fields.text),
    )


def _read_encoder(fields: Fields, config: ModelConfig) -> str | None:
    encoder = fields.optional("encoder", fields.text)
    if (encoder is None) != (config.encoder is None):
        fields.fail("encoder", encoder, "a graph exactly where the config beside it has an encoder")
    return encoder


def _read_contract(fields: Fields, n_layers: int) -> GraphContract:
    """Types are checked here; what needs what by `GraphContract` itself."""
    fields.exactly({f.name for f in dataclasses.fields(GraphContract)})
    for key in ("compiler", "backend"):
        if not _NAME.fullmatch(name := fields.text(key)):
            fields.fail(key, name, "lower-case letters and digits")
    kv, can = fields.table("kv"), fields.table("can")
    kv.only({f.name for f in dataclasses.fields(KVLayout)})
    can.only({f.name for f in dataclasses.fields(Capabilities)})
    flags = {f.name for f in dataclasses.fields(Capabilities) if f.type == "bool"}
    flags -= {"blocks", "sources"}
    try:
        return GraphContract(
            compiler=fields.text("compiler"),
            backend=fields.text("backend"),
            triple=fields.text("triple"),
            providers=fields.texts("providers"),
            inputs=fields.texts("inputs"),
            outputs=fields.texts("outputs"),
            kv=KVLayout(
                kind=cast(KVKind, kv.text("kind")),
                format=kv.text("format"),
                row_nbytes=kv.integer("row_nbytes", least=1, most=_MAX_COUNT),
                block_nbytes=kv.integer("block_nbytes", least=0, most=_MAX_COUNT),
                ring_layers=_some_layers(kv, "ring_layers", n_layers),
                ring_rows=kv.integer("ring_rows", 0, least=0, most=_MAX_COUNT),
                recurrent_layers=_some_layers(kv, "recurrent_layers", n_layers),
                recurrent_rows=kv.integer("recurrent_rows", 0, least=0, most=_MAX_COUNT),
            ),
            can=Capabilities(
                **{key: can.flag(key) for key in flags},
                blocks=can.flag("blocks", False),
                sources=can.flag("sources", False),
                hidden=can.integers("hidden", 0, n_layers),
                features=can.integer("features", 0, least=0, most=_MAX_COUNT),
                row_gap=can.number("row_gap", 0.0),
                mtp=can.integer("mtp", 0, least=0, most=64),
                n_sequences=can.integer("n_sequences", least=1, most=_MAX_COUNT),
            ),
        )
    except ConfigError as error:
        return fields.refuse_with(None, f"does not hold together ({error})")


def _some_layers(kv: Fields, key: str, n_layers: int) -> tuple[int, ...]:
    return kv.integers(key, 0, n_layers - 1) if key in kv.values else ()


def _read_config(fields: Fields) -> ModelConfig:
    """Types are checked here; ranges and combinations by `ModelConfig` itself."""
    _check_scaling(fields.table("rope_scaling", {}))
    _check_layers(fields)
    recurrence = fields.table("recurrence", {})
    recurrence.only({f.name for f in dataclasses.fields(Recurrence)})
    _check_types(recurrence, Recurrence)
    _check_types(fields, ModelConfig)
    if "encoder" in fields.values:
        _read_config(fields.table("encoder"))
    if "suppressed_tokens" in fields.values:
        fields.integers("suppressed_tokens", 0, _MAX_COUNT)
    try:
        return ModelConfig.from_dict(dict(fields.values))
    except ConfigError as error:
        return fields.refuse_with(None, f"makes no model ({error})")


def _check_types(fields: Fields, kind: type[ModelConfig] | type[Recurrence]) -> None:
    """Checks the types of what ``kind`` has plain fields for."""
    for known in dataclasses.fields(kind):
        if known.default is not dataclasses.MISSING and known.name not in fields.values:
            continue
        if known.type in ("str", "RecurrenceKind", "GatedNorm"):
            fields.text(known.name)
        elif known.type == "int":
            fields.integer(known.name, least=0, most=_MAX_COUNT)
        elif known.type == "float":
            fields.number(known.name)
        elif known.type == "bool":
            fields.flag(known.name)


def _check_scaling(scaling: Fields) -> None:
    scaling.only({f.name for f in dataclasses.fields(RopeScaling)})
    if (kind := scaling.text("kind", "none")) not in _SCALING_KINDS:
        scaling.fail("kind", kind, f"one of {', '.join(_SCALING_KINDS)}")
    for key in ("factor", "low_freq_factor", "high_freq_factor"):
        scaling.number(key, 1.0)
    scaling.integer("original_max_positions", 1, least=1, most=_MAX_COUNT)
    for key in ("factors", "short_factors"):
        if key in scaling.values:
            scaling.numbers(key)


def _check_layers(fields: Fields) -> None:
    for index, values in enumerate(fields.items("layers") if "layers" in fields.values else ()):
        layer = fields.nested(f"layers[{index}]", values)
        layer.only({f.name for f in dataclasses.fields(LayerConfig)})
        layer.integer("intermediate_size", least=1, most=_MAX_COUNT)
        layer.number("rope_theta")
        layer.integer("window", 0, least=0, most=_MAX_COUNT)
        layer.flag("has_rope_scaling", True)
        layer.text("mixer", "attention")
        layer.flag("has_mlp", True)
        layer.flag("is_causal", False)
        if "kv_layer" in layer.values:
            layer.integer("kv_layer", least=0, most=_MAX_COUNT)
        layer.number("gate_sparsity", 0.0)
        layer.integer("head_size", 0, least=0, most=_MAX_COUNT)
