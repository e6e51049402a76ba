"""Whether other programs disturbed a whole run."""

from __future__ import annotations

import pytest

from edgedec.apps.measuring import disturbance
from edgedec.apps.measuring.disturbance import MeasuringWindow, RunWatch, noise_text


@pytest.mark.parametrize(("others_s", "is_noisy"), [(0.2, False), (2.0, True)])
def test_a_run_is_noisy_above_the_bound(
    monkeypatch: pytest.MonkeyPatch, others_s: float, is_noisy: bool
) -> None:
    window = MeasuringWindow(wanted_s=10.0, own_s=9.0, others_s=others_s, stolen_s=0.0, spare_s=0.0)
    monkeypatch.setattr(disturbance.Watch, "stop", lambda *_: window)
    noise = RunWatch(2).noise()
    assert noise == {"bound": 0.05, "lost_share": others_s / 10, "is_noisy": is_noisy}
    assert ("noisy" in noise_text(noise)) is is_noisy


def test_a_system_that_does_not_tell_is_not_called_noisy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disturbance.Watch, "stop", lambda *_: None)
    noise = RunWatch(2).noise()
    assert noise["lost_share"] is None
    assert not noise["is_noisy"]
    assert "unknown" in noise_text(noise)
