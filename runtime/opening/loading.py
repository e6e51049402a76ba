"""What takes long to load, loaded at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path

from edgedec.models.manifest import TOKENIZER_NAME
from edgedec.models.model_entry import ModelEntry
from edgedec.runtime.backends import open_model, release_model
from edgedec.runtime.sequences.affinity import Affinity
from edgedec.runtime.sequences.model import Model
from edgedec.runtime.text.tokenizer import Tokenizer
from edgedec.targets import find_graph_kind


def load_together(
    folder: Path, entry: ModelEntry, threads: int, affinity: Affinity
) -> tuple[Model, Tokenizer]:
    """Returns the model ``entry`` of the bundle at ``folder``, and its tokenizer.

    Raises:
        BundleError: One of them is broken.
    """
    opened = partial(open_model, folder, entry, threads, affinity)
    # Takes long, and Python's lock: here, before there are two.
    with suppress(ImportError, LookupError):  # whoever needs it says so
        import_module(find_graph_kind(entry.contract.backend).first_import)
    with ThreadPoolExecutor(max_workers=1) as pool:
        model = pool.submit(opened)
        # An import gives Python's lock away at every file, and the other thread needs it for a
        # millisecond until all of its work is ONNX Runtime's. Reading a tokenizer never does.
        import_module("edgedec.runtime.text.chat_template")
        try:
            tokenizer = Tokenizer.load(folder / TOKENIZER_NAME)
        except BaseException:
            if model.exception() is None:
                release_model(model.result())
            raise
        return model.result(), tokenizer
