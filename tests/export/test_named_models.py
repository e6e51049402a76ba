"""What users mean by a model, and that its bundle is made once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import edgedec
from edgedec.export import named_models
from edgedec.export.library import Library
from edgedec.export.named_models import bundle_of, what_is_meant
from edgedec.models.errors import ConfigError
from edgedec.models.manifest import read_manifest

MakeGguf = Callable[..., Path]


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "cache")


@pytest.fixture
def announced() -> list[tuple[str, Path]]:
    return []


@pytest.fixture
def announce(announced: list[tuple[str, Path]]) -> named_models.Announce:
    @contextmanager
    def note(text: str, bundle: Path) -> Iterator[named_models.OnProgress]:
        announced.append((text, bundle))
        yield lambda phase, done, total: None

    return note


def test_a_file_is_exported_once(
    make_gguf: MakeGguf,
    library: Library,
    announce: named_models.Announce,
    announced: list[tuple[str, Path]],
) -> None:
    file = make_gguf("llama")
    bundle = bundle_of(file, announce, library)
    assert read_manifest(bundle).models
    assert bundle_of(str(file), announce, library) == bundle
    assert announced == [(str(file), bundle)]
    assert library.bundles() == [bundle]


def test_a_file_without_its_ending_is_known_by_its_beginning(
    make_gguf: MakeGguf, library: Library, tmp_path: Path
) -> None:
    file = make_gguf("llama").rename(tmp_path / "weights")
    assert bundle_of(file, library=library).is_dir()


def test_a_changed_file_is_exported_again_and_its_old_bundle_goes(
    make_gguf: MakeGguf, library: Library
) -> None:
    file = make_gguf("llama")
    before = bundle_of(file, library=library)
    os.utime(file, ns=(0, 10**9))
    after = bundle_of(file, library=library)
    assert after != before
    assert library.bundles() == [after]


def test_a_bundle_that_cannot_be_read_is_made_anew(make_gguf: MakeGguf, library: Library) -> None:
    file = make_gguf("llama")
    bundle = bundle_of(file, library=library)
    (bundle / "manifest.json").write_text("{}")
    assert bundle_of(file, library=library) == bundle
    assert read_manifest(bundle).models


def test_a_cache_that_cannot_be_written_is_one_line(make_gguf: MakeGguf, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("no folder")
    library = Library(tmp_path / "home" / "cache")
    with pytest.raises(ConfigError, match=r"cannot keep bundles in .*: Not a directory; write one"):
        bundle_of(make_gguf("llama"), library=library)


def test_a_bundle_means_itself(make_gguf: MakeGguf, library: Library) -> None:
    bundle = bundle_of(make_gguf("llama"), library=library)
    assert what_is_meant(bundle, library) == named_models.Meant(str(bundle), bundle)


def test_names_of_the_catalogue_are_exported_with_the_defaults_of_export(library: Library) -> None:
    meant = what_is_meant("SmolLM2-135M-Instruct", library)
    assert meant.source == "smollm2-135m-instruct"  # by which an export finds its draft head
    assert meant.bundle.parent == library.bundle("any").parent


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("smolm2-135m-instruct", "did you mean smollm2-135m-instruct"),
        ("nothing-like-it", "edgedec models list shows the names"),
        ("smolm2", "did you mean smollm2-"),
        ("nothing-like-it", "edgedec models pull ORG/NAME"),
        ("org/model", "run edgedec models pull org/model"),
        ("missing.gguf", "there is no file missing.gguf"),
    ],
)
def test_what_nobody_knows(text: str, said: str, library: Library) -> None:
    with pytest.raises(ConfigError, match=said):
        what_is_meant(text, library)


def test_a_missing_path_is_left_to_whoever_opens_it(library: Library, tmp_path: Path) -> None:
    for path in (tmp_path / "gone", Path("a/b/c"), Path("gone.edgedec")):
        assert what_is_meant(path, library) == named_models.Meant(str(path), path)


@pytest.mark.slow
def test_two_processes_that_want_one_model_make_it_once(
    make_gguf: MakeGguf, tmp_path: Path
) -> None:
    file = make_gguf("llama")
    program = (
        "import sys; from pathlib import Path; from contextlib import contextmanager\n"
        "from edgedec.export.library import Library\n"
        "from edgedec.export.named_models import bundle_of\n"
        "@contextmanager\n"
        "def said(text, bundle):\n"
        "    print('made')\n"
        "    yield lambda phase, done, total: None\n"
        "bundle_of(sys.argv[1], said, Library(Path(sys.argv[2])))\n"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(file), str(tmp_path / "cache")],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=300)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(said) == ["", "made\n"]


def test_python_loads_a_file_and_refuses_what_nobody_knows(make_gguf: MakeGguf) -> None:
    phases: set[str] = set()
    file = make_gguf("llama")
    with edgedec.load(file, on_progress=lambda phase, done, total: phases.add(phase)) as engine:
        result = engine.generate([5, 6, 7], edgedec.GenerationConfig(max_new_tokens=4))
    assert len(result.token_ids) == 4
    assert {"load", "verify"} <= phases
    with pytest.raises(ConfigError, match="did you mean smollm2-135m-instruct"):
        edgedec.load("smollm2-135m-instrukt")


def test_python_drafts_with_a_file(make_gguf: MakeGguf) -> None:
    file = make_gguf("llama")
    with edgedec.load(file, edgedec.EngineOptions(draft=file)) as engine:
        assert engine.draft is not None
