"""`edgedec fleet`: the command line. What it does is in `apps.fleet.work`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from edgedec.apps.console.extras import needs_extra
from edgedec.apps.console.help_pages import HelpCommand, HelpGroup
from edgedec.apps.console.option import option
from edgedec.apps.evaluation.job import TaskOptions, make_job
from edgedec.apps.options import common as options
from edgedec.apps.options.groups import takes_groups
from edgedec.apps.options.passes import PassOptions
from edgedec.models.errors import ConfigError
from edgedec.targets import library_suffixes

_HELP = """Measure and evaluate on many devices at once, over ssh or a Dask cluster.

A fleet is a TOML file with a table per device, such as [hosts.pi5]. Its key ssh is
what you would write after `ssh`.

Examples:

  edgedec fleet doctor fleet.toml --install dist/

  edgedec fleet bench fleet.toml smollm2.edgedec -o results/

  edgedec fleet eval fleet.toml smollm2.edgedec --task human_eval --data human_eval.jsonl -o found/

  edgedec fleet write fleet.toml smollm2.edgedec --prompts prompts.jsonl --self 200000 -o written/
"""

fleet = typer.Typer(cls=HelpGroup, help=_HELP, no_args_is_help=True, rich_markup_mode=None)

FleetFile = Annotated[
    Path, typer.Argument(metavar="FLEET", help="A file with hosts, or with a Dask scheduler.")
]
Bundles = Annotated[
    Path, typer.Argument(metavar="BUNDLE", help="A bundle, or the folder that `fleet export` made.")
]
Folder = Annotated[Path, option("FOLDER", "Where results go.", "--output", "-o")]
Force = Annotated[
    bool, typer.Option("--force", help="Use hosts even while another fleet uses them.")
]
Wait = Annotated[
    float,
    option("SECONDS", "How long a host may be away before it is left out.", "--wait", min=0.0),
]


@fleet.command(cls=HelpCommand)
def doctor(
    file: FleetFile,
    bundle: Annotated[
        Path | None, option("BUNDLE", "Say whether the bundle runs on each host.")
    ] = None,
    install: Annotated[
        Path | None,
        option(
            "FOLDER",
            "Install edgedec on every host: a wheel, or a folder of wheels as `make wheels` "
            "makes it. Its dependencies come from the package index that the host uses.",
        ),
    ] = None,
    force: Force = False,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Show which hosts can be reached, what they are, and what is missing.

    Exits with 1 if a host cannot work.

    Examples:

      edgedec fleet doctor fleet.toml

      edgedec fleet doctor fleet.toml --install dist/ --bundle smollm2.edgedec
    """
    with needs_extra("fleet"):
        from edgedec.apps.fleet.doctor import examine_fleet
    if not asyncio.run(examine_fleet(file, bundle, install, force, json)):
        raise typer.Exit(1)


@fleet.command(cls=HelpCommand)
def export(
    file: FleetFile,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="What `edgedec export` takes as MODEL.")
    ],
    output: Folder,
    compiler: Annotated[
        str | None, option("fused|tvm", "Compiler; tvm makes a bundle for each processor.")
    ] = None,
    quant: Annotated[str, typer.Option(help="Quantisation, as for `export`.")] = "keep",
    force: Force = False,
    debug: options.Debug = False,
) -> None:
    """Make a bundle for each kind of host, once, and copy it to the hosts.

    Hosts check the hash of every file. What they have already is not copied again.

    Examples:

      edgedec fleet export fleet.toml smollm2-135m-instruct -o bundles/

      edgedec fleet export fleet.toml smollm2-135m-instruct -o bundles/ --compiler tvm
    """
    with needs_extra("fleet"):
        from edgedec.apps.fleet.export import export_fleet
    is_compiled = bool(library_suffixes(compiler or ""))
    arguments = ["--quant", quant, *([] if compiler is None else ["--compiler", compiler])]
    asyncio.run(export_fleet(file, model, output, arguments, is_compiled, force))


