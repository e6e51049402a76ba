"""What the caller of an export decides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from edgedec.export.quantising.quantise import MIXED, SCHEMES
from edgedec.models.errors import ConfigError
from edgedec.models.graph import ANY_TRIPLE
from edgedec.models.kv_formats import find_kv_format
from edgedec.models.model_entry import DRAFT_MODEL, TARGET_MODEL
from edgedec.targets import DeviceTarget, chip_targets, device_target, find_graph_kind
from edgedec.targets.device_target import ChipOption
from edgedec.targets.triples import find_triple

DRAFT_HEAD_SIZE = 49152
"""Default number of tokens that a draft model's trimmed head knows. Fewer make its step little
cheaper and miss much: of 1280 tokens of code that no corpus had prepared for, 16384 of Qwen2.5's
151936 tokens held 87 %, as many as these 96 %; a step of its 0.5B model took 8.6 ms of one thread
with 16384, 9.1 with these and 11.5 with all."""


@dataclass(frozen=True)
class DraftModelConfig:
    """The draft model of a bundle.

    source: as of `ExportConfig`. quantization: ``keep``, or a scheme for every matrix that has
    more bits. head_size: tokens its LM head knows, 0 for all; None trims vocabularies of
    more than twice `DRAFT_HEAD_SIZE` to that. corpus: text or code, a file or a folder, whose most
    frequent tokens the trimmed head knows; None takes those the tokenizer ranks first.
    device_target: what its graph is made for; the target model's when None.
    """

    source: str
    quantization: str = "int4"
    head_size: int | None = None
    corpus: Path | None = None
    device_target: str | None = None

    def __post_init__(self) -> None:
        _check_scheme(self.quantization)
        if self.device_target is not None:
            device_target(self.device_target)
        if self.quantization == MIXED:
            raise ConfigError("a draft model cannot be mixed: choose another --draft-quantization")
        if self.head_size is not None and self.head_size < 0:
            raise ConfigError(f"draft head size is {self.head_size}, expected 0 (all) or more")
        _check_corpus(self.corpus)

    def chosen_head_size(self, vocab_size: int) -> int:
        """Returns how many tokens the head of a model with ``vocab_size`` shall know, 0 for all."""
        if self.head_size is None:
            return DRAFT_HEAD_SIZE if vocab_size > 2 * DRAFT_HEAD_SIZE else 0
        return self.head_size if self.head_size < vocab_size else 0


EXIT_HEAD_SIZE = 16384
"""Default number of tokens that the head of early exits knows."""


@dataclass(frozen=True)
class ExitConfig:
    """Early exits of a bundle's target model.

    layers: those that run before each, rising. head_size: tokens that a draft may name, 0 for all;
    `EXIT_HEAD_SIZE` when None. corpus: as of `DraftModelConfig`.
    """

    layers: tuple[int, ...]
    head_size: int | None = None
    corpus: Path | None = None

    def __post_init__(self) -> None:
        if not self.layers or self.layers[0] < 1:
            raise ConfigError(f"exits are behind the layers {self.layers}, expected 1 or more")
        _check_corpus(self.corpus)

    def chosen_head_size(self, vocab_size: int) -> int:
        """Returns how many tokens of ``vocab_size`` drafts may name."""
        size = EXIT_HEAD_SIZE if self.head_size is None else self.head_size
        return min(size, vocab_size) if size else vocab_size


@dataclass(frozen=True)
class ExportConfig:
    """One export.

    source: GGUF file, Hugging Face directory, hub id or catalogue name.
    destination: the bundle's folder.
    quantization: ``keep`` stores the checkpoint's own values. The others quantise every matrix in
        groups of 32, with a scale or with a minimum as well.
    device_target: what the bundle runs on.
    compiler: who makes the graphs; the device target's usual one when None.
    context: maximum positions of the graph; as many as the model was trained for when None.
    hidden_layers: layers whose hidden states the graph returns.
    dump_passes: folder that receives the graph after each pass.
    is_overwrite_allowed: an existing bundle at ``destination`` may be replaced.
    draft: the draft model, if the bundle has one.
    kv_format: format of all KV caches; the device target's usual one when None.
    calibrate: text on which matrices are quantised.
    target_bits: average bits per weight, for the quantization ``mixed``.
    lora: folders of adapters to merge, with their weights.
    exit: early exits of the target model.
    head: file of a draft head for the target model.
    has_brought_head: a head of the distribution `edgedec-heads`, or the layer for drafting that
        the checkpoint has, is added if there is one that fits.
    triple: processor and system that the bundle is for, and brings kernels for; any machine,
        without kernels, when None.
    soc: Qualcomm's system on a chip that the bundle is for.
    arch: GPUs that the bundle is for, such as sm_87; this machine's when None.
    """

    source: str
    destination: Path
    quantization: str = "keep"
    device_target: str = "cpu"
    compiler: str | None = None
    context: int | None = None
    hidden_layers: tuple[int, ...] = ()
    dump_passes: Path | None = None
    is_overwrite_allowed: bool = False
    draft: DraftModelConfig | None = None
    kv_format: str | None = None
    calibrate: Path | None = None
    target_bits: float | None = None
    lora: tuple[tuple[Path, float], ...] = ()
    exit: ExitConfig | None = None
    head: Path | None = None
    has_brought_head: bool = True
    triple: str | None = None
    soc: str | None = None
    arch: str | None = None

    def __post_init__(self) -> None:
        _check_scheme(self.quantization)
        _check_compiler(self)
        _check_calibration(self)
        if any(not math.isfinite(scale) for _, scale in self.lora):
            raise ConfigError("the scale of a LoRA adapter is not finite: name a number, such as 1")
        _check_head(self)
        _check_triple(self)
        _check_chip(self, "soc", self.soc)
        _check_chip(self, "arch", self.arch)
        known = device_target(self.device_target).kv_formats
        if self.kv_format is not None and find_kv_format(self.kv_format).name not in known:
            raise ConfigError(
                f"KV cache format is {self.kv_format}, device target {self.device_target} keeps "
                f"{' or '.join(known)}: leave out --kv-cache, or choose another --target"
            )
        if self.context is not None and not (isinstance(self.context, int) and self.context > 0):
            raise ConfigError(f"context is {self.context!r}, expected a whole number, 1 or more")
        if any(layer < 0 for layer in self.hidden_layers):
            raise ConfigError(f"hidden layers are {self.hidden_layers}, expected 0 or more")

    @property
    def kernels_triple(self) -> str | None:
        """The machine whose kernels the bundle brings; None without kernels of its own."""
        brings = find_graph_kind(self.compiler_of(TARGET_MODEL)).brings_kernels
        return self.triple if brings else None

    @property
    def takes_draft_layer(self) -> bool:
        """Whether the target model gets the layer for drafting that its checkpoint may have."""
        is_usual = (self.device_target, self.compiler or "fused") == ("cpu", "fused")
        return is_usual and self.is_free_for_head

    @property
    def takes_shipped_head(self) -> bool:
        """Whether the target model gets a head of the distribution `edgedec-heads`, if one fits."""
        is_own = self.quantization == "keep" and not self.lora  # what the heads were trained for
        return self.takes_draft_layer and is_own

    @property
    def is_free_for_head(self) -> bool:
        """Whether nobody chose how, or that nothing, drafts in the target model's graph."""
        return self.head is None and self.exit is None and self.has_brought_head

    def device_of(self, kind: str) -> DeviceTarget:
        """Returns what the model of this kind is made for."""
        draft_device = self.draft.device_target if kind == DRAFT_MODEL and self.draft else None
        return device_target(draft_device or self.device_target)

    def compiler_of(self, kind: str) -> str:
        """Returns who makes the graph of the model of this kind."""
        device = self.device_of(kind)
        return (
            self.compiler
            if self.compiler and device.name == self.device_target
            else device.compiler
        )


