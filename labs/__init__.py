"""Methods that are whole, tested and measured, and pay on nothing that was tried.

They register themselves here and are then found by name like any other. One that pays comes out
again. `docs/labs.md` has the figures. `head_kinds` does not register: it is for comparisons alone.
"""

from edgedec.runtime.drafting.extensions import register

register("drafter", f"{__name__}.drafters", ("rapid",))
register("unmask rule", f"{__name__}.unmasking", ("delayed-cache", "localleap"))
