"""The likeliest way down a tree, for models that take no other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgedec.runtime.drafting.draft_tree import ROOT, DraftNode, DraftTree


def tree_of(*nodes: tuple[int, int, float]) -> DraftTree:
    """Returns the tree of (token, parent, probability) nodes."""
    tree = DraftTree()
    for token, parent, probability in nodes:
        tree.add(token, parent, probability, "toy")
    return tree


def test_it_takes_the_likeliest_child_each_time() -> None:
    tree = tree_of((1, ROOT, 0.3), (2, ROOT, 0.5), (3, 0, 0.9), (4, 1, 0.1), (5, 1, 0.2))
    assert tree.likeliest_chain().nodes == [
        DraftNode(2, ROOT, 1, 0.5, "toy"),
        DraftNode(5, 0, 2, 0.2, "toy"),
    ]
    assert len(tree) == 5


def test_of_equals_the_one_to_be_tried_first() -> None:
    tree = tree_of((1, ROOT, 0.5), (2, ROOT, 0.5), (3, 1, 0.9))
    assert [node.token for node in tree.likeliest_chain().nodes] == [1]


def test_a_chain_stays_as_it_is() -> None:
    tree = tree_of((1, ROOT, 0.5), (2, 0, 0.1))
    assert tree.likeliest_chain() is tree
    assert len(DraftTree().likeliest_chain()) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99), st.floats(0.01, 1)), max_size=12))
def test_any_tree(nodes: list[tuple[int, int, float]]) -> None:
    tree = DraftTree()
    for token, parent, probability in nodes:
        tree.add(token, parent % (len(tree) + 1) - 1, probability, "toy")
    chain = tree.likeliest_chain()
    assert chain.to_pass(0).is_chain
    path = tree.matching(node.token for node in chain.nodes)
    assert len(path) == len(chain)
    for i in path:
        siblings = tree.children(tree.nodes[i].parent)
        assert tree.nodes[i].probability == max(tree.nodes[j].probability for j in siblings)
    assert tree.children(path[-1] if path else ROOT) == []
