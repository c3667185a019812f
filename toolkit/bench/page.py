"""What was measured: lines for the terminal, a JSON file and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from toolkit import strict_json
from toolkit.bench.duel import OURS, Duel
from toolkit.bench.ratios import median
from toolkit.checkpoint import write_text
from toolkit.disk import megabytes
from toolkit.pages.document import document, table
from toolkit.pages.markup import element
from toolkit.pages.plot import STYLE, Series, lines

PAGE, JSON = "bench.html", "bench.json"


def rows_of(duel: Duel) -> list[tuple[str, str, str, str]]:
    """What is told of a comparison, a row each: what it is, the port's figure, the other's, and their ratio."""
    ours, theirs = duel.sides.values()
    other = next(side for side in duel.sides if side != OURS)
    what = "a step" if duel.workload.work == "step" else f"{duel.workload.new_tokens} tokens"
    memory = duel.memory
    rows = [
        (
            f"seconds for {what}",
            f"{median(ours.seconds):.4g}",
            f"{median(theirs.seconds):.4g}",
            str(duel.times),
        ),
        ("tokens a second", f"{duel.tokens_per_second(OURS):,.0f}", f"{duel.tokens_per_second(other):,.0f}", ""),
        (
            "memory above the imports",
            megabytes(ours.memory),
            megabytes(theirs.memory),
            "" if memory is None else f"{memory:.2f}",
        ),
        ("value of the first", f"{ours.first_value:.6g}", f"{theirs.first_value:.6g}", ""),
    ]
    if duel.floor is not None and duel.peak is not None:
        share = duel.floor / median(ours.seconds)
        other_share = duel.floor / median(theirs.seconds)
        rows.append(
            (
                f"matrix products alone, {duel.floor:.3g} s at {duel.peak / 1e9:,.0f} GFLOP/s",
                f"{share:.0%} of it",
                f"{other_share:.0%} of it",
                "",
            )
        )
    return rows


def as_json(duels: Sequence[Duel]) -> list[dict[str, Any]]:
    """All measurements."""
    found = []
    for duel in duels:
        workload = duel.workload.to_json()
        del workload["folder"]
        found.append(
            {
                "workload": workload,
                "sides": {name: asdict(side) for name, side in duel.sides.items()},
                "ratio": asdict(duel.times),
                "memory_ratio": duel.memory,
                "operations": duel.operations,
                "peak": duel.peak,
            }
        )
    return found


def write(duel: Duel, curves: Mapping[str, Sequence[Duel]], hardware: Mapping[str, Any], folder: Path) -> Path:
    """Leave the page and the JSON file in a folder; returns the page.

    Args:
        curves: what was changed, ``length`` or ``layers`` -> comparisons in its order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    told = {
        "hardware": dict(hardware),
        "main": as_json([duel])[0],
        **{name: as_json(duels) for name, duels in curves.items()},
    }
    write_text(folder / JSON, strict_json.dumps(told, indent=1) + "\n")
    write_text(folder / PAGE, _page(duel, curves, hardware))
    return folder / PAGE


def title_of(duel: Duel) -> str:
    """What was measured, in a line."""
    work = duel.workload
    done = {"step": "a training step", "generate": "generation", "generate-without-cache": "generation without cache"}
    depth = len(work.config["attn_layers"]) if work.model == "reformer" else work.config["n_layer"]
    backward = f", backward {work.backward}" if work.model == "reformer" and work.work == "step" else ""
    return (
        f"{work.model}, {done[work.work]}: {depth} layers, {work.batch_size} x {work.length} tokens, "
        f"{work.threads} threads{backward}"
    )


def _page(duel: Duel, curves: Mapping[str, Sequence[Duel]], hardware: Mapping[str, Any]) -> str:
    other = next(side for side in duel.sides if side != OURS)
    body: list[Element | None] = [
        element("h1", f"The port beside {other}"),
        element("p", title_of(duel)),
        element("div", table(("", "port", other, "port / other"), rows_of(duel), class_="numbers"), class_="wide"),
        element(
            "p",
            "A ratio is the median of pairs that were measured in turn, with an interval that holds the true median "
            "with 95%. Where the interval holds 1, no difference is said.",
            class_="soft",
        ),
    ]
    for name, duels in curves.items():
        body.append(element("h2", f"Over {name}"))
        body.append(
            element(
                "div",
                _curve(f"seconds a step by {name}", name, duels, "seconds"),
                _curve(f"MB above the imports by {name}", name, duels, "memory"),
                class_="charts",
            )
        )
        titles = (name, "port, s", f"{other}, s", "port / other", "memory, port / other")
        body.append(element("div", table(titles, [_curve_row(name, one) for one in duels]), class_="wide"))
    versions = {f"{side} {key}": value for side, found in duel.sides.items() for key, value in found.versions.items()}
    body.append(element("h2", "Where"))
    facts = {**{key: str(value) for key, value in hardware.items()}, **versions}
    body.append(element("div", table(("", "value"), list(facts.items())), class_="facts"))
    return document(f"bench: {title_of(duel)}", STYLE, element("body", element("main", *body)))


def _place(name: str, duel: Duel) -> int:
    """The length or depth of a comparison."""
    if name == "length":
        return duel.workload.length
    config = duel.workload.config
    return len(config["attn_layers"]) if duel.workload.model == "reformer" else config["n_layer"]


def _curve(title: str, name: str, duels: Sequence[Duel], what: str) -> Element | None:
    def height(duel: Duel, side: str) -> float:
        found = duel.sides[side]
        return median(found.seconds) if what == "seconds" else found.memory / 1e6

    series = [Series(side, [(_place(name, duel), height(duel, side)) for duel in duels]) for side in duels[0].sides]
    return lines(title, series, name)


def _curve_row(name: str, duel: Duel) -> tuple[str, ...]:
    ours, theirs = duel.sides.values()
    return (
        f"{_place(name, duel):,}",
        f"{median(ours.seconds):.4g}",
        f"{median(theirs.seconds):.4g}",
        str(duel.times),
        "" if duel.memory is None else f"{duel.memory:.2f}",
    )
