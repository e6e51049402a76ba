"""Attention inside ONNX Runtime, over a KV cache of either format."""

from __future__ import annotations

import numpy as np
import pytest

from ..doors import attention_op
from .op_node import Node, refuses

LAYER, ROWS, PAST, CAPACITY = 1, 5, 20, 48
LEFT = "sequences have not as many rows and nodes as qkv and parents"


def make_node(rng, k_cache, v_cache, offsets=None, **attributes):
    """Layer 1 of 3, 4 heads over 2 KV heads of size 16; a small tree after a prefix."""
    feeds = {
        "qkv": rng.standard_normal((1, ROWS, 8 * 16)).astype(np.float32),
        "position_ids": np.array([[20, 21, 21, 22, 20]], np.int64),
        "parents": np.array([[-1, 0, 0, 2, -1]], np.int64),
        "sequences": np.array([[PAST, ROWS, ROWS, 0, CAPACITY // 16]], np.int64),
        "k_cache": k_cache,
        "v_cache": v_cache,
    }
    angles = np.outer(np.arange(64), 0.7 ** np.arange(8)).astype(np.float32)
    stored = {"cos": np.cos(angles), "sin": np.sin(angles)}
    names = ["qkv", "position_ids", "parents", "sequences", "cos", "sin", "k_cache", "v_cache"]
    attributes |= {"layer": LAYER, "n_heads": 4, "n_kv_heads": 2, "head_size": 16}
    if offsets is not None:
        names += ["", "", "", "", "key_offsets"]
        stored["key_offsets"] = offsets
    node = Node("Attention", names, feeds, stored, attributes)
    node.keywords = {"key_offsets": offsets, "kv_format": attributes.get("kv_format", 0)}
    node.kv_after = (feeds["k_cache"].copy(), feeds["v_cache"].copy())
    node.expected = attention_op.attention(
        feeds["qkv"][0], feeds["position_ids"][0], feeds["parents"][0], PAST,
        (stored["cos"], stored["sin"]), (node.kv_after[0][LAYER], node.kv_after[1][LAYER]),
        **node.keywords,
    )[None]  # fmt: skip
    return node


@pytest.fixture
def attention_node(rng):
    shapes = (3, 2, CAPACITY // 16, 16, 16), (3, 2, CAPACITY, 16)
    return make_node(rng, *(rng.standard_normal(shape).astype(np.float16) for shape in shapes))


def code_caches(rng, kv_format):
    """Returns keys and values of random bytes; those below 0x3c make a scale below 1."""
    sizes = attention_op.kv_block_nbytes(16, kv_format)
    return [rng.integers(0, 0x3C, (3, 2, CAPACITY // 16, n), np.uint8) for n in sizes]


@pytest.fixture
def int8_node(rng):
    """A KV cache of random codes."""
    return make_node(rng, *code_caches(rng, 1), kv_format=1)


@pytest.fixture
def k5v4_node(rng):
    """The same with keys of 5 bits and values of 4."""
    return make_node(rng, *code_caches(rng, 2), kv_format=2)


@pytest.fixture
def offset_node(rng):
    """Offsets of keys behind four absent inputs."""
    caches = code_caches(rng, 2)
    offsets = rng.standard_normal((2, 16)).astype(np.float32)
    return make_node(rng, *caches, offsets, kv_format=2)


@pytest.fixture(params=["attention", "int8", "k5v4"])
def node(request):
    return request.getfixturevalue(f"{request.param}_node")


def test_sinks(attention_node, same_bits):
    """Behind an absent input of layer gates; of another size they are refused."""
    node = attention_node
    plain = node.run()
    node.names += ["", "sinks"]
    node.constants["sinks"] = np.full(4, -1e30, np.float32)
    np.testing.assert_allclose(node.run(), plain, atol=1e-6)
    node.constants["sinks"] = np.full(4, 1e3, np.float32)
    assert np.abs(node.run()).max() < 1e-30
    node.constants["sinks"] = np.zeros(5, np.float32)
    refuses(node, "sinks has shape [5], expected [4]")


def test_sources_and_biases_by_distance(attention_node, same_bits):
    """Behind absent sinks; queries alone see the source, where the node says so."""
    node, bias = attention_node, np.linspace(-2, 2, 28, dtype=np.float32).reshape(7, 4)
    cut = {"source": 18, "distance_bias": bias}
    node.names += ["", "", "sources", "distance_bias"]
    node.feeds["sources"], node.constants["distance_bias"] = np.array([18], np.int64), bias
    feeds, rope = node.feeds, (node.constants["cos"], node.constants["sin"])
    keys, values = (cache.copy()[LAYER] for cache in (feeds["k_cache"], feeds["v_cache"]))
    pass_of = feeds["position_ids"][0], feeds["parents"][0], PAST, rope, (keys, values)
    expected = attention_op.attention(feeds["qkv"][0], *pass_of, **cut)[None]
    assert not same_bits(expected, node.expected)
    assert same_bits(node.run(), expected)
    for sources, message in (
        ([21], "a sequence has a source of 21 tokens, expected 0 to 20"),
        ([-1], "a sequence has a source of -1 tokens"),
        ([], "sources are 0, expected one for each sequence"),
    ):
        feeds["sources"] = np.array(sources, np.int64)
        refuses(node, message)
    feeds["sources"] = np.array([18], np.int64)
    node.constants["distance_bias"] = bias.reshape(14, 2)
    refuses(node, "distance_bias has shape [14, 2], expected [any, 4]")
    node.constants["distance_bias"] = bias
    node.attributes["sees_source"] = 1
    refuses(node, "sees_source needs shares_kv, which is 0")
    node.attributes["shares_kv"] = 1
    feeds["qkv"] = np.ascontiguousarray(feeds["qkv"][..., : 4 * 16])
    seen = {"source": 18, "sees_source": True, "shares_kv": True, "distance_bias": bias}
    assert same_bits(node.run(), attention_op.attention(feeds["qkv"][0], *pass_of, **seen)[None])


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("are_constant", [True, False], ids=["constants", "inputs"])
def test_equals_the_kernel(node, n_threads, are_constant, same_bits):
    if not are_constant:
        node.feed_constants()
    assert np.isfinite(node.expected).all()
    assert same_bits(node.run(n_threads), node.expected)


def test_no_rows(node):
    for name in ("qkv", "position_ids", "parents"):
        node.feeds[name] = node.feeds[name][:, :0].copy()
    node.feeds["sequences"][0, 1:3] = 0
    assert node.run().shape[:2] == (1, 0)


def test_scoring_is_stated_by_attributes(node, same_bits):
    attributes = {"scale": 0.5, "softcap": 2.0, "window": 4}
    node.attributes.update(attributes)
    keys, values = (cache.copy()[LAYER] for cache in (node.feeds["k_cache"], node.feeds["v_cache"]))
    feeds, rope = node.feeds, (node.constants["cos"], node.constants["sin"])
    expected = attention_op.attention(
        feeds["qkv"][0], feeds["position_ids"][0], feeds["parents"][0], PAST, rope, (keys, values),
        scoring=attention_op.Scoring(**attributes), **node.keywords,
    )[None]  # fmt: skip
    assert not same_bits(expected, node.expected)
    assert same_bits(node.run(), expected)


def test_seeing_all_is_stated_by_an_attribute(node, same_bits):
    node.attributes["sees_all"] = 1
    keys, values = (cache.copy()[LAYER] for cache in (node.feeds["k_cache"], node.feeds["v_cache"]))
    feeds, rope = node.feeds, (node.constants["cos"], node.constants["sin"])
    expected = attention_op.attention(
        feeds["qkv"][0], feeds["position_ids"][0], feeds["parents"][0], PAST, rope, (keys, values),
        sees_all=True, **node.keywords,
    )[None]  # fmt: skip
    assert not same_bits(expected, node.expected)
    assert same_bits(node.run(), expected)
    node.attributes["window"] = 4
    keys, values = (cache.copy()[LAYER] for cache in (node.feeds["k_cache"], node.feeds["v_cache"]))
    expected = attention_op.attention(
        feeds["qkv"][0], feeds["position_ids"][0], feeds["parents"][0], PAST, rope, (keys, values),
        scoring=attention_op.Scoring(window=4), sees_all=True, **node.keywords,
    )[None]  # fmt: skip
    assert same_bits(node.run(), expected)


def test_a_window_needs_no_more_than_it_sees(node, same_bits):
    """20 tokens before 29 rows take 48; with a window of 4, 3 of them do."""
    feeds, parents = node.feeds, np.full((1, 45), -1)
    whole = [cache.copy()[LAYER] for cache in (feeds["k_cache"], feeds["v_cache"])]
    feeds["parents"] = parents
    feeds["sequences"][0, 2] = 45
    node.attributes["window"] = 4
    expected = attention_op.attention(
        feeds["qkv"][0], feeds["position_ids"][0], parents[0], PAST,
        (node.constants["cos"], node.constants["sin"]), whole,
        scoring=attention_op.Scoring(window=4), **node.keywords,
    )[None]  # fmt: skip
    assert same_bits(node.run(), expected)
    node.attributes["window"] = 5
    refuses(node, "20 committed tokens + 45 rows do not fit the KV cache of 48 rows")


@pytest.mark.parametrize("past", [2**31 + 1, 2**63 - 1])
def test_no_window_reaches_where_positions_overflow(node, past):
    node.attributes["window"] = 4
    node.feeds["sequences"][0, 0] = past
    refuses(node, f"a sequence has {past} committed tokens, expected 0 to 2147483648")


@pytest.mark.parametrize(("name", "value"), [("scale", -1.5), ("softcap", -2.0), ("window", -1)])
def test_scoring_that_makes_no_sense(attention_node, name, value):
    attention_node.attributes[name] = value
    refuses(attention_node, f"attribute {name} is {value:g}, expected 0 or more")


@pytest.mark.parametrize("n_threads", [1, 2])
def test_kv_cache_is_written_in_place(node, n_threads):
    feeds, after = node.feeds, node.kv_after
    assert not np.array_equal(feeds["v_cache"], after[1])
    node.run(n_threads)
    assert np.array_equal(feeds["k_cache"], after[0])
    assert np.array_equal(feeds["v_cache"], after[1])


def test_growing_tree(node, same_bits):
    """The first two nodes in one run, the others in the next: as many parents, fewer rows."""
    feeds, parents = node.feeds, node.feeds["parents"]
    whole = {name: feeds[name] for name in ("qkv", "position_ids")}
    parts = []
    for start, stop in ((0, 2), (2, ROWS)):
        feeds |= {name: value[:, start:stop].copy() for name, value in whole.items()}
        feeds["parents"] = parents[:, :stop].copy()
        feeds["sequences"][0, 1:3] = stop - start, stop
        parts.append(node.run())
    assert same_bits(np.concatenate(parts, axis=1), node.expected)
    feeds["parents"] = np.full((1, 29), -1)
    feeds["sequences"][0, 2] = 29
    refuses(node, "20 committed tokens + 29 rows do not fit the KV cache of 48 rows")


@pytest.mark.parametrize("order", [(2, 0, 1), (1, 2, 0)])
def test_panels_in_any_order(node, order, same_bits):
    """A text whose panels do not follow one another; one of them moved where another was."""
    feeds, after = node.feeds, node.kv_after
    panels = {}
    for name in ("k_cache", "v_cache"):
        by_panel = (3, 2, CAPACITY // 16, -1)
        panels[name] = feeds[name].reshape(by_panel)[:, :, np.argsort(order)]
        feeds[name] = panels[name].reshape(feeds[name].shape).copy()
    counts = [[PAST, ROWS, ROWS], [-1, 0, 0], [-1, 0, 0]]
    feeds["sequences"] = np.array([[*c, p, 1] for c, p in zip(counts, order, strict=True)])
    assert same_bits(node.run(2), node.expected)
    for name, expected in zip(("k_cache", "v_cache"), after, strict=True):
        found = feeds[name].reshape(by_panel)[:, :, order].reshape(expected.shape)
        assert np.array_equal(found, expected)


def test_texts_that_begin_alike_read_the_same_panels(rng, same_bits):
    """A chunk and more in common, given as one place; then each has a place of its own."""
    heads, common, own = 2, 17, 2
    shape = (1, heads, common + 3 * own, 16, 16)
    k, v = (rng.standard_normal(shape).astype(np.float16) for _ in "kv")
    rows = np.array([1, 3, 2])
    angles = np.outer(np.arange(300), 0.7 ** np.arange(8)).astype(np.float32)
    feeds = {
        "qkv": rng.standard_normal((1, rows.sum(), 8 * 16)).astype(np.float32),
        "position_ids": np.concatenate([273 + np.arange(n) for n in rows])[None],
        "parents": np.concatenate([np.arange(n) - 1 for n in rows])[None],
        "k_cache": k, "v_cache": v.reshape(1, heads, -1, 16),
    }  # fmt: skip
    stated = [
        row
        for i, n in enumerate(rows)
        for row in ([273, n, n, 0, common], [-1, 0, 0, common + own * i, own])
    ]
    attributes = {"layer": 0, "n_heads": 4, "n_kv_heads": 2, "head_size": 16}
    names = ["qkv", "position_ids", "parents", "sequences", "cos", "sin", "k_cache", "v_cache"]
    stored = {"cos": np.cos(angles), "sin": np.sin(angles)}
    expected, start = [], 0
    for i, n in enumerate(rows):
        part = slice(start, start + n)
        alone = {name: feeds[name][:, part].copy() for name in ("qkv", "position_ids", "parents")}
        its = [*range(common), *range(common + own * i, common + own * (i + 1))]
        alone["k_cache"] = k[:, :, its].copy()
        alone["v_cache"] = v[:, :, its].reshape(1, heads, -1, 16).copy()
        alone["sequences"] = np.array([[273, n, n, 0, common + own]])
        expected.append(Node("Attention", names, alone, stored, attributes).run())
        start += n
    feeds["sequences"] = np.array(stated)
    for n_threads in (1, 2):
        found = Node("Attention", names, feeds, stored, attributes).run(n_threads)
        assert same_bits(found, np.concatenate(expected, axis=1))


@pytest.mark.parametrize("are_constant", [True, False], ids=["constants", "inputs"])
def test_offsets_equal_the_kernel(offset_node, are_constant, same_bits):
    if not are_constant:
        offset_node.feed_constants()
    assert same_bits(offset_node.run(2), offset_node.expected)


def test_offsets_that_do_not_fit(offset_node):
    """Others of their size, and rows elsewhere than in their place in the text."""
    node = offset_node
    node.feeds["position_ids"][0, 3] = 23
    refuses(
        node, "position_ids[3] is 23, expected 22, its place in the text: key_offsets are given"
    )
    node.feeds["position_ids"][0, 3] = 22
    node.constants["key_offsets"] = np.zeros((2, 8), np.float32)
    refuses(node, "key_offsets has shape [2, 8], expected [2, 16]")
    node.constants["key_offsets"] = np.zeros((2, 16), np.float32)
    node.names[10] = "sources"
    node.feeds["sources"] = np.array([0], np.int64)
    refuses(node, "key_offsets come with sources, expected one of them")


def test_more_panels_bring_no_rows(node):
    node.feeds["sequences"] = np.array([[PAST, ROWS, ROWS, 0, 2], [-1, 1, 1, 2, 1]])
    refuses(node, "more panels of a sequence come with 1 rows and 1 nodes, expected 0")


def test_sequences_in_one_run(node, same_bits):
    """Each writes and reads its own panels, and has the rows that it has alone."""
    feeds, nodes = node.feeds, (ROWS, 2, 3)
    caches = {name: feeds[name] for name in ("k_cache", "v_cache")}
    panels, expected, after = CAPACITY // 16, [], {name: [] for name in caches}
    for i, n in enumerate(nodes):
        alone = Node(node.op, node.names, dict(feeds), dict(node.constants), dict(node.attributes))
        alone.feeds |= {name: np.roll(cache, i, 0) for name, cache in caches.items()}
        alone.feeds |= {k: feeds[k][:, :n].copy() for k in ("qkv", "position_ids", "parents")}
        alone.feeds["sequences"] = np.array([[PAST - i, n, n, 0, panels]])
        before = {name: alone.feeds[name].copy() for name in caches}
        expected.append(alone.run())
        for name in caches:
            after[name].append((before[name], alone.feeds[name]))
    feeds |= {
        name: np.concatenate([before for before, _ in after[name]], axis=2) for name in caches
    }
    for name in ("qkv", "position_ids", "parents"):
        feeds[name] = np.concatenate([feeds[name][:, :n] for n in nodes], axis=1)
    feeds["sequences"] = np.array(
        [[PAST - i, n, n, i * panels, panels] for i, n in enumerate(nodes)], np.int64
    )
    assert same_bits(node.run(2), np.concatenate(expected, axis=1))
    for name in caches:
        assert np.array_equal(feeds[name], np.concatenate([a for _, a in after[name]], axis=2))


@pytest.mark.parametrize(
    ("attribute", "value", "text"),
    [
        ("layer", 3, "layer is 3, but the KV cache has 3 layers"),
        ("layer", -1, "attribute layer is -1"),
        ("layer", None, "attribute layer is missing"),
        ("n_heads", 3, "n_heads 3 is not a multiple of n_kv_heads 2"),
        ("n_heads", 6, "qkv has shape [1, 5, 128], expected [1, any, 160]"),
        ("n_kv_heads", 0, "attribute n_kv_heads is 0"),
        ("n_kv_heads", 4, "qkv has shape"),
        ("head_size", 15, "head_size 15 is odd, expected even"),
        ("head_size", 2**40, "attribute head_size is"),
        ("kv_format", 3, "kv_format is 3, expected 0 to 2"),
        ("kv_format", -1, "kv_format is -1, expected 0 to 2"),
        ("kv_format", 1, "k_cache has elements of ONNX type 10, expected uint8"),
    ],
)
def test_attention_attributes(attention_node, attribute, value, text):
    attention_node.attributes[attribute] = value
    refuses(attention_node, text)


@pytest.mark.parametrize(
    ("feed", "index", "value", "text"),
    [
        ("position_ids", (0, 3), 64, "position_ids[3] is 64, expected 0 to 63"),
        ("position_ids", (0, 0), -1, "position_ids[0] is -1, expected 0 to 63"),
        ("parents", (0, 2), 2, "parents[2] is 2, expected -1 to 1"),
        ("parents", (0, 0), 0, "parents[0] is 0, expected -1 to -1"),
        ("parents", (0, 4), -2, "parents[4] is -2, expected -1 to 3"),
        (
            "sequences",
            (0, 0),
            CAPACITY - ROWS + 1,
            "44 committed tokens + 5 rows do not fit the KV",
        ),
        ("sequences", (0, 0), -1, "a sequence has -1 committed tokens, expected 0 to 2147483648"),
        ("sequences", (0, 0), 2**63 - 1, "a sequence has 9223372036854775807 committed tokens"),
        ("sequences", (0, 1), -1, "a sequence has -1 rows and 5 nodes, expected rows of 0 or more"),
        ("sequences", (0, 1), 6, "a sequence has 6 rows and 5 nodes, expected"),
        ("sequences", (0, 1), 4, f"{LEFT}: 1 rows and 0 nodes"),
        ("sequences", (0, 2), 6, f"{LEFT}: 0 rows and -1 nodes"),
        ("sequences", (0, 2), 2**63 - 1, "a sequence has 5 rows and 9223372036854775807 nodes"),
        ("sequences", (0, 3), -1, "a sequence has 3 panels from panel -1 on, the KV cache has 3"),
        ("sequences", (0, 3), 1, "a sequence has 3 panels from panel 1 on, the KV cache has 3"),
        (
            "sequences",
            (0, 3),
            2**63 - 1,
            "a sequence has 3 panels from panel 922",
        ),
        ("sequences", (0, 4), -1, "a sequence has -1 panels from panel 0 on"),
        ("sequences", (0, 4), 2**62, "a sequence has 4611686018427387904 panels from panel 0 on"),
        ("sequences", (0, 4), 1, "20 committed tokens + 5 rows do not fit the KV cache of 16 rows"),
    ],
)
def test_attention_ranges(attention_node, feed, index, value, text):
    attention_node.feeds[feed][index] = value
    before = attention_node.feeds["v_cache"].copy()
    refuses(attention_node, text)
    assert np.array_equal(attention_node.feeds["v_cache"], before)


@pytest.mark.parametrize(
    ("feed", "shape", "text"),
    [
        ("qkv", (5, 128), "qkv has shape [5, 128], expected [1, any, 128]"),
        ("qkv", (2, 5, 128), "qkv has shape [2, 5, 128]"),
        ("position_ids", (1, 4), "position_ids has shape [1, 4], expected [1, 5]"),
        ("parents", (5,), "parents has shape [5], expected [1, any]"),
        ("parents", (1, 4), f"{LEFT}: 0 rows and -1 nodes"),
        ("sequences", (5,), "sequences has shape [5], expected [any, 5]"),
        ("sequences", (1, 4), "sequences has shape [1, 4], expected [any, 5]"),
        ("sequences", (0, 5), f"{LEFT}: 5 rows and 5 nodes"),
        ("sequences", (257, 5), "sequences are 257, expected at most 256"),
        ("cos", (64, 16), "cos has shape [64, 16], expected [any, 8]"),
        ("sin", (63, 8), "sin has shape [63, 8], expected [64, 8]"),
        ("k_cache", (3, 2, 48, 16), "k_cache has shape [3, 2, 48, 16], expected [3, 2, 3, 16, 16]"),
        ("k_cache", (3, 2, 2, 16, 16), "k_cache has shape [3, 2, 2, 16, 16], expected"),
        ("v_cache", (3, 2, 47, 16), "the KV cache has 47 rows, expected a multiple of 16"),
        ("v_cache", (3, 1, 48, 16), "v_cache has shape [3, 1, 48, 16], expected [any, 2, any, 16]"),
        ("v_cache", (0, 2, 48, 16), "layer is 1, but the KV cache has 0 layers"),
    ],
)
def test_attention_shapes(attention_node, feed, shape, text):
    source = attention_node.feeds if feed in attention_node.feeds else attention_node.constants
    source[feed] = np.zeros(shape, source[feed].dtype)
    refuses(attention_node, text)


@pytest.mark.parametrize(
    ("feed", "shape", "text"),
    [
        ("k_cache", (3, 2, 3, 287), "k_cache has shape [3, 2, 3, 287], expected [3, 2, 3, 288]"),
        ("k_cache", (3, 2, 4, 288), "k_cache has shape [3, 2, 4, 288], expected [3, 2, 3, 288]"),
        (
            "v_cache",
            (3, 2, 48, 16),
            "v_cache has shape [3, 2, 48, 16], expected [any, 2, any, 288]",
        ),
        ("v_cache", (3, 2, 2, 288), "k_cache has shape [3, 2, 3, 288], expected [3, 2, 2, 288]"),
        ("v_cache", (1, 2, 3, 288), "layer is 1, but the KV cache has 1 layers"),
        ("sequences", CAPACITY - ROWS + 1, "44 committed tokens + 5 rows do not fit the KV cache"),
    ],
)
def test_int8_shapes(int8_node, feed, shape, text):
    if feed == "sequences":
        int8_node.feeds[feed][0, 0] = shape
    else:
        int8_node.feeds[feed] = np.zeros(shape, np.uint8)
    refuses(int8_node, text)


@pytest.mark.parametrize("name", ["k_cache", "v_cache"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64])
def test_int8_refuses_other_elements(int8_node, name, dtype):
    int8_node.feeds[name] = int8_node.feeds[name].astype(dtype)
    refuses(int8_node, f"{name} has elements of ONNX type")


@pytest.mark.parametrize("name", ["k_cache", "v_cache"])
def test_attention_refuses_a_constant_cache(attention_node, name):
    attention_node.constants[name] = attention_node.feeds.pop(name)
    refuses(attention_node, f"{name} is a constant, expected an input: it is written in place")
