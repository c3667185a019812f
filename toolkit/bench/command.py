"""`toolkit bench`. Only click is imported at the top, so that --help is instant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

COUNT = click.IntRange(1, 2**31 - 1)


class Counts(click.ParamType):
    """Rising whole numbers, parted by commas."""

    name = "N,N,..."

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> list[int]:
        parts = str(value).split(",")
        if not all(part.isdecimal() and 0 < int(part) < 2**31 for part in parts):
            self.fail(f"{value} is no list of whole numbers above 0, such as 256,512,1024.", parameter, context)
        return sorted({int(part) for part in parts})


@click.command(
    "bench",
    epilog="KEY=VALUE pairs set keys of the model's configuration, for example num_hashes=4. Measure on a machine that "
    "does nothing else.",
)
@click.option("--model", type=click.Choice(["reformer", "ctrl"]), required=True, help="The port to measure.")
@click.argument("overrides", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--against", type=click.Choice(["transformers", "paddlenlp"]), default="transformers", show_default=True)
@click.option(
    "--work",
    type=click.Choice(["step", "generate", "generate-without-cache"]),
    default="step",
    show_default=True,
    help="A training step with AdamW, or tokens one after another.",
)
@click.option("--layers", type=click.IntRange(1, 10_000), help="Default: 6 of reformer, 4 of ctrl.")
@click.option("--length", type=COUNT, help="Tokens a sequence. Default: 1024 of reformer, 128 of ctrl.")
@click.option("--batch-size", type=COUNT, help="Default: 4; of generation always 1.")
@click.option("--new-tokens", type=COUNT, default=128, show_default=True, help="Of generation.")
@click.option(
    "--backward",
    type=click.Choice(["reversible", "autograd"]),
    default="reversible",
    show_default=True,
    help="How the port makes Reformer's gradients.",
)
@click.option("--pairs", type=click.IntRange(1, 1000), default=7, show_default=True, help="Measurements of each side.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Of each side. Default: the physical cores.")
@click.option("--lengths", type=Counts(), help="Also measure at these lengths, and plot them.")
@click.option("--depths", type=Counts(), help="Also measure with so many layers, and plot them.")
@click.option("--reference-python", metavar="PATH", help="Run transformers with this Python.")
@click.option("--output", type=click.Path(path_type=Path), default=Path("runs/bench"), show_default=True)
def bench(
    overrides: tuple[str, ...],
    against: str,
    pairs: int,
    threads: int | None,
    lengths: list[int] | None,
    depths: list[int] | None,
    reference_python: str | None,
    output: Path,
    **described: Any,
) -> int:
    """Measure how fast the port is beside another implementation.

    Each side is a process of its own; they are measured in turn, and ratios are said with their spread.
    """
    from rich.table import Table

    from toolkit import runtime
    from toolkit.bench import page
    from toolkit.bench.duel import Duel, duel
    from toolkit.bench.workloads import make_workload
    from toolkit.console import LiteralConsole
    from toolkit.errors import UserError
    from toolkit.parity import reference_interpreter
    from toolkit.scratch import scratch_folder

    if against == "paddlenlp" and (described["model"] != "ctrl" or described["work"] != "step"):
        raise UserError("--against paddlenlp: is for training steps of ctrl; PaddleNLP's Reformer cannot train here")
    python = reference_interpreter(reference_python) if reference_python else None
    console = LiteralConsole()

    def measured(**changes: Any) -> Duel:
        with scratch_folder("toolkit-bench-") as folder, console.status("bench") as status:
            given = {**described, **changes, "threads": threads or runtime.physical_cores(), "overrides": overrides}
            workload = make_workload(folder, **given)
            return duel(workload, against, pairs, python, lambda words: status.update(f"bench: {words}"))

    main = measured()
    console.print(page.title_of(main), highlight=False, soft_wrap=True)
    shown = Table("", "port", against, "port / other")
    for row in page.rows_of(main):
        shown.add_row(*row)
    console.print(shown)
    curves = {}
    for name, option, values in (("length", "length", lengths), ("layers", "layers", depths)):
        if values:
            curves[name] = [measured(**{option: value}) for value in values]
            for one in curves[name]:
                console.print(f"{page.title_of(one)}: {one.times}", highlight=False, soft_wrap=True)
    hardware = {"cores": runtime.physical_cores(), "processor": runtime.processor()}
    console.print(f"page: {page.write(main, curves, hardware, output)}", highlight=False, soft_wrap=True)
    return 0
