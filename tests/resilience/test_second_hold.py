"""Each hold point of a rank holds, not only its first."""

import json
import threading

from chaoslab import probe


def test_a_second_hold_holds_as_well(tmp_path, monkeypatch) -> None:
    """The release of the first save's hold does not let the second save's go by."""
    events = tmp_path / "events.jsonl"
    holds = [{"point": "save", "nth": nth, "at_write": 1} for nth in (1, 2)]
    monkeypatch.setenv("CHAOSLAB_EVENTS", str(events))
    monkeypatch.setenv("CHAOSLAB_HOLD", json.dumps(holds))
    for nth in (1, 2):
        done = threading.Event()

        def save(nth=nth, done=done):
            with (tmp_path / f"{nth}").open("wb") as file:
                probe.watched(file, nth=nth).write(b"0123456789")
            done.set()

        writer = threading.Thread(target=save)
        writer.start()
        while not (events.exists() and events.read_text().count('"held"') == nth):
            assert not done.wait(0.002), f"save {nth} was not held"
        assert (tmp_path / f"{nth}").read_bytes() == b"01234"
        (tmp_path / "events.jsonl.release").touch()
        writer.join(timeout=10)
        assert (tmp_path / f"{nth}").read_bytes() == b"0123456789"
