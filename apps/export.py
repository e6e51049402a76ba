"""`edgedec export`: from a checkpoint to a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from edgedec.apps.console.consoles import out
from edgedec.apps.console.progress import ProgressBars, bytes_amount
from edgedec.apps.console.terminal import bytes_text, note, print_json
from edgedec.apps.exporter import needs_exporter
from edgedec.apps.options import common as options
from edgedec.models.errors import ConfigError
from edgedec.models.kv_formats import KV_FORMATS
from edgedec.runtime.backends.trust import libraries, trust
from edgedec.targets import chip_targets, device_target, device_target_names
from edgedec.targets.profile import ChipOption

if TYPE_CHECKING:
    from edgedec.export.quantising.quantize import TensorError
    from edgedec.export.report import ExportReport

_N_SHOWN_TENSORS = 8


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


class Quantization(StrEnum):
    """What becomes of the weights."""

    KEEP = "keep"
    INT8 = "int8"
    INT4 = "int4"
    INT8_MIN = "int8-min"
    INT4_MIN = "int4-min"
    MIXED = "mixed"


def export(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="GGUF file, Hugging Face directory, hub id such as org/name, or catalogue name "
            "such as smollm2-135m-instruct.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="BUNDLE", help="Bundle folder to write."),
    ],
    quant: Annotated[
        Quantization,
        typer.Option(
            help="keep: the file's own values. int8, int4: groups of 32 with a "
            "scale. int8-min, int4-min: with a minimum as well. mixed: average "
            "bits of --target-bits."
        ),
    ] = Quantization.KEEP,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Text to calibrate quantisation on. Takes minutes and loses much "
            "less at 4 bits. --target qnn measures activations on it.",
        ),
    ] = None,
    target_bits: Annotated[
        float | None,
        typer.Option(metavar="BITS", help="Average bits per weight for --quant mixed (4.5-8.5)."),
    ] = None,
    lora: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIR[:SCALE]",
            help="Merge a LoRA adapter in PEFT's format before quantising. Repeatable.",
        ),
    ] = None,
    target: Annotated[
        str,
        typer.Option(help=_targets_help()),
    ] = "cpu",
    compiler: Annotated[
        str | None,
        typer.Option(
            metavar="fused|tvm",
            help="Compiler for --target cpu: fused (default, runs on ONNX Runtime) "
            "or tvm (a library that needs no ONNX Runtime; extra tvm).",
        ),
    ] = None,
    triple: Annotated[
        str | None,
        typer.Option(
            metavar="TRIPLE",
            help="Make the bundle for one kind of machine, edgedec's kernels for it included: "
            "aarch64-linux-gnu or x86_64-linux-gnu. Needs a checkout, and a C++ compiler for it.",
        ),
    ] = None,
    soc: Annotated[
        str | None,
        typer.Option(
            metavar="SOC",
            help=_chips_help("soc", "System on a chip that the bundle is for"),
        ),
    ] = None,
    arch: Annotated[
        str | None,
        typer.Option(
            metavar="ARCH",
            help=_chips_help("arch", "GPUs that the bundle is for")
            + " This machine's by default. Needs nvcc.",
        ),
    ] = None,
    kv_cache: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(_kv_format_choices()),
            help="KV cache format: float16 (default for cpu), int8 (half the memory;"
            " the export reports how logits change) or float32 (default for "
            "ort, which computes in this format).",
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum context (default: as trained)."),
    ] = None,
    hidden_layers: Annotated[
        str, typer.Option(metavar="3,7,11", help="Layers whose hidden states the graph returns.")
    ] = "",
    exit_layers: Annotated[
        str,
        typer.Option(
            "--exit",
            metavar="4,8",
            help="Draft with the first layers of a model trained for early exits "
            "(LayerSkip). Decoding chooses among several.",
        ),
    ] = "",
    head: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draft head written by `train head --head-file` for this model.",
        ),
    ] = None,
    no_head: Annotated[
        bool,
        typer.Option(
            "--no-head", help="Leave out the draft head that comes with edgedec or the model."
        ),
    ] = False,
    dump_passes: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the graph after each compiler pass to DIR."),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Add this smaller model, which drafts for MODEL."),
    ] = None,
    draft_target: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            help="Device of the draft model, if it differs from MODEL's.",
        ),
    ] = None,
    draft_quantization: Annotated[
        Quantization | None,
        typer.Option(help="Quantisation of the draft model's larger matrices (default int4)."),
    ] = None,
    draft_vocabulary: Annotated[
        str | None,
        typer.Option(
            metavar="N|all",
            help="Number of tokens that drafts can use (default: 49152 for a draft "
            "model, 16384 for early exits).",
        ),
    ] = None,
    draft_corpus: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="File or folder of text whose most frequent tokens are kept for drafts.",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace an existing bundle, at the end and in one step."),
    ] = False,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Turn a model file into a bundle that `edgedec run` loads.

    An export that is killed leaves no half bundle behind.

    Examples:

      edgedec export smollm2-135m-instruct -o smollm2.edgedec

      edgedec export model.gguf -o model.edgedec --context 4096

      edgedec export path/to/hf-model -o model.edgedec --quant int4

      edgedec export path/to/hf-model -o model.edgedec --quant int4 --calibrate text.txt

      edgedec export path/to/hf-model --lora path/to/adapter:0.8 -o model.edgedec

      edgedec export model.gguf -o model.edgedec --compiler tvm

      edgedec export path/to/layerskip-model --exit 4,8 -o model.edgedec

      edgedec export model.gguf --head model-head.safetensors -o model.edgedec

      edgedec export model.gguf -o board.edgedec --triple aarch64-linux-gnu

      edgedec export model.gguf -o model.edgedec --target coreml --context 1024

      edgedec export model.gguf -o phone.edgedec --target qnn --soc SM8650

      edgedec export model.gguf -o jetson.edgedec --target cuda --arch sm_87

      edgedec export large.gguf --draft small.gguf --draft-corpus src/ -o pair.edgedec

      edgedec export large.gguf --draft small.gguf --draft-target ort -o two.edgedec
    """
    layers = options.parse_layers(hidden_layers)
    exits = options.parse_layers(exit_layers, "--exit")
    head_size = _parse_vocabulary(draft_vocabulary)
    if draft is None and draft_target is not None:
        raise ConfigError("--draft-target needs --draft MODEL")
    if draft is None and draft_quantization is not None:
        raise ConfigError("--draft-quantization needs --draft MODEL")
    if draft is None and not exits and (draft_vocabulary or draft_corpus):
        raise ConfigError("--draft-vocabulary and --draft-corpus need --draft MODEL or --exit E")
    with needs_exporter():
        from edgedec.export import pipeline
        from edgedec.export.config import (
            DraftModelConfig,
            ExitConfig,
            ExportConfig,
        )
    config = ExportConfig(
        source=source,
        destination=output,
        quantization=quant.value,
        device_target=target,
        compiler=compiler,
        context=context,
        hidden_layers=layers,
        dump_passes=dump_passes,
        is_overwrite_allowed=force,
        draft=None
        if draft is None
        else DraftModelConfig(
            draft,
            (draft_quantization or Quantization.INT4).value,
            head_size,
            draft_corpus,
            draft_target,
        ),
        kv_format=kv_cache,
        calibrate=calibrate,
        target_bits=target_bits,
        lora=tuple(map(_parse_lora, lora or ())),
        exit=ExitConfig(exits, head_size, draft_corpus) if exits else None,
        head=head,
        has_brought_head=not no_head,
        triple=triple,
        soc=soc,
        arch=arch,
    )
    with ProgressBars(bytes_amount, has_lines=True) as bars:
        done = pipeline.export(config, bars.report)
    trust(libraries(done.bundle, done.manifest))
    if json:
        print_json(done.to_dict())
    else:
        _show(done)


