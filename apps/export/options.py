"""What `edgedec export` may be asked for, in groups."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgedec.apps.console.option import option
from edgedec.apps.options import common as options
from edgedec.models.errors import ConfigError
from edgedec.models.kv_formats import KV_FORMATS
from edgedec.targets import chip_targets, device_target, device_target_names
from edgedec.targets.device_target import ChipOption

if TYPE_CHECKING:
    from edgedec.export.config import DraftModelConfig, ExitConfig


class Quantization(StrEnum):
    """What becomes of the weights."""

    KEEP = "keep"
    INT8 = "int8"
    INT4 = "int4"
    INT3 = "int3"
    INT8_MIN = "int8-min"
    INT4_MIN = "int4-min"
    MIXED = "mixed"


def _targets_help() -> str:
    """Returns what ``--target`` says of each device."""
    return "; ".join(f"{name}: {device_target(name).summary}" for name in device_target_names())


def _kv_format_choices() -> tuple[str, ...]:
    """Returns the KV formats that a device gives a choice of."""
    devices = map(device_target, device_target_names())
    offered = [device.kv_formats for device in devices if len(device.kv_formats) > 1]
    return tuple(name for name in KV_FORMATS if any(name in names for names in offered))


def _chips_help(option: ChipOption, what: str) -> str:
    """Returns what the option says of the chips it chooses among."""
    targets = chip_targets(option)
    names = ", ".join(target.name for target in targets)
    chips = ", ".join(chip for target in targets for chip in target.chips)
    return f"{what}, with --target {names}: {chips}."


@dataclass(frozen=True, kw_only=True)
class WeightOptions:
    """What becomes of the weights."""

    quant: Annotated[
        Quantization,
        typer.Option(
            help="keep: the file's own values. int8, int4, int3: groups of 32 with a "
            "scale. int8-min, int4-min: with a minimum as well. mixed: average "
            "bits of --target-bits."
        ),
    ] = Quantization.KEEP
    calibrate: Annotated[
        Path | None,
        option(
            "FILE",
            "Text to calibrate quantisation on. Takes minutes and loses much "
            "less at 4 bits. --target qnn measures activations on it.",
        ),
    ] = None
    target_bits: Annotated[
        float | None, option("BITS", "Average bits per weight for --quant mixed (3.5-8.5).")
    ] = None
    lora: Annotated[
        list[str] | None,
        option(
            "DIR[:SCALE]", "Merge a LoRA adapter in PEFT's format before quantising. Repeatable."
        ),
    ] = None

    @property
    def adapters(self) -> tuple[tuple[Path, float], ...]:
        """Folder and scale of each LoRA adapter."""
        return tuple(map(_parse_lora, self.lora or ()))


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """What the bundle is for, and what its graphs can do."""

    target: Annotated[str, typer.Option(help=_targets_help())] = "cpu"
    compiler: Annotated[
        str | None,
        option(
            "fused|tvm",
            "Compiler for --target cpu: fused (default, runs on ONNX Runtime) "
            "or tvm (a library that needs no ONNX Runtime; extra tvm).",
        ),
    ] = None
    triple: Annotated[
        str | None,
        option(
            "TRIPLE",
            "Make the bundle for one kind of machine, edgedec's kernels for it included: "
            "aarch64-linux-gnu or x86_64-linux-gnu. Needs a checkout, and a C++ compiler for it.",
        ),
    ] = None
    soc: Annotated[
        str | None, option("SOC", _chips_help("soc", "System on a chip that the bundle is for"))
    ] = None
    arch: Annotated[
        str | None,
        option(
            "ARCH",
            _chips_help("arch", "GPUs that the bundle is for")
            + " This machine's by default. Needs nvcc.",
        ),
    ] = None
    kv_cache: Annotated[
        str | None,
        option(
            "|".join(_kv_format_choices()),
            "KV cache format: float16 (default for cpu), int8 (half the memory), k5v4 (keys "
            "of 5 bits, values of 4: 0.3 of it; the export reports how both change logits) or "
            "float32 (default for ort, which computes in this format).",
        ),
    ] = None
    context: Annotated[
        int | None, typer.Option(min=1, help="Maximum context (default: as trained).")
    ] = None
    hidden_layers: Annotated[
        str, option("3,7,11", "Layers whose hidden states the graph returns.")
    ] = ""

    def __post_init__(self) -> None:
        options.parse_layers(self.hidden_layers)  # complains before anything is imported

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers whose hidden states the graph returns."""
        return options.parse_layers(self.hidden_layers)


