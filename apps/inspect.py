"""`edgedec inspect`: what a bundle holds, and whether it is whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

from edgedec.apps.console.consoles import out
from edgedec.apps.console.facts import print_facts
from edgedec.apps.console.progress import ProgressBars, bytes_amount
from edgedec.apps.console.terminal import bytes_text, print_json
from edgedec.apps.options import common as options
from edgedec.kernels.cpu import packed_nbytes
from edgedec.models.blocks import head_weight
from edgedec.models.bundle_files import damaged_files
from edgedec.models.graph import ANY_TRIPLE
from edgedec.models.manifest import BundleManifest, check_locations, read_manifest
from edgedec.models.model_entry import ModelEntry
from edgedec.models.quant import FORMATS
from edgedec.runtime.backends.trust import libraries, trust
from edgedec.runtime.drafting.drafter_parts import Need
from edgedec.runtime.drafting.drafters import drafter_names, find_drafter
from edgedec.runtime.methods.head_source import NEEDS
from edgedec.targets import find_graph_kind, graph_kinds


def inspect(
    bundle: options.Bundle,
    verify: bool = typer.Option(
        False, "--verify", help="Check the hash of every file, and name damaged ones."
    ),
    trust_code: bool = typer.Option(
        False,
        "--trust-code",
        help="Trust the compiled code in this bundle from now on.",
    ),
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Show what a bundle holds. --verify checks every byte.

    Examples:

      edgedec inspect smollm2.edgedec

      edgedec inspect smollm2.edgedec --verify --json

      edgedec inspect compiled.edgedec --trust-code
    """
    # With --verify a damaged small file is a finding, not an error that hides the others.
    manifest = read_manifest(bundle, are_hashes_checked=not verify)
    damaged: list[str] | None = None
    if verify:
        total = sum(entry.n_bytes for entry in manifest.files.values())
        done = 0
        with ProgressBars(bytes_amount) as bars:

            def on_progress(path: str, n_bytes: int) -> None:
                nonlocal done
                done += n_bytes
                bars.report("verify", done, total)

            damaged = damaged_files(bundle, manifest.files, on_progress)
        if not damaged:
            check_locations(bundle, manifest)
            for model in manifest.models.values():
                if model.contract.backend in graph_kinds():
                    find_graph_kind(model.contract.backend).check_weights(model)
    if json:
        print_json({"bundle": str(bundle), **manifest.to_dict(), "damaged_files": damaged})
    else:
        _show(manifest, damaged)
    if damaged:
        raise typer.Exit(1)
    if trust_code:
        trust(libraries(bundle, manifest))


def _show(manifest: BundleManifest, damaged: list[str] | None) -> None:
    total = sum(entry.n_bytes for entry in manifest.files.values())
    out.print(f"[bold]{escape(manifest.name)}[/]  {bytes_text(total)}")
    facts = {
        "licence": manifest.licence or "not stated",
        "device target": manifest.device_target,
        "quantization": manifest.quantization,
        "written by": f"edgedec {manifest.edgedec_version}, schema {manifest.schema_version}",
        "stop tokens": ", ".join(map(str, manifest.stop_token_ids)) or "none",
    }
    if not manifest.target.config.is_embedder:
        facts["methods"] = ", ".join(_methods(manifest))
    if (embedding := manifest.embedding) is not None:
        size = embedding.size(manifest.target.config.hidden_size)
        facts["vectors"] = f"{size} numbers, pooling {embedding.pooling}"
        prompts = (
            f"{name} (default)" if name == embedding.default_prompt else name
            for name in embedding.prompts
        )
        facts["prompts"] = ", ".join(prompts) or "none"
    verified = manifest.verification
    facts |= _verified({key: value for key, value in verified.items() if key != "draft"})
    print_facts(facts)
    for name, model in manifest.models.items():
        shared = () if model is manifest.target else manifest.target.files
        n_bytes = sum(manifest.files[path].n_bytes for path in model.files if path not in shared)
        title = name if name == model.kind else f"{name} ({model.kind})"
        out.print(f"\n[bold]{escape(title)}[/]  {bytes_text(n_bytes)}")
        rows = _published(model) | _model_facts(model)
        result = verified.get(name)
        print_facts(rows | (_verified(result) if isinstance(result, dict) else {}))
    out.print()
    out.print(_files_table(manifest, damaged))
    if damaged:
        names = ", ".join(damaged)
        out.print("[bold red]damaged:[/]", end=" ")
        out.print(f"{names}; copy the bundle again or export the model again", markup=False)
    elif damaged is not None:
        out.print("[green]every file is as exported[/]")


