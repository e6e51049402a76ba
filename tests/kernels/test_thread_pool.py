"""Passes of a model on threads of its own: the same bits in whatever order operators follow."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from edgedec.kernels.thread_pool import ThreadPool
from edgedec.models.quant import FORMATS

from ..doors import linear_op
from .op_node import Node, open_node

pytestmark = pytest.mark.kernel

K = 512
TASKS = Path("/proc/self/task")


def linear_node(x, matrices, gate):
    names = ["x", "", ""]
    for i in range(len(matrices)):
        names += [f"w{i}", ""]
    attributes = {
        "formats": [m.format for m in matrices], "n": [m.n for m in matrices],
        "k": K, "epsilon": 0.0, "gate": int(gate),
    }  # fmt: skip
    stored = {f"w{i}": matrix.data for i, matrix in enumerate(matrices)}
    node = Node("Linear", names[:-1], {"x": x[None]}, stored, attributes)
    node.expected = linear_op.linear(x, matrices, gate=gate)[None]
    return node


@pytest.fixture
def nodes(make_matrix, rng):
    """Projections of three matrices, of a gated pair and of one small matrix."""
    x = rng.standard_normal((3, K)).astype(np.float32)
    three = [make_matrix(FORMATS[f], n, K) for f, n in (("q4_k", 900), ("q8_0", 17), ("f16", 48))]
    pair = [make_matrix(FORMATS[f], 720, K) for f in ("q4_1", "q5_k")]
    one = [make_matrix(FORMATS["q6_k"], 16, K)]
    return [linear_node(x, three, False), linear_node(x, pair, True), linear_node(x, one, False)]


def run(pairs):
    return [session.run(None, feeds)[0] for session, feeds in pairs]


@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_operators_give_the_same_bits_in_any_order(nodes, n_threads, same_bits):
    pool = ThreadPool(n_threads)
    sessions = [open_node(n.op, n.names, n.feeds, n.constants, n.attributes) for n in nodes]
    for order in ([0, 1, 2], [0, 1, 2], [2, 0, 0, 1], [1, 0]):
        pool.wake()
        found = pool.run(partial(run, [(sessions[i], nodes[i].feeds) for i in order]))
        for i, rows in zip(order, found, strict=True):
            assert same_bits(rows, nodes[i].expected)
    pool.close()


def test_pools_of_several_models_take_turns_and_share_the_processors(nodes, same_bits):
    """A thread for each model, and one that computes with both: passes overlap at random."""
    sessions = [open_node(n.op, n.names, n.feeds, n.constants, n.attributes) for n in nodes]
    pools = [ThreadPool(3) for _ in range(2)]
    wrong: list[int] = []

    def compute(chosen):
        for turn in range(40):
            i, pool = turn % len(nodes), chosen[turn % len(chosen)]
            pool.wake()
            rows = pool.run(run, [(sessions[i], nodes[i].feeds)])[0]
            if not same_bits(rows, nodes[i].expected):
                wrong.append(i)

    threads = [Thread(target=compute, args=(own,)) for own in ([pools[0]], [pools[1]], pools)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    for pool in pools:
        pool.close()


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_threads_end_with_the_pool(how):
    """Other threads of the process may come and go meanwhile: only the pool's own are followed."""
    before = set(TASKS.iterdir())
    pool = ThreadPool(4)
    made = set(TASKS.iterdir()) - before
    assert len(made) >= 3
    if how == "closed":
        pool.close()
    else:
        del pool
    left = made & set(TASKS.iterdir())
    assert len(left) <= len(made) - 3


def test_a_closed_pool_takes_no_pass():
    pool = ThreadPool(2)
    pool.close()
    pool.close()
    pool.wake()
    with pytest.raises(RuntimeError, match="closed"):
        pool.run(list)
