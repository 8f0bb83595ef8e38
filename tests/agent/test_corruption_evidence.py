"""Corruption is told from the losses of a control that crosses the same fault once."""

import pytest

from chaoslab.agent.effect import _clearly_more


@pytest.mark.parametrize(
    ("probes", "control", "proven"),
    [
        ((750, 250), (500, 500), True),  # half damaged each way: three quarters against a half
        ((500, 500), (500, 500), False),  # the healthy twin: no more lost than by the control
        ((510, 490), (500, 500), False),  # a difference that chance explains
        ((30, 10), (20, 20), False),  # too few to say
        ((0, 100), (0, 100), False),
    ],
)
def test_only_a_significant_difference_proves_damage(probes, control, proven) -> None:
    """(lost, answered) of probes against the control's: five standard deviations, or nothing."""
    assert _clearly_more(probes, control) is proven
