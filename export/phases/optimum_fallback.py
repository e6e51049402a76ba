"""Graphs of families without a recipe, made by optimum-onnx (extra ``optimum``).

Such a graph has standard operators, float32 weights and a KV cache in and out. It serves chains
only: no trees, no hidden states, no packed weights.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from edgedec.export.verifying.verify import N_TOKENS, compare_logits
from edgedec.models.config import ModelConfig
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.families import known_families
from edgedec.models.graph import (
    ANY_TRIPLE,
    ATTENTION_MASK,
    INPUT_IDS,
    LOGITS,
    POSITION_IDS,
    ROUNDING_GAP,
    Capabilities,
    GraphContract,
    KVLayout,
    is_past_port,
    layer_of_past,
    past_port,
)
from edgedec.models.installation import install_command

GRAPH_NAME = "model.onnx"
TASK = "text-generation-with-past"
PROVIDERS = ("CPUExecutionProvider",)

_FLOAT_BYTES = 4


@dataclass(frozen=True)
class OptimumGraph:
    """What was written. ``weights`` are the files beside the graph, if there are any."""

    graph: str
    weights: tuple[str, ...]
    config: ModelConfig
    contract: GraphContract
    verification: dict[str, Any]


def export_with_optimum(model_folder: Path, family: str, destination: Path) -> OptimumGraph:
    """Writes the graph of a Hugging Face directory into ``destination``.

    Args:
        model_folder: holds config.json and safetensors; nothing is fetched, no code of it runs.
        family: its ``model_type``.

    Raises:
        UnsupportedModelError: optimum is missing, or does not know the family either.
        CheckpointError: the directory has no safetensors.
    """
    check_optimum(family)
    if not any(model_folder.glob("*.safetensors")):
        # Other weight files are pickles, which may run code when read.
        raise CheckpointError(f"{model_folder}: has no *.safetensors; convert the model to them")
    with tempfile.TemporaryDirectory(dir=destination) as scratch, _quiet():
        _run_optimum(model_folder, family, Path(scratch))
        names = [path.name for path in Path(scratch).iterdir() if path.name.startswith(GRAPH_NAME)]
        for name in names:
            (Path(scratch) / name).rename(destination / name)
        session = ort.InferenceSession(str(destination / GRAPH_NAME), providers=list(PROVIDERS))
        config = _read_config(model_folder, family, session)
        verification = _verify(model_folder, session, config)
        contract = _contract(session, config)
    names.remove(GRAPH_NAME)
    return OptimumGraph(GRAPH_NAME, tuple(sorted(names)), config, contract, verification)


def check_optimum(family: str) -> None:
    """Checks that optimum-onnx is installed.

    Raises:
        UnsupportedModelError: names the family, the known ones and the command that installs it.
    """
    try:
        is_installed = find_spec("optimum.exporters.onnx") is not None
    except ModuleNotFoundError:  # a parent package is missing
        is_installed = False
    if not is_installed:
        raise UnsupportedModelError(
            f"model family {family} has no recipe (known families: {', '.join(known_families())}); "
            f"to export it through optimum: {install_command('optimum')}"
        )


def _run_optimum(model_folder: Path, family: str, output: Path) -> None:
    from optimum.exporters.onnx import main_export

    try:
        main_export(
            str(model_folder),
            output=output,
            task=TASK,
            dtype="fp32",
            framework="pt",
            library_name="transformers",
            local_files_only=True,
            trust_remote_code=False,
            do_validation=False,  # ours follows, and its result goes into the manifest
        )
    except Exception as error:  # whatever it stumbles over
        raise UnsupportedModelError(
            f"model family {family} has no recipe (known families: {', '.join(known_families())}), "
            "and optimum cannot export it (--debug shows why)"
        ) from error


def _read_config(model_folder: Path, family: str, session: ort.InferenceSession) -> ModelConfig:
    """Returns what can be said of the model; sizes of the KV cache are the graph's."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(str(model_folder), local_files_only=True)
    shapes = {v.name: v.shape for v in session.get_inputs() if is_past_port(v.name)}
    _, n_kv_heads, _, head_size = shapes[past_port(0, "key")]
    epsilons = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")
    return ModelConfig(
        family=family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        n_layers=1 + max(map(layer_of_past, shapes)),
        n_heads=config.num_attention_heads,
        n_kv_heads=n_kv_heads,
        head_size=head_size,
        max_positions=config.max_position_embeddings,
        rms_norm_eps=next((v for e in epsilons if (v := getattr(config, e, None))), 1e-5),
        rope_theta=float(getattr(config, "rope_theta", None) or 10000.0),
        is_head_tied=bool(config.tie_word_embeddings),
    )


def _contract(session: ort.InferenceSession, config: ModelConfig) -> GraphContract:
    """Returns what the graph takes and gives. Its mask knows no branches: it runs chains only."""
    n_numbers = config.n_kv_numbers
    return GraphContract(
        compiler="optimum",
        backend="portable",
        triple=ANY_TRIPLE,
        providers=PROVIDERS,
        inputs=tuple(value.name for value in session.get_inputs()),
        outputs=tuple(value.name for value in session.get_outputs()),
        kv=KVLayout("rows", "float32", row_nbytes=_FLOAT_BYTES * n_numbers),
        can=Capabilities(row_gap=ROUNDING_GAP),
    )


def _verify(
    model_folder: Path, session: ort.InferenceSession, config: ModelConfig
) -> dict[str, Any]:
    """Returns the errors of the graph against transformers; see `compare_logits`."""
    import torch
    from transformers import AutoModelForCausalLM

    tokens = np.array([[(7919 * i + 101) % config.vocab_size for i in range(N_TOKENS)]])
    model = AutoModelForCausalLM.from_pretrained(
        str(model_folder), dtype=torch.float32, local_files_only=True, use_safetensors=True
    )
    with torch.no_grad():
        expected = model(torch.from_numpy(tokens)).logits[0].numpy()
    feeds = {
        INPUT_IDS: tokens,
        ATTENTION_MASK: np.ones_like(tokens),
        POSITION_IDS: np.arange(N_TOKENS)[None],
    }
    names = [value.name for value in session.get_inputs()]
    feeds = {name: value for name, value in feeds.items() if name in names}
    empty = np.zeros((1, config.n_kv_heads, 0, config.head_size), np.float32)
    feeds |= {name: empty for name in names if is_past_port(name)}
    (logits,) = session.run([LOGITS], feeds)
    return compare_logits(logits[0], expected)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the libraries' prints off standard output and their tracing warnings silent."""
    logger = logging.getLogger("optimum")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
