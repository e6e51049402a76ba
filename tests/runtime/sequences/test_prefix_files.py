"""Beginnings of texts on the disk: found by the next engine, bounded, private, never believed."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_models import open_graph_model

from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.external_weights import write_weights
from edgedec.export.to_onnx.fuse import fuse
from edgedec.export.to_onnx.messages import save_model
from edgedec.kernels import library
from edgedec.models.config import LayerConfig
from edgedec.models.families import weight_shapes
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.loaded import LoadedModel
from edgedec.runtime.methods.method_parts import MethodParts
from edgedec.runtime.sequences.prefix_files import PrefixFiles
from edgedec.runtime.sequences.session_memory import TARGET, KnownModel, SessionMemory
from edgedec.runtime.text.chat_template import ChatTemplate
from edgedec.runtime.text.prompt import PromptEncoder
from edgedec.runtime.text.tokenizer import Tokenizer

from ..conftest import CHATML

pytestmark = pytest.mark.skipif(not library.has_library(), reason="the kernels are not built")

VOCAB, CONTEXT, BLOCK = 330, 512, 32
TEXT = [int(t) for t in np.random.default_rng(1).integers(3, VOCAB, 300)]
FIELDS: dict[str, Any] = {
    "float16": {},
    "int8": {},
    "windows": {"windows": (40, 0, 24)},
}
GREEDY = GenerationConfig(max_new_tokens=4, ignore_eos=True)
Start = Callable[..., Engine]


@pytest.fixture(params=FIELDS)
def start(
    request: pytest.FixtureRequest, make_source: Any, tokenizer: Tokenizer, tmp_path: Path
) -> Start:
    """Returns what starts an engine over the same model and folder, as a new process does."""
    fields = dict(FIELDS[request.param])
    if "windows" in fields:
        head_size = make_source().config.head_size
        windows = fields.pop("windows")
        fields["layers"] = tuple(LayerConfig(head_size, 1e4, window=window) for window in windows)
    source = make_source(vocab_size=VOCAB, max_positions=CONTEXT, **fields)
    shapes = weight_shapes(source.config)
    formats = {name: source.format(name) for name, s in shapes.items() if len(s) == 2}
    kv_format = "int8" if request.param == "int8" else "float16"
    graph = fuse(emit_portable(source.config, ()), source.config, formats, kv_format=kv_format)
    write_weights(graph, source, tmp_path)
    save_model(graph, tmp_path / "model.onnx")
    folder = tmp_path / "prefixes"

    def make(max_bytes: int = 10**8, fingerprint: str = "tiny", cache: int = 10**7) -> Engine:
        memory = SessionMemory(cache, PrefixFiles(folder, max_bytes, BLOCK))
        memory.know(TARGET, KnownModel(fingerprint, source.config, CONTEXT))
        model = open_graph_model(tmp_path / "model.onnx", source.config, 1)
        encoder = PromptEncoder(tokenizer, ChatTemplate(CHATML))
        return Engine(LoadedModel(model, tokenizer, encoder, MethodParts(CONTEXT), memory=memory))

    return make


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "prefixes"


def ask(engine: Engine, text: Sequence[int], group: str = "") -> tuple[tuple[int, ...], int]:
    """Returns the answer, and how many tokens of the text were known."""
    config = GenerationConfig(max_new_tokens=4, ignore_eos=True, prefix_group=group)
    result = engine.generate(list(text), config)
    return result.token_ids, result.stats.n_reused_tokens


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.kv"), key=lambda path: path.stat().st_mtime_ns)


@pytest.mark.parity
def test_the_next_start_goes_on_where_the_text_begins_alike(start: Start, folder: Path) -> None:
    with start() as engine:
        first = ask(engine, TEXT)
    assert first[1] == 0
    assert len(files_of(folder)) == 303 // BLOCK
    other = [*TEXT[:200], *TEXT[10:60]]
    with start(cache=0) as fresh:
        fresh.forget_prompts()
        expected = fresh.generate([*other], GREEDY).token_ids
        assert fresh.generate([*other], GREEDY).stats.n_reused_tokens == 250
    with start() as engine:
        assert ask(engine, TEXT) == (first[0], 299 // BLOCK * BLOCK)
    with start() as engine:
        found, n_known = ask(engine, other)
        assert found == expected
        assert n_known == 249 // BLOCK * BLOCK  # `fresh` left it, when it was closed
        assert ask(engine, TEXT)[0] == first[0]


@pytest.mark.parity
def test_what_memory_alone_knows_is_written_too(start: Start) -> None:
    texts = [TEXT[:100], TEXT[100:200], TEXT[200:300]]
    with start() as engine:
        answers = [ask(engine, text)[0] for text in texts]
    with start() as engine:
        for text, answer in zip(texts, answers, strict=True):
            assert ask(engine, text) == (answer, 96)


def test_other_models_and_groups_find_nothing(start: Start) -> None:
    with start() as engine:
        ask(engine, TEXT, "one")
    with start(fingerprint="another") as engine:
        assert ask(engine, TEXT, "one")[1] == 0
    with start() as engine:
        assert ask(engine, TEXT)[1] == 0
        assert ask(engine, TEXT[:290], "one")[1] == 288


@pytest.mark.parametrize("place", [3, 60, 4200, -1])
def test_damaged_files_are_computed_anew(start: Start, folder: Path, place: int) -> None:
    with start() as engine:
        answer, _ = ask(engine, TEXT)
    second = files_of(folder)[1]
    content = bytearray(second.read_bytes())
    content[place] ^= 8
    second.write_bytes(content)
    with start(cache=0) as engine:
        found, n_known = ask(engine, TEXT)
        assert found == answer
        assert n_known in (0, BLOCK)  # nothing, where a window looks back beyond a block
        assert not second.exists()
    with start() as engine:
        assert ask(engine, TEXT) == (answer, 288)


def test_a_file_under_a_wrong_name_is_not_believed(start: Start, folder: Path) -> None:
    with start() as engine:
        answer, _ = ask(engine, TEXT)
    first, second = files_of(folder)[:2]
    first.write_bytes(second.read_bytes())
    with start() as engine:
        assert ask(engine, TEXT) == (answer, 0)


def test_files_used_least_recently_go_first(start: Start, folder: Path) -> None:
    with start() as engine:
        ask(engine, TEXT)
    files = files_of(folder)
    for age, path in enumerate(files):
        os.utime(path, (1000 + age, 1000 + age))
    limit = sum(path.stat().st_size for path in files) // 2
    with start() as engine:
        ask(engine, TEXT[:70])  # of the oldest two
    with start(max_bytes=limit) as engine:
        ask(engine, TEXT[:64])
    left = files_of(folder)
    assert sum(path.stat().st_size for path in left) <= limit
    assert set(files[:1]) <= set(left)
    assert files[2] not in left


@pytest.mark.skipif(sys.platform == "win32", reason="of modes")
def test_their_owner_alone_may_read_them(start: Start, folder: Path) -> None:
    with start() as engine:
        ask(engine, TEXT)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in files_of(folder)} == {0o600}
    folder.chmod(0o755)
    n_files = len(files_of(folder))
    with start() as engine:
        assert ask(engine, [*TEXT, 5])[1] == 0
        ask(engine, [*TEXT[:40], *TEXT])
    assert len(files_of(folder)) == n_files


def test_a_folder_that_cannot_be_made(start: Start, folder: Path) -> None:
    folder.write_text("a file")
    with start() as engine:
        assert ask(engine, TEXT)[1] == 0
    assert folder.read_text() == "a file"