@dataclass(frozen=True, kw_only=True)
class DraftingOptions:
    """What comes with the model to draft for it."""

    exit_layers: Annotated[
        str,
        option(
            "4,8",
            "Draft with the first layers of a model trained for early exits "
            "(LayerSkip). Decoding chooses among several.",
            "--exit",
        ),
    ] = ""
    head: Annotated[
        Path | None,
        option(
            "PATH",
            "Draft head for this model: a file of `train head --head-file`, or the folder of "
            "an EAGLE-3, DFlash or DSpark head.",
        ),
    ] = None
    no_head: Annotated[
        bool,
        typer.Option(
            "--no-head",
            help="Leave out the draft head of edgedec-heads, or the one that the model comes with.",
        ),
    ] = False
    draft: Annotated[
        str | None, option("MODEL", "Add this smaller model, which drafts for MODEL.")
    ] = None
    draft_target: Annotated[
        str | None, option("TARGET", "Device of the draft model, if it differs from MODEL's.")
    ] = None
    draft_quantization: Annotated[
        Quantization | None,
        typer.Option(help="Quantisation of the draft model's larger matrices (default int4)."),
    ] = None
    draft_vocabulary: Annotated[
        str | None,
        option(
            "N|all",
            "Number of tokens that drafts can use (default: 49152 for a draft "
            "model, 16384 for early exits).",
        ),
    ] = None
    draft_corpus: Annotated[
        Path | None,
        option("PATH", "File or folder of text whose most frequent tokens are kept for drafts."),
    ] = None

    def __post_init__(self) -> None:
        _parse_vocabulary(self.draft_vocabulary)  # complains before anything is imported
        if self.draft is None and self.draft_target is not None:
            raise ConfigError("--draft-target needs --draft MODEL")
        if self.draft is None and self.draft_quantization is not None:
            raise ConfigError("--draft-quantization needs --draft MODEL")
        is_trimming = self.draft_vocabulary or self.draft_corpus
        if self.draft is None and not self.exits and is_trimming:
            raise ConfigError(
                "--draft-vocabulary and --draft-corpus need --draft MODEL or --exit E"
            )

    @property
    def exits(self) -> tuple[int, ...]:
        """Layers behind which drafting may end."""
        return options.parse_layers(self.exit_layers, "--exit")

    @property
    def head_size(self) -> int | None:
        """Tokens that drafts can use; 0 for all, None for the usual number."""
        return _parse_vocabulary(self.draft_vocabulary)

    def draft_model(self) -> DraftModelConfig | None:
        """Returns what is asked of the draft model, if there is one."""
        from edgedec.export.config import DraftModelConfig

        if self.draft is None:
            return None
        quantization = (self.draft_quantization or Quantization.INT4).value
        return DraftModelConfig(
            self.draft, quantization, self.head_size, self.draft_corpus, self.draft_target
        )

    def early_exits(self) -> ExitConfig | None:
        """Returns what is asked of early exits, if there are some."""
        from edgedec.export.config import ExitConfig

        return ExitConfig(self.exits, self.head_size, self.draft_corpus) if self.exits else None


def _parse_lora(text: str) -> tuple[Path, float]:
    """Returns folder and scale written as ``DIR`` or ``DIR:0.5``."""
    folder, colon, scale = text.rpartition(":")
    try:
        return (Path(folder), float(scale)) if colon and folder else (Path(text), 1.0)
    except ValueError:
        return Path(text), 1.0


def _parse_vocabulary(text: str | None) -> int | None:
    """Returns the tokens written as a number, 0 for ``all``; anything else is a usage error."""
    if text is None:
        return None
    if text == "all":
        return 0
    if not text.isdecimal() or int(text) == 0:
        raise typer.BadParameter(
            f"got {text!r}, expected a number of tokens or all", param_hint="--draft-vocabulary"
        )
    return int(text)
