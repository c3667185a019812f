"""The command line of `toolkit bench`. Only click is imported at the top, so that --help is fast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from models.families import FAMILIES, default_family
from toolkit.commands.bench.workload import GENERATION
from toolkit.parity import ported_family
from toolkit.terminal.path_argument import PathArgument

PATH = PathArgument()
COUNT = click.IntRange(1, 2**31 - 1)
#: Kinds of work that can be measured, in the order of ``--all``.
WORKS = ("step", "generate", "generate-without-cache", "start", "tokenize", "gate")
#: Model family -> its benchmark settings; families without a benchmark are missing.
BENCHMARKS: dict[str, Any] = {name: ported_family(name).bench for name in FAMILIES if ported_family(name).bench}


def _describe_defaults(field: str) -> str:
    """Return the default of an option for each family, as text for its help."""
    return ", ".join(f"{getattr(benchmark.defaults, field)} of {name}" for name, benchmark in BENCHMARKS.items())


class Counts(click.ParamType):
    """Type of an option with comma-separated integers above 0; the value is a sorted list."""

    name = "N,N,..."

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> list[int]:
        """Return the sorted distinct numbers of a list such as ``256,512,1024``."""
        parts = str(value).split(",")
        if not all(part.isdecimal() and 0 < int(part) < 2**31 for part in parts):
            self.fail(f"{value} is no list of whole numbers above 0, such as 256,512,1024.", parameter, context)
        return sorted({int(part) for part in parts})


@click.command(
    "bench",
    epilog="KEY=VALUE pairs set keys of the model's configuration, for example "
    f"{ported_family(default_family()).example}. Measure on a machine that does nothing else.",
)
@click.option("--model", type=click.Choice(list(BENCHMARKS)), required=True, help="The port to measure.")
@click.argument("overrides", metavar="[KEY=VALUE]...", nargs=-1)
@click.option(
    "--against",
    type=click.Choice(["transformers", "paddlenlp"]),
    default="transformers",
    help="The implementation that the port is measured against.",
)
@click.option(
    "--work",
    "works",
    type=click.Choice(WORKS),
    multiple=True,
    default=["step"],
    help="What to measure. step: a training step with AdamW; generate: tokens one by one; start: a process up to the "
    "end of its first step; tokenize: texts to tokens; gate: a gate, new and cached. May be given several times.",
)
@click.option("--all", "everything", is_flag=True, help="Measure everything, also over lengths and depths.")
@click.option(
    "--layers", type=click.IntRange(1, 10_000), help=f"The number of layers. Default: {_describe_defaults('layers')}."
)
@click.option("--length", type=COUNT, help=f"Tokens per text. Default: {_describe_defaults('length')}.")
@click.option("--batch-size", type=COUNT, help="Texts per batch. Default: 4; generation always takes 1.")
@click.option("--new-tokens", type=COUNT, default=128, help="Tokens that generation makes.")
@click.option(
    "--backward",
    type=click.Choice(["reversible", "autograd"]),
    default="reversible",
    help="The port's backward, if it has several.",
)
@click.option("--pairs", type=click.IntRange(1, 1000), default=7, help="Measurements of each side.")
@click.option("--threads", type=click.IntRange(1, 1024), help="CPU threads per side. Default: the physical cores.")
@click.option("--lengths", type=Counts(), help="Also measure and plot these lengths.")
@click.option("--depths", type=Counts(), help="Also measure and plot these numbers of layers.")
@click.option("--reference-python", metavar="PATH", help="Run transformers with this Python.")
@click.option("--output", type=PATH, default=Path("runs/bench"), help="The folder for the page.")
def bench(
    overrides: tuple[str, ...],
    against: str,
    works: tuple[str, ...],
    pairs: int,
    threads: int | None,
    lengths: list[int] | None,
    depths: list[int] | None,
    reference_python: str | None,
    output: Path,
    *,
    everything: bool,
    **workload_options: Any,
) -> int:
    """Measure the port's speed against another implementation.

    Each side runs in its own process, and the two are measured in turn. Ratios come with a confidence interval.
    """
    from rich.table import Table

    from toolkit.commands.bench import page
    from toolkit.commands.bench.duel import Duel, run_duel
    from toolkit.commands.bench.workloads import make_workload
    from toolkit.errors import UserError
    from toolkit.machine import runtime
    from toolkit.machine.scratch import scratch_folder
    from toolkit.parity import reference_interpreter
    from toolkit.terminal.console import LiteralConsole

    model = workload_options["model"]
    benchmark = BENCHMARKS[model]
    if everything:
        works = WORKS
        lengths, depths = lengths or benchmark.lengths, depths or benchmark.depths
    works = tuple(dict.fromkeys(works))
    if against == "paddlenlp" and not (benchmark.paddlenlp and works == ("step",)):
        trainable = " or ".join(name for name, candidate in BENCHMARKS.items() if candidate.paddlenlp)
        raise UserError(
            f"--against paddlenlp: is for training steps of {trainable}; PaddleNLP's others cannot train here"
        )
    if (lengths or depths) and not {"step", *GENERATION} & set(works):
        raise UserError("--lengths, --depths: are for training steps and generation; add --work step")
    python = reference_interpreter(reference_python) if reference_python else None
    console = LiteralConsole()

    def measure(**changes: Any) -> Duel:
        with scratch_folder("toolkit-bench-") as folder, console.status("bench") as status:
            settings = {
                **workload_options,
                **changes,
                "threads": threads or runtime.count_physical_cores(),
                "overrides": overrides,
            }
            workload = make_workload(folder, **settings)
            return run_duel(workload, against, pairs, python, lambda words: status.update(f"bench: {words}"))

    results = page.Results({"cores": runtime.count_physical_cores(), "processor": runtime.processor_name()})
    console.print("on {processor}, {cores} cores".format(**results.hardware), highlight=False, soft_wrap=True)
    for work in works:
        if work == "gate":
            continue
        comparison = results.works[work] = measure(work=work)
        console.print(page.title_of(comparison), highlight=False, soft_wrap=True)
        comparison_table = Table("", "port", against, "port / other")
        for row in page.rows_of(comparison):
            comparison_table.add_row(*row)
        console.print(comparison_table)
    if "gate" in works:
        from toolkit.commands.bench.gate import measure_gate

        with console.status("bench") as status:
            results.gate = measure_gate(
                model=model,
                layers=workload_options["layers"],
                overrides=overrides,
                pairs=pairs,
                reference_python=python,
                show=lambda words: status.update(f"bench: {words}"),
            )
        console.print(results.gate.title, highlight=False, soft_wrap=True)
        table = Table("", "")
        for cells in results.gate.rows():
            table.add_row(*cells)
        console.print(table)
    for name, option, values in (("length", "length", lengths), ("layers", "layers", depths)):
        for value in values or ():
            comparison = measure(work=works[0], **{option: value})
            results.curves.setdefault(name, []).append(comparison)
            console.print(f"{page.title_of(comparison)}: {comparison.times}", highlight=False, soft_wrap=True)
    console.print(f"page: {page.write_results(results, output)}", highlight=False, soft_wrap=True)
    return 0
