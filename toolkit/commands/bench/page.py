"""Output of the results of `toolkit bench`: rows for the terminal, a JSON file and an HTML page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from models import families
from toolkit.commands.bench.duel import OURS, Duel
from toolkit.files import strict_json
from toolkit.files.whole import write_text
from toolkit.machine.sizes import format_bytes
from toolkit.pages.elements import Section, render_macro, render_page, table
from toolkit.pages.plot import Series, draw_lines

if TYPE_CHECKING:
    from toolkit.commands.bench.gate import GateRuns

PAGE, JSON = "bench.html", "bench.json"


@dataclass
class Results:
    """All measurements of a run of `toolkit bench`.

    Attributes:
        hardware: the processor and its number of cores.
        works: kind of work -> its comparison.
        curves: ``length`` or ``layers`` -> comparisons of the first kind of work by ascending length or depth.
        gate: measurements of the gate; None if it was not measured.
    """

    hardware: Mapping[str, Any]
    works: dict[str, Duel] = field(default_factory=dict)
    curves: dict[str, list[Duel]] = field(default_factory=dict)
    gate: GateRuns | None = None


def rows_of(duel: Duel) -> list[tuple[str, str, str, str]]:
    """Return the table rows of a comparison: quantity, value of the port, value of the other side, and ratio."""
    ours, theirs = duel.sides.values()
    other = _other_side(duel)
    work, memory = duel.workload, duel.memory
    amount = f"{work.new_tokens} tokens" if work.generates else f"{work.texts} texts" if work.texts else "a step"
    each, first = ("texts", "tokens in all") if work.texts else ("tokens", "value of the first")
    ours_rate, other_rate = (f"{duel.amount_per_second(side):,.0f}" for side in (OURS, other))
    rows = [
        (
            "seconds to the first step" if work.work == "start" else f"seconds for {amount}",
            f"{median(ours.seconds):.4g}",
            f"{median(theirs.seconds):.4g}",
            str(duel.times),
        ),
        *([] if work.work == "start" else [(f"{each} a second", ours_rate, other_rate, "")]),
        (
            "memory of the process" if work.work == "start" else "memory above the imports",
            format_bytes(ours.memory),
            format_bytes(theirs.memory),
            "" if memory is None else f"{memory:.2f}",
        ),
        (first, f"{ours.first_value:.6g}", f"{theirs.first_value:.6g}", ""),
    ]
    if duel.limit is not None:
        share, other_share = (f"{share:.0%} of it" for share in duel.shares.values())
        rows.append((str(duel.limit), share, other_share, ""))
    return rows


def duels_to_json(duels: Sequence[Duel]) -> list[dict[str, Any]]:
    """Return all measurements of comparisons as values for JSON."""
    return [
        {
            "workload": {key: value for key, value in duel.workload.to_json().items() if key != "folder"},
            "sides": {name: asdict(side) for name, side in duel.sides.items()},
            "ratio": asdict(duel.times),
            "memory_ratio": duel.memory,
            "limit": duel.limit
            and {
                **asdict(duel.limit),
                "speed": duel.limit.speed,
                "seconds": duel.limit.seconds,
                "shares": duel.shares,
            },
        }
        for duel in duels
    ]


def write_results(results: Results, folder: Path) -> Path:
    """Write the page and the JSON file into a folder, and return the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "hardware": dict(results.hardware),
        "works": dict(zip(results.works, duels_to_json(list(results.works.values())), strict=True)),
        **{name: duels_to_json(duels) for name, duels in results.curves.items()},
        "gate": results.gate and results.gate.to_json(),
    }
    write_text(folder / JSON, strict_json.dumps(content, indent=1) + "\n")
    write_text(folder / PAGE, _build_page(results))
    return folder / PAGE


def title_of(duel: Duel) -> str:
    """Return a line that describes the measured workload."""
    work = duel.workload
    if work.work == "tokenize":
        return f"{work.model}, tokenization: {work.texts} texts, {work.threads} threads"
    work_names = {
        "step": "a training step",
        "start": "from the start of a process to its first training step",
        "generate": "generation",
        "generate-without-cache": "generation without cache",
    }
    has_choice = "backward" in families.family(work.model).settings
    backward = f", backward {work.backward}" if has_choice and work.work == "step" else ""
    return (
        f"{work.model}, {work_names[work.work]}: {work.layers} layers, {work.batch_size} x {work.length} tokens, "
        f"{work.threads} threads{backward}"
    )


