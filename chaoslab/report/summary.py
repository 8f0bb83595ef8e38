"""A report as Markdown. Everything that a job, a path or a kernel said is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from chaoslab.report.figures import Data, figure_text
from chaoslab.report.storm import storm_section
from chaoslab.report.text import block, code, escaped, markdown_table


def summary(data: Data) -> str:
    """Give summary.md for the content of a report.json."""
    parts = [
        f"# {escaped(data['verdict'])}: {escaped(data['name'])}",
        _head(data),
        _list("In doubt", data["doubts"]),
        _list("How the ranks ended", data["endings"]),
        _judgements(data),
        *(_fault(fault, data) for fault in data["injections"]),
        _figures("The whole run", data, None),
        _list("Notes", data["notes"]),
        _replay(data),
        "## Scenario\n\n" + block(data["scenario"]["code"], "python"),
        _versions(data),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(data: Data) -> str:
    durations = data["durations"]
    lines = [
        f"- Run {code(data['run_id'])}, seed {data['seed']}, written {escaped(data['written_at'])}",
        f"- Took {durations['wall_s']:g} s in all, {durations['run_s']:g} s of it the run",
        f"- Twin: {escaped(data['twin']['source'])}",
        "- Files: [report.json](report.json), [history.jsonl](history.jsonl), [logs](logs)",
    ]
    return "\n".join(lines)


def _list(title: str, items: Iterable[str]) -> str:
    lines = [f"- {escaped(item)}" for item in items]
    return f"## {title}\n\n" + "\n".join(lines) if lines else ""


def _judgements(data: Data) -> str:
    rows = []
    for one in data["judgements"]:
        place = "" if one["injection"] is None else str(one["injection"])
        rows.append((one["verdict"], code(one["bound"]), place, escaped(one["message"])))
    return "## Bounds\n\n" + markdown_table(("verdict", "bound", "fault", "what was found"), rows)


def _fault(fault: Data, data: Data) -> str:
    on = f" on {code(fault['on'])}" if fault["on"] else ""
    at = f" at {code(fault['at'])}" if fault["at"] else ""
    title = f"## Fault {fault['index']}: {code(fault['fault'])}{on}{at}"
    rows = [
        (f"{event['at_s']:.3f} s", escaped(event["kind"]), code(_fields(event["fields"])))
        for event in fault["events"]
    ]
    told = markdown_table(("at", "event", "evidence"), rows) if rows else "It was never injected."
    parts = [title, told, _figure_table(data, fault["index"]), storm_section(fault, data)]
    return "\n\n".join(part for part in parts if part)


def _fields(fields: Data) -> str:
    text = ", ".join(f"{name}={value}" for name, value in _flat(fields))
    return text if len(text) <= 600 else text[:597] + "..."  # noqa: PLR2004 - history has it all


def _flat(fields: Data, prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Give nested fields as `a.b=c`, less times of the kernel's clock, which nobody compares."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif not name.endswith("t_s"):
            yield f"{prefix}{name}", value


def _figures(title: str, data: Data, injection: int | None) -> str:
    return f"## {title}\n\n" + _figure_table(data, injection)


def _figure_table(data: Data, injection: int | None) -> str:
    rows = []
    for figure in data["measurements"]:
        if figure["injection"] != injection:
            continue
        lack = f"no figure; it takes {figure['missing']}" if figure["missing"] else ""
        rows.append((code(figure["name"]), figure_text(figure), escaped(figure["how"] or lack)))
    return markdown_table(("measured", "value", "taken from"), rows)


def _replay(data: Data) -> str:
    return "## Run it again\n\n" + block(data["replay"], "sh") if data["replay"] else ""


def _versions(data: Data) -> str:
    rows = [(escaped(name), code(version)) for name, version in data["versions"].items()]
    return "## Made with\n\n" + markdown_table(("part", "version"), rows)