def _show(done: ExportReport) -> None:
    found = done.manifest.verification
    seconds = sum(done.phase_ms.values()) / 1e3
    out.print(f"[bold]{escape(str(done.bundle))}[/]  {bytes_text(done.n_bytes)}, {seconds:.1f} s")
    for role, tensors in done.tensors.items():
        if tensors:
            out.print(_tensor_table(role, tensors))
    for role, result in (("target", found), ("draft", found.get("draft", {}))):
        if "kl_nats" in result:
            note(
                f"{role} verified against the float32 reference: KL {result['kl_nats']:.2g} nats, "
                f"the same first choice on {result['top1_agreement']:.0%} of "
                f"{result['n_tokens']} tokens"
            )
        if "lora" in result:
            note(f"{role} with LoRA: {_lora_text(result['lora'])}")
        if "calibration" in result:
            note(f"{role} calibrated: {_calibration_text(result['calibration'])}")
        if "kv_cache" in result:
            found_format = result["kv_cache"]["format"]
            note(f"{role} with a KV cache of {found_format}: {_kv_error_text(result['kv_cache'])}")


def _lora_text(found: Mapping[str, Any]) -> str:
    return (
        f"{found['n_matrices']} matrices changed, by {found['mean_change']:.2%} of their size on "
        f"average and {found['largest_change']:.2%} at most"
    )


def _calibration_text(found: Mapping[str, Any]) -> str:
    ours, theirs = found["perplexity"], found["float_perplexity"]
    return (
        f"{found['bits_per_weight']:.2f} bits per weight, KL {found['kl_nats']:.2g} nats from the "
        f"float model, perplexity {ours:.4g} against {theirs:.4g}, the same first choice on "
        f"{found['top1_agreement']:.1%} of {found['n_tokens']} tokens held out"
    )


def _kv_error_text(found: Mapping[str, Any]) -> str:
    return (
        f"KL {found['kl_nats']:.2g} nats from float16, {found['max_kl_nats']:.2g} at most, logits "
        f"up to {found['max_abs_error']:.2g} apart (their spread is {found['logit_std']:.2g}), the "
        f"same first choice on {found['top1_agreement']:.1%} of {found['n_tokens']} tokens of text"
    )


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


def _tensor_table(role: str, tensors: tuple[TensorError, ...]) -> Table:
    shown = tensors[:_N_SHOWN_TENSORS]
    table = Table(f"{role} tensor (worst first)", box=None, padding=(0, 2, 0, 0))
    table.add_column("format")
    table.add_column("relative error", justify="right")
    for tensor in shown:
        table.add_row(escape(tensor.name), tensor.format, f"{tensor.relative_rms:.2%}")
    if left := len(tensors) - len(shown):
        table.add_row(f"... and {left} more (--json lists all)")
    return table
