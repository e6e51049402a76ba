"""Methods that are whole, tested and measured, and pay on nothing that was tried.

They are found by name like any other; only apps import them. One that pays comes out again.
`docs/labs.md` has the figures.
"""
