"""`edgedec models`: models by name, those on this machine and those that can be fetched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from edgedec.apps.console.consoles import out
from edgedec.apps.console.facts import print_facts
from edgedec.apps.console.help_pages import HelpCommand, HelpGroup
from edgedec.apps.console.terminal import bytes_text, is_plain, print_json, write_out
from edgedec.apps.model_advice import measured_read_rate, suggested_names, tokens_per_s
from edgedec.apps.model_names import open_library
from edgedec.apps.options import common as options
from edgedec.models.errors import ConfigError, EdgedecError
from edgedec.models.manifest import read_manifest
from edgedec.system.memory import memory_bytes

_HELP = """List models by name, fetch them from the Hugging Face hub, and remove them.

A name works wherever a bundle does. Its bundle is made on first use.

Examples:

  edgedec models list

  edgedec models pull Qwen/Qwen2.5-0.5B-Instruct-GGUF:qwen2.5-0.5b-instruct-q4_k_m.gguf

  edgedec run smollm2-135m-instruct "Why is the sky blue?"
"""

models = typer.Typer(cls=HelpGroup, help=_HELP, no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name as `edgedec models list` shows it.")
]


@models.command("list", cls=HelpCommand)
def list_models(json: options.Json = False, debug: options.Debug = False) -> None:
    """Show the catalogue, the models you pulled, and the bundles here.

    The first use of a model fetches it and makes its bundle. `edgedec models show NAME` shows its
    licence. Bundles are those made of named models, and those in the current folder.

    Examples:

      edgedec models list

      edgedec models list --json
    """
    named, bundles = _named(), [_described(path) for path in _bundles()]
    if json:
        print_json({"models": named, "bundles": bundles})
        return
    out.print(_models_table(named))
    for line in _advice(named):
        write_out(f"{line}\n")
    if bundles:
        table = Table("bundle", "model", "size", "format", box=None, padding=(0, 2, 0, 0))
        for bundle in bundles:
            size = bytes_text(bundle["n_bytes"])
            table.add_row(*map(escape, (bundle["name"], bundle["model"], size, bundle["format"])))
        out.print()
        out.print(table)


def _models_table(named: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("model", no_wrap=True, overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("tokens/s", justify="right", no_wrap=True)
    for heading in ("state", "for"):
        table.add_column(heading)
    for model in named:
        mark = "" if model.get("is_tried", True) else " *"
        size, speed = bytes_text(model["n_bytes"]), _speed(model["tokens_per_s"])
        cells = (model["name"] + mark, size, speed, model["state"], model["for"])
        style = "bold" if model.get("suggested_for") else None
        table.add_row(*map(escape, cells), style=style)
    return table


def _speed(tokens_per_s: float) -> str:
    return f"{tokens_per_s:.1f}" if tokens_per_s < 10 else f"{tokens_per_s:.0f}"


def _advice(named: list[dict[str, Any]]) -> Iterator[str]:
    """Yields what the table's figures and marks mean, and what suits this machine."""
    for model in named:
        if kind := model.get("suggested_for"):
            untried = "" if model["is_tried"] else " (*)"
            speed = _speed(model["tokens_per_s"])
            yield f"suggested here for {kind}: {model['name']}{untried}, about {speed} tokens/s"
    yield "tokens/s: estimated from how fast this machine reads memory now, without drafts"
    yield "*: we have not run this model; we checked only the form of its entry"


@models.command(cls=HelpCommand)
def show(name: Name, json: options.Json = False, debug: options.Debug = False) -> None:
    """Show where a model comes from, its licence, and which of its files are here.

    Examples:

      edgedec models show smollm2-135m-instruct
    """
    model_facts = next((model for model in _named() if model["name"].lower() == name.lower()), None)
    if model_facts is None:
        known = ", ".join(model["name"] for model in _named())
        raise ConfigError(
            f"there is no model {name!r}; there is: {known}; fetch others with `edgedec models "
            f"pull ORG/NAME`"
        )
    bundle = open_library().bundle(model_facts["name"])
    model_facts["bundle"] = _described(bundle) if bundle.is_dir() else None
    if json:
        print_json(model_facts)
        return
    print_facts(dict(_facts(model_facts)))