def _methods(manifest: BundleManifest) -> list[str]:
    """Returns the decoding methods, with what those need that the bundle does not bring."""
    names = ["plain", "auto"]
    there = {
        None: True,
        Need.DRAFT_MODEL: manifest.draft_name is not None,
    }
    if manifest.head is not None:
        need = Need.MTP if manifest.head.joined is not None else NEEDS.get(manifest.head.kind)
        there[need] = True
    for name in drafter_names():
        need = find_drafter(name).need
        names.append(name if need is None or there.get(need) else f"{name} (with {need.option})")
    return names


def _published(model: ModelEntry) -> dict[str, str]:
    """Returns what the model's publisher states, where that is not the bundle's own."""
    if model.name is None:
        return {}
    return {"name": model.name, "licence": model.licence or "not stated"}


def _verified(result: Mapping[str, Any]) -> dict[str, str]:
    facts: dict[str, str] = {}
    for key, value in result.items():
        if isinstance(value, dict):  # of one part of the model
            facts |= {f"verified: {key}, {k}": _short(v) for k, v in value.items()}
        else:
            facts[f"verified: {key}"] = _short(value)
    return facts


def _kv_cache_text(model: ModelEntry) -> str:
    """Returns the format of the KV cache, what a token takes in it, and all tokens."""
    kv, n_layers = model.contract.kv, model.config.n_layers
    n_rings = len(kv.ring_layers)
    of_rings, n_latest = kv.row_nbytes * n_rings // n_layers, min(kv.ring_rows, model.context)
    whole = (kv.row_nbytes - of_rings) * model.context + of_rings * n_latest
    texts = [
        kv.format,
        f"{bytes_text(kv.row_nbytes)} a token",
        f"{bytes_text(whole)} when the context is full",
    ]
    if n_rings:
        texts.append(f"{n_rings} of {n_layers} layers keep the latest {n_latest} tokens")
    return ", ".join(texts)


def _can_text(model: ModelEntry) -> str:
    """Returns what a pass over the model's graph can do."""
    can = model.contract.can
    names = {
        "trees of drafts": can.trees,
        "layers left out": can.gates,
        "row statistics": can.row_stats,
        "entry at a layer": can.entry,
        "several sequences": can.n_sequences > 1,
    }
    return ", ".join(name for name, is_offered in names.items() if is_offered) or "chains only"


def _machine_text(model: ModelEntry) -> str:
    """Returns which machines run the model's graph."""
    contract = model.contract
    if contract.backend in graph_kinds():
        system = find_graph_kind(contract.backend).system
        if system is not None:
            return system.text
    return "any machine" if contract.triple == ANY_TRIPLE else contract.triple


def _head_text(model: ModelEntry) -> str:
    """Returns what kind of LM head the model has, and the size of one that knows some tokens."""
    config = model.config
    if not config.trimmed_head_size:
        return "head tied" if config.is_head_tied else "head apart"
    fmt = model.tensor_formats.get(head_weight(config), "f32")
    shape = config.trimmed_head_size, config.hidden_size
    try:
        amount = f" in {bytes_text(packed_nbytes(FORMATS[fmt].index, *shape))}"
    except (RuntimeError, ValueError):  # no kernels here, or no such matrix
        amount = ""
    return f"head of {config.trimmed_head_size} tokens{amount}, which {model.head_ids} names"


def _model_facts(model: ModelEntry) -> dict[str, str]:
    config = model.config
    formats = Counter(model.tensor_formats.values())
    return {
        "graph": f"{model.contract.compiler}, {model.graph}",
        "runs on": _machine_text(model),
        "passes": _can_text(model),
        "family": config.family,
        "layers": f"{config.n_layers} x {config.hidden_size}, MLP {config.intermediate_size}",
        "heads": f"{config.n_heads}, {config.n_kv_heads} for keys and values, "
        f"size {config.head_size}",
        "vocabulary": f"{config.vocab_size}, {_head_text(model)}",
        "context": f"{model.context} of {config.max_positions} trained",
        "KV cache": _kv_cache_text(model),
        "matrices": ", ".join(f"{n} {name}" for name, n in formats.most_common()),
        "hidden states": ", ".join(map(str, model.contract.can.hidden)) or "none",
    }


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _files_table(manifest: BundleManifest, damaged: list[str] | None) -> Table:
    table = Table("file", box=None, padding=(0, 2, 0, 0))
    table.add_column("size", justify="right")
    table.add_column("SHA-256")
    for path, entry in manifest.files.items():
        row: list[Any] = [escape(path), bytes_text(entry.n_bytes), entry.sha256[:16]]
        table.add_row(*row, style="red" if damaged and path in damaged else None)
    return table