@fleet.command(cls=HelpCommand)
@takes_groups
def bench(
    file: FleetFile,
    bundle: Bundles,
    *,
    output: Folder,
    passes: PassOptions,
    threads: Annotated[
        int | None,
        typer.Option("--threads", "-t", min=1, help="CPU threads (default: one per fast core)."),
    ] = None,
    repetitions: Annotated[
        int, typer.Option("--repetitions", "-r", min=1, help="Repetitions.")
    ] = 5,
    allow_noise: Annotated[
        bool, typer.Option("--allow-noise", help="Keep noisy results as well, and mark them.")
    ] = False,
    force: Force = False,
    wait: Wait = 60.0,
    debug: options.Debug = False,
) -> None:
    """Measure a bundle on every host, and write a result file for each.

    Hosts measure at the same time. Run the command again for hosts that were away: what is there
    is kept. Compare the files with `edgedec compare`.

    Examples:

      edgedec fleet bench fleet.toml smollm2.edgedec -o results/

      edgedec compare results/*.json -o html > results.html
    """
    with needs_extra("fleet"):
        from edgedec.apps.fleet.keeper import CrewOptions
        from edgedec.apps.fleet.work import bench_hosts
    passes.counts()
    values = [(f"--{name.replace('_', '-')}", value) for name, value in vars(passes).items()]
    arguments = [part for name, value in values if value is not None for part in (name, value)]
    arguments += ["--repetitions", str(repetitions)]
    arguments += [] if threads is None else ["--threads", str(threads)]
    arguments += ["--allow-noise"] * allow_noise
    asyncio.run(bench_hosts(file, bundle, output, arguments, CrewOptions(force, wait)))


@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """Options of a fleet's evaluation."""

    label: Annotated[str | None, option("TEXT", "What to call the fleet in the result file.")] = (
        None
    )
    force: Force = False
    wait: Wait = 60.0


@fleet.command("eval", cls=HelpCommand)
@takes_groups
def evaluate(
    file: FleetFile,
    bundle: Bundles,
    *,
    output: Folder,
    what: TaskOptions,
    loading: options.LoadOptions,
    request: options.RequestOptions,
    how: FleetOptions,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Evaluate a bundle on all hosts together: they share the problems.

    A host gets a problem whenever it has finished one, so fast hosts answer more. FOLDER gets
    samples.jsonl, as `edgedec eval -o` writes it, and result.json for `edgedec compare`. The same
    command resumes a run that was stopped.

    Examples:

      edgedec fleet eval fleet.toml qwen.edgedec --task human_eval --data human_eval.jsonl -o found/
    """
    with needs_extra("fleet"):
        from edgedec.apps.fleet.bundles import Bundles as FoundBundles
        from edgedec.apps.fleet.keeper import CrewOptions
        from edgedec.apps.fleet.work import EvalRun, evaluate_hosts
    bundles = FoundBundles(bundle)
    if what.parallel not in (None, 1):
        raise ConfigError("each host answers one problem at a time: leave out --parallel")
    job = make_job(bundles.any_bundle[0], what, loading, request)
    crew = CrewOptions(how.force, how.wait)
    run = EvalRun(job, request, bundles, output, how.label, json)
    asyncio.run(evaluate_hosts(file, run, crew))


@fleet.command(cls=HelpCommand)
def write(
    file: FleetFile,
    bundle: Bundles,
    output: Folder,
    n_self: Annotated[int, option("N", "How many tokens to write, about.", "--self", min=1)],
    prompts: Annotated[
        list[Path] | None, option("FILE.jsonl", "Prompts, as for `train head`. Repeatable.")
    ] = None,
    corpus: Annotated[
        list[Path] | None, option("PATH", "Texts whose beginnings the model continues. Repeatable.")
    ] = None,
    temperature: Annotated[
        float, option("T", "Temperature. 0 takes the likeliest tokens.", min=0.0)
    ] = 0.7,
    force: Force = False,
    wait: Wait = 60.0,
    debug: options.Debug = False,
) -> None:
    """Have all hosts together write the texts that `train head` learns from.

    A host gets the next prompts whenever it has finished some, so fast hosts write more. The texts
    are those of `train head --self` with the same options. FOLDER gets texts.jsonl for
    `train --written`. The same command resumes a run that was stopped.

    Examples:

      edgedec fleet write fleet.toml qwen.edgedec --prompts prompts.jsonl --self 200000 -o written/

      edgedec train head qwen.edgedec --written written/texts.jsonl -o qwen-head.edgedec
    """
    with needs_extra("fleet"):
        from edgedec.apps.fleet.keeper import CrewOptions
        from edgedec.apps.fleet.write import WriteOptions, write_on_hosts
    if not prompts and not corpus:
        raise ConfigError("there is nothing to answer: name --prompts or --corpus")
    write_options = WriteOptions(corpus or [], prompts or [], n_self, temperature)
    asyncio.run(write_on_hosts(file, bundle, output, write_options, CrewOptions(force, wait)))
