"""Features of a text: whatever is put and dropped, those known are the ones put last."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edgedec.runtime.drafting.drafters.eagle.features import TextFeatures

WIDTH = 3
STEPS = st.lists(st.tuples(st.booleans(), st.integers(-4, 12), st.integers(0, 9)), max_size=60)


def test_a_gap_makes_those_before_useless() -> None:
    features = TextFeatures(WIDTH)
    features.put(0, np.ones((4, WIDTH), np.float32))
    features.put(5, np.full((2, WIDTH), 2, np.float32))
    assert (features.first, features.stop) == (5, 7)
    assert (features.rows(5, 7) == 2).all()


@given(STEPS)
def test_those_known_are_the_ones_put_last(steps: list[tuple[bool, int, int]]) -> None:
    features = TextFeatures(WIDTH)
    known: dict[int, float] = {}
    for number, (is_put, shift, n) in enumerate(steps, start=1):
        place = max(0, features.stop + shift)
        if not is_put:
            features.drop_before(place)
            known = {at: value for at, value in known.items() if at >= place}
        else:
            is_gap = not features.first <= place <= features.stop
            features.put(place, np.full((n, WIDTH), number, np.float32))
            known = {at: value for at, value in known.items() if at < place and not is_gap}
            known |= {place + i: float(number) for i in range(n)}
        assert features.stop - features.first == len(known)
        expected = [known[at] for at in range(features.first, features.stop)]
        assert features.rows(features.first, features.stop)[:, 0].tolist() == expected
