"""`edgedec export`: from a checkpoint to a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgedec.apps.console.option import option
from edgedec.apps.console.progress import ProgressBars, bytes_amount
from edgedec.apps.console.terminal import print_json
from edgedec.apps.export.options import DeviceOptions, DraftingOptions, WeightOptions
from edgedec.apps.export.summary import show
from edgedec.apps.exporter import needs_exporter
from edgedec.apps.options import common as options
from edgedec.apps.options.groups import takes_groups
from edgedec.runtime.backends.trust import libraries, trust

if TYPE_CHECKING:
    from edgedec.export.config import ExportConfig


@takes_groups
def export(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="GGUF file, Hugging Face directory, hub id such as org/name, or catalogue name "
            "such as smollm2-135m-instruct.",
        ),
    ],
    output: Annotated[Path, option("BUNDLE", "Bundle folder to write.", "--output", "-o")],
    *,
    weights: WeightOptions,
    device: DeviceOptions,
    drafting: DraftingOptions,
    dump_passes: Annotated[
        Path | None, option("DIR", "Write the graph after each compiler pass to DIR.")
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
    with needs_exporter():
        from edgedec.export import pipeline
    config = _config(source, output, weights, device, drafting, dump_passes, force)
    with ProgressBars(bytes_amount, has_lines=True) as bars:
        done = pipeline.export(config, bars.report)
    trust(libraries(done.bundle, done.manifest))
    if json:
        print_json(done.to_dict())
    else:
        show(done)


def _config(
    source: str,
    output: Path,
    weights: WeightOptions,
    device: DeviceOptions,
    drafting: DraftingOptions,
    dump_passes: Path | None,
    force: bool,
) -> ExportConfig:
    """Returns what the options ask the exporter for."""
    from edgedec.export.config import ExportConfig

    return ExportConfig(
        source=source,
        destination=output,
        quantization=weights.quant.value,
        device_target=device.target,
        compiler=device.compiler,
        context=device.context,
        hidden_layers=device.layers,
        dump_passes=dump_passes,
        is_overwrite_allowed=force,
        draft=drafting.draft_model(),
        kv_format=device.kv_cache,
        calibrate=weights.calibrate,
        target_bits=weights.target_bits,
        lora=weights.adapters,
        exit=drafting.early_exits(),
        head=drafting.head,
        has_brought_head=not drafting.no_head,
        triple=device.triple,
        soc=device.soc,
        arch=device.arch,
    )
