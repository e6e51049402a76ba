"""What is said of an export that is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from edgedec.apps.console.consoles import out
from edgedec.apps.console.terminal import bytes_text, note

if TYPE_CHECKING:
    from edgedec.export.quantising.quantise import TensorError
    from edgedec.export.report import ExportReport

_N_SHOWN_TENSORS = 8


def show(done: ExportReport) -> None:
    """Prints size, time, the worst tensors, and how the bundle compares with the model."""
    verification = done.manifest.verification
    seconds = sum(done.phase_ms.values()) / 1e3
    out.print(f"[bold]{escape(str(done.bundle))}[/]  {bytes_text(done.n_bytes)}, {seconds:.1f} s")
    if done.left_out:
        note(done.left_out)
    for line in done.notes:
        note(line)
    for warning in done.warnings:
        note(f"warning: {warning}")
    for role, tensors in done.tensors.items():
        if tensors:
            out.print(_tensor_table(role, tensors))
    for role, result in (("target", verification), ("draft", verification.get("draft", {}))):
        if "kl_nats" in result:
            note(
                f"{role} verified against the float32 reference: KL {result['kl_nats']:.2g} nats, "
                f"the same first choice on {result['top1_agreement']:.0%} of "
                f"{result['n_tokens']} tokens"
            )
        if "min_cosine" in result:
            note(
                f"{role} verified against the float32 reference: cosine of hidden states "
                f"{result['min_cosine']:.7f} or more on {result['n_tokens']} tokens"
            )
        if weights := result.get("weights"):
            note(
                f"{role} weights: all {weights['n_matrices']} matrices and {weights['n_vectors']} "
                "vectors hold finite numbers"
            )
        if "lora" in result:
            note(f"{role} with LoRA: {_lora_text(result['lora'])}")
        if "calibration" in result:
            note(f"{role} calibrated: {_calibration_text(result['calibration'])}")
        if "kv_cache" in result:
            found_format = result["kv_cache"]["format"]
            note(f"{role} with a KV cache of {found_format}: {_kv_error_text(result['kv_cache'])}")


def _lora_text(facts: Mapping[str, Any]) -> str:
    return (
        f"{facts['n_matrices']} matrices changed, by {facts['mean_change']:.2%} of their size on "
        f"average and {facts['largest_change']:.2%} at most"
    )


def _calibration_text(facts: Mapping[str, Any]) -> str:
    ours, theirs = facts["perplexity"], facts["float_perplexity"]
    return (
        f"{facts['bits_per_weight']:.2f} bits per weight, KL {facts['kl_nats']:.2g} nats from the "
        f"float model, perplexity {ours:.4g} against {theirs:.4g}, the same first choice on "
        f"{facts['top1_agreement']:.1%} of {facts['n_tokens']} tokens held out"
    )


def _kv_error_text(facts: Mapping[str, Any]) -> str:
    return (
        f"KL {facts['kl_nats']:.2g} nats from float16, {facts['max_kl_nats']:.2g} at most, logits "
        f"up to {facts['max_abs_error']:.2g} apart (their spread is {facts['logit_std']:.2g}), the "
        f"same first choice on {facts['top1_agreement']:.1%} of {facts['n_tokens']} tokens of text"
    )


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