def _facts(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields what is known of a model, in words."""
    yield "name", facts["name"]
    yield "from", facts["from"]
    yield "licence", facts["licence"] or "not stated; ask its publisher"
    yield "state", facts["state"]
    yield "size", bytes_text(facts["n_bytes"])
    if "ram_bytes" in facts:
        fits = "fits this machine" if facts["fits"] else "more than this machine has"
        yield "memory", f"{bytes_text(facts['ram_bytes'])}: {fits}"
        yield "tried", "yes" if facts["is_tried"] else "no: we have not run this model"
    yield "speed", f"about {_speed(facts['tokens_per_s'])} tokens/s here, without drafts"
    if facts["for"]:
        yield "for", facts["for"]
    if facts.get("draft"):
        yield "drafts with", facts["draft"]
    if facts.get("source"):
        yield "file", facts["source"]
    bundle = facts["bundle"]
    if bundle is None:
        yield "bundle", "made at first use"
    else:
        yield "bundle", f"{bundle['path']}, {bytes_text(bundle['n_bytes'])}, {bundle['format']}"


@models.command(cls=HelpCommand)
def pull(
    name: Annotated[
        str,
        typer.Argument(metavar="HUB_ID[:FILE]", help="org/name, or org/name:FILE.gguf."),
    ],
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Fetch a model from the Hugging Face hub, and check it.

    Fetches the GGUF file that you name, or a whole safetensors directory. Hashes are compared with
    the hub's. An interrupted download resumes. Pickled weights are refused. Set HF_TOKEN for models
    that need an account.

    Examples:

      edgedec models pull HuggingFaceTB/SmolLM2-135M-Instruct

      edgedec models pull Qwen/Qwen2.5-0.5B-Instruct-GGUF:qwen2.5-0.5b-instruct-q4_k_m.gguf
    """
    pulled = open_library().pull(name, shows_bars=not (is_plain() or json))
    head = _shipped_head(Path(pulled.source))
    if json:
        print_json({**asdict(pulled), "head": head})
        return
    write_out(f"licence: {pulled.licence or 'not stated; ask its publisher'}\n")
    write_out(f"{pulled.name}: {bytes_text(pulled.n_bytes)} in {pulled.source}\n")
    if head is not None:
        write_out(f"its bundle gets the draft head {head} of edgedec-heads, if the hash fits\n")


@models.command(cls=HelpCommand)
def remove(name: Name, json: options.Json = False, debug: options.Debug = False) -> None:
    """Remove a model: its bundle, and the files that were pulled.

    Examples:

      edgedec models remove HuggingFaceTB/SmolLM2-135M-Instruct
    """
    n_freed = open_library().remove(name)
    if json:
        print_json({"name": name, "n_freed_bytes": n_freed})
    else:
        write_out(f"{name} is removed: {bytes_text(n_freed)}\n")


def _named() -> list[dict[str, Any]]:
    """Returns the models that have a name, the smallest first."""
    library = open_library()
    from edgedec.export.checkpoints.catalogue import CATALOGUE, find_installed

    total_bytes, _ = memory_bytes()
    rate = measured_read_rate()
    named: list[dict[str, Any]] = []
    for name, entry in CATALOGUE.items():
        here, fits = find_installed(name), entry.ram_bytes < total_bytes
        absent = "to fetch" if fits else f"needs {bytes_text(entry.ram_bytes)} RAM"
        named.append(
            {
                "name": name,
                "from": entry.origin,
                "licence": entry.licence,
                "state": "here" if here else absent,
                "n_bytes": here.stat().st_size if here else entry.n_bytes,
                "ram_bytes": entry.ram_bytes,
                "fits": fits,
                "for": entry.purpose,
                "kind": entry.kind,
                "is_tried": entry.is_tried,
                "tokens_per_s": round(tokens_per_s(entry.active_bytes or entry.n_bytes, rate), 1),
                "draft": entry.draft,
            }
        )
    for pulled in library.pulled():
        state = "pulled" if Path(pulled.source).exists() else "gone: pull it again"
        named.append(
            {
                "name": pulled.name,
                "from": f"hub, revision {pulled.revision[:12]}",
                "licence": pulled.licence,
                "state": state,
                "n_bytes": pulled.n_bytes,
                "for": "",
                "tokens_per_s": round(tokens_per_s(pulled.n_bytes, rate), 1),
                "source": pulled.source,
            }
        )
    suggested = {name: kind for kind, name in suggested_names(named).items()}
    for model in named:
        model["suggested_for"] = suggested.get(model["name"])
    return sorted(named, key=lambda model: model["n_bytes"])


def _shipped_head(source: Path) -> str | None:
    """Returns the name of a shipped draft head for models like that of ``source``, if any."""
    from edgedec.export.checkpoints.checkpoint import open_checkpoint
    from edgedec.export.heads.shipped_heads import find_candidates

    try:
        files = find_candidates(open_checkpoint(str(source)).config).files
    except EdgedecError:  # who exports it hears why
        return None
    return ", ".join(file.path.stem for file in files) or None


def _bundles() -> Iterator[Path]:
    yield from open_library().bundles()
    yield from sorted(path for path in Path().glob("*.edgedec") if path.is_dir())


def _described(bundle: Path) -> dict[str, Any]:
    is_made = bundle.is_absolute()  # of a named model, whose name `models remove` takes
    place = {"path": str(bundle), "name": bundle.stem if is_made else str(bundle)}
    try:
        manifest = read_manifest(bundle, are_hashes_checked=False)
    except EdgedecError as error:
        return {**place, "model": f"broken: {error}"[:80], "n_bytes": 0, "format": ""}
    return {
        **place,
        "model": manifest.name,
        "n_bytes": sum(entry.n_bytes for entry in manifest.files.values()),
        "format": f"{manifest.quantization}, {manifest.device_target}",
    }
