"""Which sub-layers the policies let run, and what settings say."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from edgedec.labs.methods.layer_policies import make_policy
from edgedec.models.errors import ConfigError
from edgedec.runtime.config.layers import LayersConfig
from edgedec.runtime.sequences.rows import Rows

N_LAYERS = 8


def layers(text: str, n_new: int, n_asked: int = 100) -> list[int]:
    """Returns the layers that run over new token ``n_new``; a layer runs as a whole or not."""
    policy = make_policy(LayersConfig.parse(text), N_LAYERS, n_asked, ())
    gates = policy.gates(n_new)
    assert gates is not None
    assert gates[::2] == gates[1::2]
    return [i for i, runs in enumerate(gates[::2]) if runs]


@pytest.mark.parametrize(
    ("keep", "expected"),
    [(1, list(range(8))), (0.75, [0, 1, 3, 4, 6, 7]), (0.5, [0, 2, 5, 7]), (0.01, [0, 7])],
)
def test_unified_is_spread_evenly_and_the_same_for_all(keep: float, expected: list[int]) -> None:
    assert layers(f"unified:keep={keep}", 0) == expected
    assert layers(f"unified:keep={keep}", 99) == expected


def test_skipdecode_runs_the_first_layer_and_fewer_and_fewer_of_the_last() -> None:
    found = [layers("skipdecode:keep=0.5,over=40", n) for n in (0, 10, 20, 30, 40, 400)]
    assert [len(one) for one in found] == [8, 7, 6, 5, 4, 4]
    assert found[0] == list(range(8))
    assert found[4] == [0, 5, 6, 7]
    for now, later in itertools.pairwise(found):
        assert set(later) <= set(now)  # whose rows of the KV cache are there


def test_skipdecode_goes_down_over_as_many_tokens_as_are_asked_for() -> None:
    assert layers("skipdecode:keep=0.5", 20, n_asked=20) == layers("skipdecode:keep=0.5,over=9", 9)


def rows(*angles: float) -> Rows:
    """Returns hidden states of a token behind 2, 3.. layers, each turned by so much."""
    turned = np.cumsum(angles)
    states = np.stack([np.cos(turned), np.sin(turned)], axis=1).astype(np.float32)
    found = Rows(np.zeros((1, 4), np.float32))
    found.hidden = {2 + i: state[None] for i, state in enumerate(states)}
    return found


def test_ffn_leaves_out_mlps_of_layers_that_change_little() -> None:
    setting = LayersConfig.parse("ffn:cosine=0.99,warm_up=3,every=4")
    policy = make_policy(setting, N_LAYERS, 100, (2, 3, 4, 5, 6, 8))
    assert list(policy.hidden_layers) == [2, 3, 4, 5, 6]
    policy.learn(rows(0.0, 0.1, 0.5, 0.05, 0.2))  # cosines of layers 2 to 5: .995 .878 .999 .980
    open_at = [policy.gates(n) for n in range(12)]
    assert [n for n, gates in enumerate(open_at) if gates is None] == [0, 1, 2, 3, 7, 11]
    assert all(
        [i for i, runs in enumerate(gates) if not runs] == [5, 9] for gates in open_at if gates
    )
    policy.learn(rows(0.0, 0.5, 0.5, 0.5, 0.5))
    assert policy.gates(4) is None


@pytest.mark.parametrize("known", [(), (8,), (2, 4, 6), (0, 1, 2, 6, 7, 8)])
def test_ffn_needs_hidden_states_on_both_sides_of_a_layer(known: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="--hidden-layers 2,3,4,5,6"):
        make_policy(LayersConfig(policy="ffn"), N_LAYERS, 100, known)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("unified", "unified"),
        ("unified:keep=0.9", "unified"),
        ("skipdecode: keep = 0.5 , over=12", "skipdecode:keep=0.5,over=12"),
        ("ffn:every=8,cosine=0.97,warm_up=0", "ffn:cosine=0.97,warm_up=0,every=8"),
    ],
)
def test_settings_are_read_back(text: str, reported: str) -> None:
    setting = LayersConfig.parse(text)
    assert str(setting) == reported
    assert LayersConfig.parse(reported) == setting == LayersConfig.from_dict(setting.to_dict())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "policy is '', expected one of unified, skipdecode, ffn"),
        ("half", "policy is 'half', expected one of"),
        ("unified:keep", "holds 'keep', expected each of keep once"),
        ("unified:over=3", "holds 'over=3', expected each of keep once"),
        ("unified:keep=0.5,keep=0.6", "expected each of keep once"),
        ("unified:keep=nan", "keep is nan, expected a number from 0 to 1"),
        ("unified:keep=two", "keep is 'two', expected a number"),
        ("skipdecode:over=0", "over is 0, expected a whole number of at least 1"),
        ("ffn:every=1.5", "every is '1.5', expected a whole number"),
        ("ffn:cosine=2", "cosine is 2.0, expected a number from -1 to 1"),
        ("ffn:warm_up=-1", "warm_up is -1, expected a whole number of at least 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        LayersConfig.parse(text)


def test_unknown_keys_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown LayersConfig key 'layers'"):
        LayersConfig.from_dict({"layers": 3})
