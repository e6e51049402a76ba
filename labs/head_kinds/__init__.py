"""Kinds of draft heads that others published, in torch: what they compute, and nothing else.

They have no graphs, so nothing drafts with them. `tools/head_kinds/bench.py` trains and measures
them beside the kinds that edgedec has.
"""
