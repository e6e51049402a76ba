"""DFlash drafters as z-lab lays them out, against torch on random weights.

The oracle computes what z-lab's ``model.py`` states: each layer's keys and values of the text come
from the target's states, and a block of the last token and masks attends to these and to itself.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file

from edgedec import Engine, EngineOptions, GenerationConfig, SamplingConfig, load
from edgedec.export.config import ExportConfig
from edgedec.export.heads import attached
from edgedec.export.pipeline import export
from edgedec.kernels.library import has_library
from edgedec.models.draft_heads import DFLASH
from edgedec.models.errors import (
    BundleError,
    CheckpointError,
    ConfigError,
    UnsupportedModelError,
)
from edgedec.models.manifest import read_manifest
from edgedec.models.token_pairs import N_CHANGED, TokenPairs
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt
from edgedec.runtime.drafting.drafter_parts import Need
from edgedec.runtime.drafting.drafters.dflash.dflash_drafter import BlockPasses, DFlashDrafter
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.passes import compute, run_passes
from edgedec.runtime.sequences.row_stats import RowStats
from edgedec.runtime.sequences.rows import Rows
from tests.models import test_llama_mlp_bias as toys
from tests.parity.family_parity import SIZES, TOKENS, Logits, Toy, torch

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(not has_library(), reason="the kernel library is not built"),
]
CONTEXT, MASK, BLOCK, N_LAYERS = 400, 95, 7, 2
LAYERS = (1, 3)
SIZE, INNER, WIDTH, N_HEADS, N_KV = SIZES["hidden_size"], 48, 12, 4, 2
CONFIG: dict[str, Any] = {
    **SIZES, "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_act": "silu",
    "num_hidden_layers": N_LAYERS, "intermediate_size": INNER, "max_position_embeddings": CONTEXT,
    "block_size": BLOCK, "num_target_layers": 4, "attention_bias": False,
    "layer_types": ["full_attention"] * N_LAYERS,
    "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [n - 1 for n in LAYERS]},
}  # fmt: skip


BEFORE, AFTER = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"
SELECTOR, GROUP, N_CANDIDATES = "candidate_selector.", 8, 11
RANK, WINDOW = 6, 40
WINDOWS = {
    "layer_types": ["full_attention", "sliding_attention"], "sliding_window": WINDOW,
    "use_sliding_window": True,
}  # fmt: skip


class Plain(toys.TestParity):
    """Llama with room for texts."""

    SIZES = {**SIZES, "max_position_embeddings": CONTEXT}


class Oracle:
    """The drafter in torch. tensors: by their names in the publisher's file."""

    def __init__(self, target: Any) -> None:
        self.is_causal, self.is_spark, self.is_second = [False] * N_LAYERS, False, False
        torch.manual_seed(6)
        shapes: dict[str, tuple[int, ...]] = {"fc.weight": (SIZE, len(LAYERS) * SIZE)}
        norms = {"hidden_norm": SIZE, "norm": SIZE}
        for i in range(N_LAYERS):
            shapes |= {
                f"layers.{i}.self_attn.q_proj.weight": (N_HEADS * WIDTH, SIZE),
                f"layers.{i}.self_attn.k_proj.weight": (N_KV * WIDTH, SIZE),
                f"layers.{i}.self_attn.v_proj.weight": (N_KV * WIDTH, SIZE),
                f"layers.{i}.self_attn.o_proj.weight": (SIZE, N_HEADS * WIDTH),
                f"layers.{i}.mlp.gate_proj.weight": (INNER, SIZE),
                f"layers.{i}.mlp.up_proj.weight": (INNER, SIZE),
                f"layers.{i}.mlp.down_proj.weight": (SIZE, INNER),
            }
            norms |= {
                f"layers.{i}.input_layernorm": SIZE,
                f"layers.{i}.post_attention_layernorm": SIZE,
                f"layers.{i}.self_attn.q_norm": WIDTH,
                f"layers.{i}.self_attn.k_norm": WIDTH,
            }
        self.tensors = {
            name: torch.randn(shape) * 1.5 * shape[1] ** -0.5 for name, shape in shapes.items()
        } | {f"{name}.weight": 1 + 0.3 * torch.randn(n) for name, n in norms.items()}
        self.tensors["norm.weight"] *= 12  # so that it has favourites
        self.target = target

    def write(self, folder: Path, config: dict[str, Any] | None = None, **tensors: Any) -> Path:
        """Writes the folder with other tensors or keys; None leaves one out."""
        folder.mkdir()
        kept = {k: v for k, v in (self.tensors | tensors).items() if v is not None}
        save_file({k: v.contiguous() for k, v in kept.items()}, folder / "model.safetensors")
        keys = {k: v for k, v in (CONFIG | (config or {})).items() if v is not None}
        (folder / "config.json").write_text(json.dumps(keys))
        return folder

    def states(self, tokens: list[int]) -> dict[int, Logits]:
        """Returns the target's states behind the layers that are read, of every token."""
        with torch.inference_mode():
            found = self.target(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        return {layer: found[layer][0].numpy() for layer in LAYERS}

    def __call__(self, text: list[int], n_levels: int, start: int = 0) -> Logits:
        """Returns the logits of masks behind ``text``, which is read from ``start`` on."""
        states = {layer: rows[start:] for layer, rows in self.states(text[:-1]).items()}
        with torch.inference_mode():
            read = torch.tensor(np.concatenate([states[layer] for layer in LAYERS], axis=1))
            of_text = self.norm(self.linear(read, "fc"), "hidden_norm")
            masks = [MASK] * (n_levels - self.is_spark)
            x = self.target.model.embed_tokens(torch.tensor([text[-1], *masks]))
            for i in range(N_LAYERS):
                x = self.layer(x, of_text, i)
            self.rows = self.norm(x[-n_levels:], "norm")
            logits: Logits = self.target.lm_head(self.rows).numpy()
        return logits

    def chosen(self, logits: Logits, before: list[int]) -> Logits:
        """Returns ``logits`` of a block's rows behind the tokens ``before``, as these change them.

        DSpark's Markov head adds to all. DFlash 2's selector adds to some, by weights of the row,
        and leaves no others.
        """
        if self.is_spark:
            return logits + np.stack([self.after(token) for token in before])
        weights = self.rows @ self.tensors[f"{SELECTOR}hidden_projection.weight"].T
        scores = np.full_like(logits, -np.inf)
        for i, token in enumerate(before):
            first = self.tensors[f"{SELECTOR}predecessor_codebook"][token] * weights[i]
            ids = np.argsort(logits[i])[-N_CANDIDATES:]
            added = self.tensors[f"{SELECTOR}successor_codebook"][torch.tensor(ids.copy())] @ first
            scores[i, ids] = logits[i, ids] + added.numpy()
        return scores

    def convolved(self, x: Any, h: Any, name: str, side: int) -> Any:
        """Returns ``x``, of a block alone, mixed with the rows before by what ``h`` says."""
        base = self.tensors[f"{name}.base_kernel"][side]
        kernel = self.linear(h, f"{name}.kernel_projection").unflatten(-1, (2, 2, -1))[:, side]
        before = torch.cat([torch.zeros(1, SIZE), x[:-1]])
        return sum(
            rows * (base[tap] + kernel[:, tap].repeat_interleave(GROUP, -1))
            for tap, rows in enumerate((x, before))
        )

    def after(self, token: int) -> Logits:
        """Returns what DSpark's Markov head adds to the logits behind ``token``."""
        after, before = self.tensors[AFTER], self.tensors[BEFORE]
        added: Logits = (after @ before[token]).numpy()
        return added

    def layer(self, x: Any, of_text: Any, i: int) -> Any:
        prefix = f"layers.{i}"
        h, at = self.norm(x, f"{prefix}.input_layernorm"), f"{prefix}.self_attn"
        of_row = h
        if self.is_second:
            h = self.convolved(h, of_row, f"{prefix}.attention_conv", 0)
        seen = torch.cat([of_text, h])
        q = self.heads(self.linear(h, f"{at}.q_proj"), f"{at}.q_norm")
        k = self.heads(self.linear(seen, f"{at}.k_proj"), f"{at}.k_norm")
        v = self.linear(seen, f"{at}.v_proj").unflatten(-1, (-1, WIDTH)).transpose(0, 1)
        n = len(seen)
        kept_k, kept_v = (
            y.half().float().repeat_interleave(N_HEADS // N_KV, 0)  # as a KV cache holds them
            for y in (rotated(k, range(n)), v)
        )
        attended = torch.nn.functional.scaled_dot_product_attention(
            rotated(q, range(n - len(x), n)),
            kept_k,
            kept_v,
            torch.ones(len(x), n).tril(n - len(x)).bool() if self.is_causal[i] else None,
        )
        attended = self.linear(attended.transpose(0, 1).flatten(1), f"{at}.o_proj")
        if self.is_second:
            attended = self.convolved(attended, of_row, f"{prefix}.attention_conv", 1)
        x = x + attended
        y = of_row = self.norm(x, f"{prefix}.post_attention_layernorm")
        if self.is_second:
            y = self.convolved(y, of_row, f"{prefix}.mlp_conv", 0)
        gate = torch.nn.functional.silu(self.linear(y, f"{prefix}.mlp.gate_proj"))
        up = self.linear(y, f"{prefix}.mlp.up_proj")
        y = self.linear(gate * up, f"{prefix}.mlp.down_proj")
        return x + (self.convolved(y, of_row, f"{prefix}.mlp_conv", 1) if self.is_second else y)

    def heads(self, x: Any, norm: str) -> Any:
        return self.norm(x.unflatten(-1, (-1, WIDTH)), norm).transpose(0, 1)

    def linear(self, x: Any, name: str) -> Any:
        return x @ self.tensors[f"{name}.weight"].T

    def norm(self, x: Any, name: str) -> Any:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + CONFIG["rms_norm_eps"])
        return x * scale * self.tensors[f"{name}.weight"]


def rotated(x: Any, places: range) -> Any:
    """Returns heads [heads, T, width], their halves rotated by ``places``."""
    half = x.shape[-1] // 2
    rates = CONFIG["rope_theta"] ** (-torch.arange(half) / half)
    angles = torch.tensor(places)[:, None] * rates
    a, b = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return Plain.draw(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def oracle(toy: Toy) -> Oracle:
    return Oracle(toy.model)


@contextmanager
def opened(toy: Toy, oracle: Oracle, folder: Path, **config: Any) -> Iterator[Engine]:
    """Exports and opens the drafter with float weights everywhere, and another ``config``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attached, "_SCHEME", "keep")
        head = oracle.write(folder / "head", config)
        export(ExportConfig(str(toy.folder), folder / "b", head=head))
    entry = read_manifest(folder / "b").head
    assert entry is not None
    assert (entry.kind, entry.hidden_layers) == (DFLASH, LAYERS)
    with load(folder / "b", EngineOptions(threads=1)) as engine:
        yield engine


@pytest.fixture(scope="module")
def engine(toy: Toy, oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with opened(toy, oracle, tmp_path_factory.mktemp("dflash")) as engine:
        yield engine


def drafter_of(engine: Engine) -> DFlashDrafter:
    """Returns one that has read nothing."""
    role = engine.loaded.parts.drafters.heads[Need.DFLASH]()
    role.forget()
    return DFlashDrafter(role)


@pytest.fixture
def drafter(engine: Engine) -> DFlashDrafter:
    return drafter_of(engine)


def levels(passes: BlockPasses, text: list[int], n_levels: int) -> list[Logits]:
    """Returns the logits of the first mask token behind ``text``, and of the others."""

    def checked(rows: Rows) -> Logits:
        expected, found = RowStats.of(rows.logits), rows.stats
        assert found.top_ids.tolist() == expected.top_ids.tolist()
        np.testing.assert_allclose(found.log_sum_exp, expected.log_sum_exp, rtol=1e-5)
        row: Logits = rows.logits[0]
        return row

    passes.n_levels = n_levels
    assert passes.can_read(text)
    passes.align(text)
    assert passes.room(text) >= n_levels
    found = [checked(run_passes(passes.feed(text, with_logits=True)))]
    for row in range(-1, n_levels - 2):
        found.append(checked(run_passes(passes.grow([0], [row], with_logits=True))))
    return found


def check(passes: BlockPasses, oracle: Oracle, text: list[int], n_levels: int) -> None:
    found = levels(passes, text, n_levels)
    start = len(text) - 1 - passes.sequence.n_tokens
    assert list(passes.sequence.tokens) == text[start:-1]
    expected = oracle(text, n_levels, start)
    if oracle.is_spark or oracle.is_second:
        # `levels` asks what follows token 0 in all places but the first.
        expected = oracle.chosen(expected, [text[-1], *[0] * (n_levels - 1)])
    np.testing.assert_allclose(
        found, expected, atol=1e-4 * float(expected[expected > -np.inf].std())
    )


def follow(passes: BlockPasses, oracle: Oracle, text: list[int], more: list[int]) -> list[int]:
    """Returns ``text`` and ``more``; the drafter learns all hidden states but the last."""
    n_known, text = len(text) - 1, [*text, *more]
    states = oracle.states(text[:-1])
    passes.learn(n_known, {layer: rows[n_known:] for layer, rows in states.items()})
    return text


def test_one_pass_says_what_torch_does(oracle: Oracle, drafter: DFlashDrafter) -> None:
    """After a prompt, then after texts that go on from it, whose rows are kept."""
    text = list(TOKENS)
    passes = drafter.open(DraftPrompt(text[:-1], oracle.states(text[:-1])), text[:-1])
    for n_levels, more in ((BLOCK - 1, [5, 6]), (2, [9]), (4, [7, 7, 1])):
        check(passes, oracle, text, n_levels)
        assert passes.sequence.n_tokens == len(text) - 1
        text = follow(passes, oracle, text, more)
    passes.end(text)


@pytest.mark.parametrize(
    ("config", "is_causal"),
    [
        (WINDOWS, [False, True]),
        (WINDOWS | {"is_causal": False}, [False, False]),
        (
            {"dflash_config": CONFIG["dflash_config"] | {"causal": True, "block_size": BLOCK}},
            [True] * 2,
        ),
    ],
)
def test_layers_with_windows_are_causal_unless_the_publisher_says_otherwise(
    toy: Toy, oracle: Oracle, tmp_path: Path, config: dict[str, Any], is_causal: list[bool]
) -> None:
    """They read no more than fits into a window: the end of a text, again and again."""
    with opened(toy, oracle, tmp_path, **config) as engine, pytest.MonkeyPatch.context() as patch:
        patch.setattr(oracle, "is_causal", is_causal)
        text, drafter = list(TOKENS) * 3, drafter_of(engine)
        passes = drafter.open(DraftPrompt(text[:-1], oracle.states(text[:-1])), text[:-1])
        for _ in range(8):
            check(passes, oracle, text, BLOCK - 1)
            if "sliding_window" in config:
                assert WINDOW // 2 <= passes.sequence.n_tokens <= WINDOW - BLOCK
            text = follow(passes, oracle, text, [3, 1, 4])
        passes.end(text)
        check_texts(engine, "dflash", 0.8)


DEEPSEEKS = {
    "architectures": ["Qwen3DSparkModel"], "dflash_config": None, "markov_rank": RANK,
    "markov_head_type": "vanilla", **CONFIG["dflash_config"],
}  # fmt: skip
SPECFORGES = {
    "architectures": ["DSparkDraftModel"],
    "dflash_config": CONFIG["dflash_config"]
    | {"projector_type": "dspark", "markov_rank": RANK, "enable_confidence_head": True},
}


@pytest.fixture
def spark(toy: Toy) -> Oracle:
    """A drafter of DSpark. Its own embeddings are those of the target."""
    oracle = Oracle(toy.model)
    oracle.is_spark = True
    oracle.tensors |= {
        name: torch.randn(SIZES["vocab_size"], RANK).half().float() for name in (BEFORE, AFTER)
    } | {
        "confidence_head.proj.weight": torch.randn(1, SIZE + RANK),
        "embed_tokens.weight": toy.model.model.embed_tokens.weight.data,
    }
    return oracle


@pytest.mark.parametrize("config", [DEEPSEEKS, SPECFORGES])
def test_a_drafter_of_dspark_says_what_torch_does(
    toy: Toy, spark: Oracle, tmp_path: Path, config: dict[str, Any]
) -> None:
    with opened(toy, spark, tmp_path, **config) as engine:
        text, drafter = list(TOKENS), drafter_of(engine)
        passes = drafter.open(DraftPrompt(text[:-1], spark.states(text[:-1])), text[:-1])
        for n_levels, more in ((BLOCK, [5, 6]), (1, [9]), (4, [7, 7, 1])):
            check(passes, spark, text, n_levels)
            text = follow(passes, spark, text, more)
        passes.end(text)
        for temperature in (0.0, 0.8):
            for method in ("dflash", "auto"):
                check_texts(engine, method, temperature)


@pytest.mark.parametrize("kind", ["spark", "second"])
def test_the_tokens_that_are_drafted_fit_together_as_those_of_torch(
    toy: Toy, tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    oracle: Oracle = request.getfixturevalue(kind)
    text, chosen = list(TOKENS), list(TOKENS[-1:])
    logits = oracle(text, 3)
    for i in range(3):
        before = [*chosen, *[0] * (2 - i)]
        chosen.append(int(oracle.chosen(logits, before)[i].argmax()))
    with opened(toy, oracle, tmp_path, **(DEEPSEEKS if kind == "spark" else SECOND)) as engine:
        drafting = drafter_of(engine).begin(DraftPrompt(text[:-1], oracle.states(text[:-1])))
        context = DraftContext(text, len(text) - 1, SamplingConfig(), Noise(0))
        tree = run_passes(drafting.propose(context, Budget(n_nodes=300, depth=3)))
        found, last = list(TOKENS[-1:]), -1
        while children := tree.children(last):
            last = children[0]
            found.append(tree.nodes[last].token)
        assert found == chosen[: len(found)]
        assert len(found) > 1
        drafting.end(text)


SECOND = {
    "architectures": ["DFlash2DraftModel"], "is_causal": False,
    "dflash_config": CONFIG["dflash_config"]
    | {
        "conv_group_size": GROUP, "conv_kernel_size": 2, "selector_rank": RANK,
        "selector_top_k": N_CANDIDATES,
    },
}  # fmt: skip


@pytest.fixture
def second(toy: Toy) -> Oracle:
    """A drafter of DFlash 2."""
    oracle, vocab = Oracle(toy.model), SIZES["vocab_size"]
    oracle.is_second = True
    shapes = {
        "predecessor_codebook": (vocab, RANK), "successor_codebook": (vocab, RANK),
        "hidden_projection.weight": (RANK, SIZE),
    }  # fmt: skip
    oracle.tensors |= {
        f"{SELECTOR}{name}": (torch.randn(shape) / 4).half().float()
        for name, shape in shapes.items()
    }
    for i, name in itertools.product(range(N_LAYERS), ("attention_conv", "mlp_conv")):
        n_scales = 4 * SIZE // GROUP
        oracle.tensors |= {
            f"layers.{i}.{name}.base_kernel": torch.randn(2, 2, SIZE) / 2,
            f"layers.{i}.{name}.kernel_projection.weight": torch.randn(n_scales, SIZE) / SIZE,
        }
    return oracle


@pytest.mark.parametrize("config", [{}, WINDOWS])
def test_a_drafter_of_dflash_2_says_what_torch_does(
    toy: Toy, second: Oracle, tmp_path: Path, config: dict[str, Any]
) -> None:
    with opened(toy, second, tmp_path, **SECOND, **config) as engine:
        text, drafter = list(TOKENS), drafter_of(engine)
        passes = drafter.open(DraftPrompt(text[:-1], second.states(text[:-1])), text[:-1])
        for n_levels, more in ((BLOCK - 1, [5, 6]), (1, [9]), (4, [7, 7, 1])):
            check(passes, second, text, n_levels)
            text = follow(passes, second, text, more)
        passes.end(text)
        for temperature in (0.0, 0.8):
            for method in ("dflash", "auto"):
                check_texts(engine, method, temperature)


def test_rows_of_other_texts_do_not_reach_a_block_of_dflash_2(
    toy: Toy, second: Oracle, tmp_path: Path
) -> None:
    """Two texts share a pass. The second is only a block."""
    with opened(toy, second, tmp_path, **SECOND) as engine:
        drafter, found = drafter_of(engine), []
        texts = [list(TOKENS), [*TOKENS[:9], 4, 4, 8]]
        both = [
            drafter.open(DraftPrompt(text[:-1], second.states(text[:-1])), text[:-1])
            for text in texts
        ]
        for passes, text in zip(both, texts, strict=True):
            levels(passes, text, 3)  # its tokens are read
            passes.align(text)
        steps = [
            passes.feed(text, with_logits=True) for passes, text in zip(both, texts, strict=True)
        ]
        wanted = [next(step) for step in steps]
        for step, rows in zip(steps, compute(wanted), strict=True):
            with pytest.raises(StopIteration) as done:
                step.send(rows)
            found.append(done.value.value.logits[0])
        for logits, passes, text in zip(found, both, texts, strict=True):
            expected = second.chosen(second(text, 3), [text[-1], 0, 0])[0]
            np.testing.assert_allclose(logits, expected, atol=1e-3)
            passes.end(text)


def test_the_likeliest_tokens_get_what_is_added() -> None:
    """Of a row that is longer than `N_CHANGED`, these alone."""
    generator = np.random.default_rng(3)
    logits = generator.standard_normal((2, 2 * N_CHANGED)).astype(np.float32)
    pairs = TokenPairs(*generator.standard_normal((2, 2 * N_CHANGED, 3)).astype(np.float16))
    found, ids = pairs.added(logits, [7, 9])
    for row, changed, of_row, token in zip(logits, found, ids, [7, 9], strict=True):
        likely = row >= np.sort(row)[-N_CHANGED]
        assert of_row.tolist() == np.flatnonzero(likely).tolist()
        added = pairs.after.astype(np.float32) @ pairs.before[token].astype(np.float32)
        np.testing.assert_allclose(changed, np.where(likely, row + added, row), rtol=1e-5)


@pytest.mark.parametrize(
    ("config", "tensors", "expected"),
    [
        ({"markov_head_type": "rnn"}, {}, "markov_head_type"),
        ({"markov_rank": RANK + 1}, {}, "markov_w1.weight is .*, expected"),
        ({}, {AFTER: None}, "markov_w2.weight is nothing, expected"),
        ({"vocab_size": 96}, {}, "of another model: its vocab_size is 96, the model's 97"),
        ({}, {"embed_tokens.weight": torch.randn(97, 40)}, "its embeddings differ from"),
    ],
)
def test_damaged_drafters_of_dspark_are_refused(
    toy: Toy,
    spark: Oracle,
    tmp_path: Path,
    config: dict[str, Any],
    tensors: dict[str, Any],
    expected: str,
) -> None:
    folder = spark.write(tmp_path / "head", DEEPSEEKS | config, **tensors)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=expected):
        export(ExportConfig(str(toy.folder), tmp_path / "b", head=folder))
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("config", "tensors", "expected"),
    [
        ({"conv_kernel_size": 3}, {}, "conv_kernel_size is 3, expected"),
        ({"conv_group_size": 7}, {}, "conv_group is 7, expected a divisor of 40"),
        ({"conv_group_size": 4}, {}, r"kernel_projection.weight is F32\[20, 40\], expected"),
        ({"selector_top_k": 0}, {}, "selector_top_k is 0, expected"),
        ({"selector_rank": RANK + 1}, {}, "predecessor_codebook is .*, expected"),
        ({"output_multiplier": 0.2}, {}, "has the key 'output_multiplier'"),
        ({}, {"layers.1.mlp_conv.base_kernel": None}, "mlp_conv.base_kernel is nothing, expected"),
        (
            {},
            {"candidate_selector.b": torch.ones(3)},
            "nothing reads the tensor candidate_selector",
        ),
    ],
)
def test_damaged_drafters_of_dflash_2_are_refused(
    toy: Toy,
    second: Oracle,
    tmp_path: Path,
    config: dict[str, Any],
    tensors: dict[str, Any],
    expected: str,
) -> None:
    options = SECOND["dflash_config"] | config
    folder = second.write(tmp_path / "head", SECOND | {"dflash_config": options}, **tensors)
    with pytest.raises((CheckpointError, UnsupportedModelError, ConfigError), match=expected):
        export(ExportConfig(str(toy.folder), tmp_path / "b", head=folder))
    assert not (tmp_path / "b").exists()


def test_a_bundle_with_a_cut_markov_head_is_refused(
    toy: Toy, spark: Oracle, tmp_path: Path
) -> None:
    with opened(toy, spark, tmp_path, **DEEPSEEKS):
        pass
    (path,) = (tmp_path / "b").rglob("token_pairs.bin")
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(BundleError, match=r"token_pairs\.bin"):
        load(tmp_path / "b").close()


def test_the_drafted_tokens_are_those_of_torch(oracle: Oracle, drafter: DFlashDrafter) -> None:
    text = list(TOKENS)
    drafting = drafter.begin(DraftPrompt(text[:-1], oracle.states(text[:-1])))
    context = DraftContext(text, len(text) - 1, SamplingConfig(), Noise(0))
    tree = run_passes(drafting.propose(context, Budget(n_nodes=300, depth=3)))
    likeliest = oracle(text, 3).argmax(axis=1).tolist()
    at = -1
    for token in likeliest:
        children = tree.children(at)
        if not children:
            break
        at = children[0]
        assert tree.nodes[at].token == token
    assert at >= 0
    assert drafting.passes.cost.n_fed == len(text) + 3
    drafting.end(text)


def check_texts(engine: Engine, method: str, temperature: float) -> None:
    for seed, prompt in enumerate(["A", "ABCABCDEFABCABCDEF", "ABCABCDEFABCABCDEFGH", "#!" * 188]):
        request = GenerationConfig(
            max_new_tokens=24, ignore_eos=True, seed=seed,
            sampling=SamplingConfig(temperature=temperature),
        )  # fmt: skip
        plain = engine.generate(prompt, dataclasses.replace(request, method="plain"))
        found = engine.generate(prompt, dataclasses.replace(request, method=method))
        assert found.token_ids == plain.token_ids
        assert not found.stats.failed_drafters
        assert method == "auto" or found.stats.n_proposed


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("method", ["dflash", "auto", "lookup+dflash"])
def test_text_stays_that_of_plain_decoding(engine: Engine, method: str, temperature: float) -> None:
    """Of a prompt that goes on from the one before it, and of one that fills the context, too."""
    check_texts(engine, method, temperature)


OPTIONS = CONFIG["dflash_config"]


@pytest.mark.parametrize(
    ("config", "tensors", "expected"),
    [
        ({"architectures": ["DraftModel"]}, {}, "no draft head that is read, but DraftModel"),
        (
            {"architectures": ["DominoDraftModel"]},
            {},
            "DominoDraftModel corrects .* Leave out --head",
        ),
        (
            {"architectures": ["Gemma4AssistantForCausalLM"]},
            {},
            "keys and values that Gemma 4 itself",
        ),
        ({"architectures": ["Gemma4DSparkModel"]}, {}, "only Qwen3's are read"),
        ({"hidden_size": 44}, {}, "of another model: its hidden_size is 44, the model's 40"),
        ({"vocab_size": 96}, {}, "of another model: its vocab_size is 96, the model's 97"),
        ({"num_target_layers": 5}, {}, "of another model: its num_target_layers is 5, the model"),
        ({"attention_bias": True}, {}, "without biases are read"),
        ({"block_size": 1}, {}, "block_size is 1, expected"),
        ({"dflash_config": OPTIONS | {"mask_token_id": 97}}, {}, "mask_token_id is 97, expected"),
        ({"dflash_config": OPTIONS | {"target_layer_ids": [2, 0]}}, {}, "rising layers"),
        ({"dflash_config": OPTIONS | {"target_layer_ids": [0, 3]}}, {}, "target_layer_ids"),
        ({"dflash_config": OPTIONS | {"projector_type": "dspark"}}, {}, "only 'dflash' is"),
        ({"dflash_config": OPTIONS | {"shift_label": True}}, {}, "has the key 'shift_label'"),
        ({"dflash_config": OPTIONS | {"conv_group_size": 8}}, {}, "has the key 'conv_group_size'"),
        ({}, {"fc.weight": lambda t: None}, "fc.weight is nothing, expected"),
        ({}, {"fc.weight": lambda t: t[:, :-1]}, r"fc.weight is F32\[40, 79\], expected"),
        ({}, {"norm.weight": lambda t: t * float("nan")}, "norm.weight holds numbers that are no"),
        ({}, {"embed_tokens.weight": lambda t: torch.randn(97, 40)}, "its embeddings differ from"),
        ({}, {"markov_head.w": lambda t: torch.ones(40)}, "nothing reads the tensor markov_head"),
    ],
)
def test_drafters_of_other_models_and_damaged_ones_are_refused(
    toy: Toy,
    oracle: Oracle,
    tmp_path: Path,
    config: dict[str, Any],
    tensors: dict[str, Callable[[Any], Any]],
    expected: str,
) -> None:
    changed = {name: change(oracle.tensors.get(name)) for name, change in tensors.items()}
    folder = oracle.write(tmp_path / "head", config, **changed)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=expected):
        export(ExportConfig(str(toy.folder), tmp_path / "b", head=folder))
    assert not (tmp_path / "b").exists()


def test_a_cut_file_is_refused(toy: Toy, oracle: Oracle, tmp_path: Path) -> None:
    path = oracle.write(tmp_path / "head") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        export(ExportConfig(str(toy.folder), tmp_path / "b", head=path.parent))