def _build_page(results: Results) -> str:
    """Return the HTML page of the results: a table of each workload, the gate, the curves, and the machine."""
    sections = [
        Section(title_of(duel), [table(("", "port", _other_side(duel)), _page_rows(duel), class_="numbers")])
        for duel in results.works.values()
    ]
    if results.gate is not None:
        sections.append(Section(results.gate.title, [table(("", ""), results.gate.rows())]))
    sections += [_curve_section(name, duels) for name, duels in results.curves.items()]
    versions = {
        f"{side} {key}": value
        for duel in results.works.values()
        for side, measurements in duel.sides.items()
        for key, value in measurements.versions.items()
    }
    facts = {**{key: str(value) for key, value in results.hardware.items()}, **versions}
    sections.append(Section("Where", [table(("", "value"), list(facts.items()))]))
    return render_page("commands/bench/bench.html", title="toolkit bench", sections=sections)


def _other_side(duel: Duel) -> str:
    """Return the name of the side that the port is compared with."""
    return next(side for side in duel.sides if side != OURS)


def _page_rows(duel: Duel) -> list[tuple[str | Markup, ...]]:
    """Return the rows of a comparison; a row with a ratio is followed by a row with the ratio as a bar."""
    rows: list[tuple[str | Markup, ...]] = []
    for quantity, ours, theirs, ratio_text in rows_of(duel):
        rows.append((quantity, ours, theirs))
        if ratio_text:
            is_time = ratio_text == str(duel.times)
            ratio = duel.times.median if is_time else duel.memory
            interval = (duel.times.low, duel.times.high) if is_time and duel.times.low else None
            rows.append((f"port / {_other_side(duel)}", _ratio_bar(ratio or 1.0, interval), ratio_text))
    return rows


def _ratio_bar(ratio: float, interval: tuple[float, float] | None) -> Markup:
    """Return a bar from 1 to a ratio, with its confidence interval; the scale is logarithmic, from 1/8 to 8."""

    def place(value: float) -> float:
        return 50 + 50 * min(max(math.log(max(value, 1e-9)) / math.log(8), -1.0), 1.0)

    ends = tuple(map(place, interval)) if interval else None
    return render_macro("commands/bench/ratio.html", "ratio_bar", place(ratio), ends)


def _curve_section(name: str, duels: Sequence[Duel]) -> Section:
    """Return plots and a table of comparisons by ``length`` or by ``layers``."""
    curves = [_curve(f"seconds by {name}", name, duels, "seconds"),
              _curve(f"MB above the imports by {name}", name, duels, "memory")]  # fmt: skip
    titles = (name, "port, s", f"{_other_side(duels[0])}, s", "port / other", "memory, port / other")
    return Section(
        f"Over {name}: {title_of(duels[0]).partition(':')[0]}",
        [
            render_macro("pages/elements.html", "charts", curves),
            table(titles, [_curve_row(name, duel) for duel in duels], class_="numbers"),
        ],
    )


def _curve(title: str, name: str, duels: Sequence[Duel], quantity: str) -> Markup | None:
    """Return a line chart of both sides by a setting of the workload, or None if there is nothing to draw.

    Args:
        title: title of the chart.
        name: attribute of the workload on the horizontal axis, such as ``length``.
        duels: results of both sides, one for each value of the attribute.
        quantity: quantity on the vertical axis: ``seconds``, otherwise the memory in MB.
    """

    def height(duel: Duel, side: str) -> float:
        measurements = duel.sides[side]
        return median(measurements.seconds) if quantity == "seconds" else measurements.memory / 1e6

    series = [
        Series(side, [(getattr(duel.workload, name), height(duel, side)) for duel in duels]) for side in duels[0].sides
    ]
    return draw_lines(title, series, name)


def _curve_row(name: str, duel: Duel) -> tuple[str, ...]:
    """Return a row of a curve's table: the setting, the seconds of both sides, and the ratios of time and memory.

    Args:
        name: attribute of the workload that varies.
        duel: results of both sides at one value of the attribute.
    """
    ours, theirs = duel.sides.values()
    return (
        f"{getattr(duel.workload, name):,}",
        f"{median(ours.seconds):.4g}",
        f"{median(theirs.seconds):.4g}",
        str(duel.times),
        "" if duel.memory is None else f"{duel.memory:.2f}",
    )
