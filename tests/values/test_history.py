"""The history: order, lines in and out."""

import json

import pytest
from hypothesis import given, strategies as st

from chaoslab import HarnessError
from chaoslab.history import Event, History, event_from_json, event_to_json

SCALARS = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
EVENTS = st.builds(
    lambda t_s, kind, rank, fields: Event(t_s=t_s, kind=kind, rank=rank, fields=fields),
    st.floats(0, 1e6).map(lambda t: round(t, 6)),
    st.sampled_from(["backoff", "torn_down", "healed"]),
    st.none() | st.integers(0, 99),
    st.dictionaries(
        st.text(min_size=1).filter(
            lambda name: name not in {"t_s", "kind", "rank", "node", "incarnation"}
        ),
        SCALARS,
    ),
)


@given(EVENTS)
def test_an_event_reads_back_as_it_was_written(event) -> None:
    """Whatever an event carries survives its line, and the line is one line."""
    line = event_to_json(event)
    assert "\n" not in line
    assert event_from_json(line) == event


@given(st.lists(EVENTS))
def test_a_history_is_in_order_of_time_however_its_events_arrive(events) -> None:
    """Late events are put where their time belongs."""
    history = History()
    for event in events:
        history.append(event)
    times = [event.t_s for event in history]
    assert times == sorted(times)
    assert len(history) == len(events)


NO_EVENTS = [
    "",
    "{",
    "3",
    "[]",
    "{}",
    '{"t_s": 1}',
    '{"t_s": "1", "kind": "step"}',
    '{"t_s": true, "kind": "step"}',
    '{"t_s": 1, "kind": "step", "step": 1, "rank": "one"}',
    '{"t_s": 1, "kind": "step"}',
    '{"t_s": 1, "kind": "step", "step": null}',
    '{"t_s": NaN, "kind": "backoff"}',
    '{"t_s": 1' + "0" * 400 + ', "kind": "backoff"}',
    "[" * 30000,
]


@pytest.mark.parametrize("line", NO_EVENTS, ids=range(len(NO_EVENTS)))
def test_a_line_that_is_no_event_is_refused(line) -> None:
    """Each damaged line raises, and none is taken for an event."""
    with pytest.raises(ValueError, match=r"."):
        event_from_json(line)


def test_a_damaged_history_names_the_line(tmp_path) -> None:
    """Loading says which line is bad."""
    path = tmp_path / "history.jsonl"
    path.write_text(json.dumps({"t_s": 1, "kind": "backoff"}) + "\nnonsense\n")
    with pytest.raises(HarnessError, match=r":2:"):
        History.load(path)
