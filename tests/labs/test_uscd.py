"""USCD: contrast where the model is unsure, in two rows of one pass."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from edgedec import Engine
from edgedec.apps.eval.human_eval import without_examples
from edgedec.labs.methods.uscd import Contrast, contrasted
from edgedec.models.errors import ConfigError, SessionError

from ..apps.conftest import Cli, cli
from ..runtime.conftest import Row, backend, make_engine, tokenizer

__all__ = ["backend", "cli", "make_engine", "tokenizer"]  # fixtures

SURE = np.log(np.array([0.96, 0.02, 0.01, 0.01]))
UNSURE = np.log(np.array([0.4, 0.35, 0.2, 0.05]))
LAME = np.log(np.array([0.9, 0.05, 0.04, 0.01]))


def test_sure_rows_stay() -> None:
    assert Contrast(threshold=0.8).choose(SURE, LAME[::-1]) == (0, False)
    assert Contrast(threshold=0.0).choose(UNSURE, LAME) == (0, False)


def test_unsure_rows_lose_what_the_lame_prompt_says() -> None:
    # log 0.4 - w log 0.9 against log 0.35 - w log 0.05: the second from w = 0.05 on.
    assert Contrast(weight=0.04).choose(UNSURE, LAME) == (0, True)
    assert Contrast(weight=0.06).choose(UNSURE, LAME) == (1, True)
    # An implausible token is never chosen, however much the contrast is for it.
    assert Contrast(weight=9, plausible=0.4).choose(UNSURE, LAME) == (2, True)
    assert Contrast(weight=9, plausible=0.9).choose(UNSURE, LAME[::-1])[0] == 0


def test_the_spread_is_that_of_the_paper_in_parts_of_its_most() -> None:
    rng = np.random.default_rng(0)
    row = rng.normal(size=50) * 3
    p = np.exp(row) / np.exp(row).sum()
    share = p.std() / np.eye(50)[0].std()
    assert Contrast(threshold=share + 1e-6).choose(row, row)[1]
    assert not Contrast(threshold=share - 1e-6).choose(row, row)[1]


def test_two_rows_go_on_side_by_side(make_engine: Callable[..., Engine]) -> None:
    def rule(prefix: Sequence[int]) -> Row:
        row = np.full(vocab, -20.0, np.float32)
        is_lame = prefix[0] == 5
        n = len(prefix) - (1 if is_lame else 3)
        row[[10 + n, 20 + n]] = [np.log(0.9), np.log(0.1)] if is_lame else np.log([0.55, 0.45])
        return row

    engine = make_engine(rule)
    vocab = engine.model.vocab_size
    found = contrasted(engine, ([3, 3, 4], [5]), Contrast(), 4)
    assert found.token_ids == (20, 21, 22, 23)
    assert (found.n_contrasted, found.is_whole) == (4, False)
    plain = contrasted(engine, ([3, 3, 4], [5]), Contrast(weight=0), 4)
    assert plain.token_ids == (10, 11, 12, 13)
    with pytest.raises(SessionError, match="ask for fewer new tokens"):
        contrasted(engine, ([3], [5]), Contrast(), 256)


@pytest.mark.e2e
def test_a_weight_of_nothing_is_greedy_decoding(smollm2_bundle: Path) -> None:
    from edgedec import load

    with load(str(smollm2_bundle)) as engine:
        prompts = [engine.encode(text) for text in ("The sky is", "A word:")]
        found = contrasted(engine, (prompts[0], prompts[1]), Contrast(weight=0), 12)
        expected = engine.generate(prompts[0], max_new_tokens=12, method="plain", temperature=0)
        assert found.token_ids == expected.token_ids
        assert found.n_contrasted > 0


@pytest.mark.e2e
def test_settings_keep_samples_of_their_own(cli: Cli, smollm2_bundle: Path, tmp_path: Path) -> None:
    row = {
        "prompt": 'def one():\n    """Returns 1.\n    >>> one()\n    1\n    """\n',
        "test": "def check(candidate):\n    assert candidate() == 1\n",
        "entry_point": "one",
    }
    data = tmp_path / "d.jsonl"
    data.write_text(json.dumps(row) + "\n")
    command = ["eval", smollm2_bundle, "--task", "human_eval", "--data", data, "-n", 8]
    done = cli(*command, "--settings", "plain; uscd; uscd:weight=9,threshold=1", "--json")
    assert done.exit_code == 0, done.err
    assert len({setting["fingerprint"] for setting in done.json["settings"]}) == 3
    assert [setting["lossless"] for setting in done.json["settings"]] == [True, False, False]
    other = cli("eval", smollm2_bundle, "--task", "gsm8k", "--data", data, "--settings", "uscd")
    assert other.exit_code != 0


@pytest.mark.parametrize(
    "text",
    ["uscd:weight=x", "uscd:wait=1", "uscd:weight=-1", "uscd:threshold=2", "uscd:plausible=0"],
)
def test_settings_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError):
        Contrast.of(text)


def test_settings_are_read_back() -> None:
    assert Contrast.of("plain") is None
    assert Contrast.of("uscd") == Contrast()
    made = Contrast(0.5, 0.6, 0.2)
    assert Contrast.of(str(made)) == made


PROMPT = '''\
def f(x: int) -> int:
    """ Adds one.
    >>> f(1)
    2
    >>> f(2)
    3

    Nothing else.
    """
'''


def test_examples_are_left_out() -> None:
    assert (
        without_examples(PROMPT)
        == '''\
def f(x: int) -> int:
    """ Adds one.

    Nothing else.
    """
'''
    )
    other = 'def g(s):\n    """Reverses s.\n    For example:\n    g("ab") == "ba"\n    """\n'
    assert without_examples(other) == 'def g(s):\n    """Reverses s.\n    """\n'
    plain = 'def h():\n    """Returns 1."""\n'
    assert without_examples(plain) == plain