def _check_head(config: ExportConfig) -> None:
    if config.exit is None and config.head is None:
        return
    if config.exit is not None and config.head is not None:
        raise ConfigError("a bundle has early exits or a draft head: leave out --exit or --head")
    if (config.device_target, config.compiler or "fused") != ("cpu", "fused"):
        what = "early exits need" if config.exit is not None else "a draft head needs"
        raise ConfigError(f"{what} a fused graph: leave out --target and --compiler")


def _check_corpus(corpus: Path | None) -> None:
    if corpus is not None and not corpus.exists():
        raise ConfigError(f"there is no {corpus}: name a file or folder of text or code")


def _check_compiler(config: ExportConfig) -> None:
    device = device_target(config.device_target)
    known = (device.compiler, *device.other_compilers)
    if config.compiler is not None and config.compiler not in known:
        raise ConfigError(
            f"compiler is {config.compiler!r}, device target {device.name} has "
            f"{' or '.join(known)}: leave out --compiler, or choose another --target"
        )


def _check_triple(config: ExportConfig) -> None:
    if config.triple is None:
        return
    find_triple(config.triple)
    device = device_target(config.device_target)
    compiler = config.compiler or device.compiler
    if not find_graph_kind(compiler).brings_kernels and device.triple == ANY_TRIPLE:
        raise ConfigError(
            f"--triple {config.triple} brings edgedec's kernels, which graphs of the compiler "
            f"{compiler} have no use for or are bound to: export with --target cpu alone"
        )


def _check_chip(config: ExportConfig, option: ChipOption, chip: str | None) -> None:
    """Raises a ConfigError unless ``chip`` is given where a device needs one, and only there."""
    targets = chip_targets(option)
    used = {config.device_of(kind).name for kind in (TARGET_MODEL, DRAFT_MODEL)}
    wanting = [target for target in targets if target.name in used]
    if chip is None:
        for target in wanting:
            if target.needs_chip:
                known = target.chips_text()
                raise ConfigError(f"--target {target.name} needs --{option}, one of {known}")
        return
    for target in wanting or targets:
        target.check_chip(chip)
    if not wanting:
        names = " or ".join(target.name for target in targets)
        raise ConfigError(
            f"--{option} {chip} is for --target {names}, the device target is "
            f"{config.device_target}: add that, or leave --{option} out"
        )


def _check_calibration(config: ExportConfig) -> None:
    measures = find_graph_kind(config.compiler_of(TARGET_MODEL)).measures_activations
    if config.calibrate is not None and config.quantization == "keep" and not measures:
        raise ConfigError("--calibrate needs --quant int3, int4, int4-min, int8, int8-min or mixed")
    is_mixed = config.quantization == MIXED
    if is_mixed and (config.calibrate is None or config.target_bits is None):
        raise ConfigError(
            "--quant mixed needs --calibrate FILE, a text to measure on, and --target-bits, such "
            "as 5"
        )
    if config.target_bits is not None and not is_mixed:
        raise ConfigError(f"--target-bits {config.target_bits:g} needs --quant mixed")


def _check_scheme(name: str) -> None:
    if name not in SCHEMES:
        raise ConfigError(f"unknown quantization {name!r}; known: {', '.join(SCHEMES)}")
