"""Eight hours of typing with no time between the keys: nothing grows without end."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from edgedec.apps.bench.keystrokes import MEAN_S
from edgedec.autocomplete import AutocompleteConfig, Autocompleter, Document, LearnedOffers
from edgedec.runtime.drafting.ngrams.ngram_store import NgramStore
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.sequences.session_memory import SessionMemory
from edgedec.runtime.text.tokenizer import Tokenizer

from ..runtime.conftest import Row, one_hot

N_HOURS = 8
KEYS_AN_HOUR = int(3600 / MEAN_S)
N_FILES = 12
STORE_BYTES, CACHE_BYTES = 1 << 16, 1 << 22
SOURCE = Path(__file__).read_text(encoding="utf-8")


def rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.long
def test_nothing_grows_in_eight_hours(
    make_engine: Callable[..., Engine], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    n_tokens = tokenizer.vocab_size

    def rule(prefix: Sequence[int]) -> Row:
        last = prefix[-1]
        row: Row = one_hot(n_tokens, (7 * last + 3) % n_tokens)
        return row * (1.0 if last % 3 else 0.01)

    store = NgramStore.open(tmp_path / "store", "00" * 32, STORE_BYTES)
    memory = SessionMemory(CACHE_BYTES)
    learned = LearnedOffers(tmp_path / "offers.json")
    config = AutocompleteConfig(n_before=128, n_others=64, max_new_tokens=3, max_idle_cpu=0.0)
    texts = dict.fromkeys((f"{i}.py" for i in range(N_FILES)), "")
    sizes: list[int] = []
    with (
        make_engine(
            rule, context=512, store=store, is_store_growing=False, memory=memory
        ) as engine,
        Autocompleter(engine, config, learned=learned) as completer,
    ):
        for i in range(N_HOURS * KEYS_AN_HOUR):
            name = f"{i // 500 % N_FILES}.py"
            texts[name] += SOURCE[i % len(SOURCE)]
            text = texts[name][-4000:]
            offset = len(texts[name]) - len(text)
            offer = completer.update(Document(text, len(text), name, offset)).result(timeout=600)
            if offer is not None and i % 7 == 0:
                texts[name] += offer.text
            if (i + 1) % KEYS_AN_HOUR == 0:
                gc.collect()
                sizes.append(rss_bytes())
                print(f"hour {len(sizes)}: {sizes[-1] / 1e6:.1f} MB", flush=True)
    assert memory.prefix_cache.nbytes <= CACHE_BYTES
    files = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    print(f"{N_HOURS * KEYS_AN_HOUR} keys, files: {files}")
    assert files["store"] <= STORE_BYTES
    assert files["offers.json"] <= 4096
    assert len(files) == 2
    # The documents themselves, Python's own arenas, and what the index of the store is sorted in.
    assert sizes[-1] - sizes[1] < sum(map(len, texts.values())) + (8 << 20)
