"""Write into the documents what they quote of the code: counts, lists, tables.

    python .ci/docs.py

It goes between ``<!-- docs:NAME -->`` and ``<!-- /docs -->``; :func:`quoted` says what each NAME stands for. In a
paragraph no line may begin with a marker: Markdown would take all of that line for HTML.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from models import families  # noqa: E402
from models.families import part  # noqa: E402
from toolkit.errors import Inconclusive, ParityDrift, UserError  # noqa: E402
from toolkit.parity import mutants  # noqa: E402
from toolkit.parity.job.pair import TIME_LIMIT  # noqa: E402
from toolkit.parity.mutants import shared_faults  # noqa: E402
from toolkit.recipe import keys, shipped_recipes  # noqa: E402
from toolkit.recipe.recipe import Recipe  # noqa: E402
from toolkit.terminal.failure import UNFORESEEN  # noqa: E402

#: The families, that of recipes which name none first.
FAMILIES = sorted(families.FAMILIES, key=lambda name: not families.family(name).is_default)
DOCUMENTS = (
    *("README.md", "README.zh.md", "recipes/README.md", "recipes/README.zh.md"),
    *("models/README.md", "toolkit/parity/README.md", "toolkit/parity/PAIRS.md", "toolkit/parity/INTERNALS.md"),
    *("toolkit/parity/MEASUREMENTS.md", ".github/CONTRIBUTING.md"),
)
PLACE = re.compile(r"<!-- docs:([a-z._-]+) -->.*?<!-- /docs -->", re.DOTALL)
STATUSES = (0, ParityDrift.exit_status, UserError.exit_status, Inconclusive.exit_status, UNFORESEEN)
#: Kind of fault in the log of measurements -> beginning of the names of the modules that make such faults.
KINDS = {
    **{"optimizer": "training", "training loop": "trainer", "draws and dropout": "draws", "evaluation": "evaluation"},
    **{"batch": "batch", "tokenizer": "tokenizer", "loader": "loading", "new weights": "initialisation"},
}


def current(text: str, values: dict[str, str]) -> str:
    """Return a document with what it quotes as it is now."""
    return PLACE.sub(lambda place: f"<!-- docs:{place[1]} -->{values[place[1]]}<!-- /docs -->", text)


def quoted() -> dict[str, str]:
    """Return by name what stands at the markers of that name."""
    of_one_text, of_several = shared_faults.CLASS_WEIGHTS.values()
    pairs = [(ROOT / "tests" / "pairs" / name).glob("*.py") for name in ("bert", "opt", "t5")]
    recipes = ((f"`{one.name}.yaml`", one.does, one.needs) for one in shipped_recipes.shipped_recipes())
    targets = re.findall(r"^([a-z-]+):.*?## (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    lora = {key: field.default for key, field in keys.LoRA.model_fields.items() if key != "targets"}
    return {
        **{f"faults.{family}": str(len(faults(family))) for family in FAMILIES},
        **{f"operations.{family}": str(sum(bool(one.operation) for one in faults(family))) for family in FAMILIES},
        **{f"harmless.{family}": str(len(mutants.catalogue(family)) - len(faults(family))) for family in FAMILIES},
        **{f"precision.{family}": str(len(mutants.faults_of_precision(family))) for family in FAMILIES},
        "faults.by-kind": faults_by_kind(),
        "faults.class-weights": str(len(of_one_text)),
        "faults.label-weights": str(len(of_several)),
        "faults.optimizers": str(sum(map(len, shared_faults.OPTIMIZERS.values()))),
        "faults.of-heads": str(sum(len(one) for name in FAMILIES for one in mutants.faults_of_heads(name).values())),
        "faults.smoothing": str(len(shared_faults.LABEL_SMOOTHING)),
        "faults.loops": str(sum(map(len, mutants.LOOPS.values()))),
        "pairs.lines": str(max(sum(len(file.read_text().splitlines()) for file in files) for files in pairs)),
        "pairs.time-limit": f"{TIME_LIMIT:.0f}",
        "recipes": table(("recipe", "description", "needs"), recipes),
        "keys": table(("section", "keys"), recipe_keys()),
        **{f"metrics.{kind}": metrics(known) for kind, known in keys.PROBLEM_METRICS.items()},
        **{f"metrics.{task}": metrics(known.LOWER_IS_BETTER) for task, known in tasks() if task != "classification"},
        **{f"lora.{key}": f"{value:g}" for key, value in lora.items()},
        **{f"lora.{family}": code(part(family, "weights").LORA_TARGETS) for family in FAMILIES},
        "classes": table(("family", "class", "head", "description"), classes()),
        "heads": heads(),
        "files.models": table(("file", "description"), files_of_models()),
        "packages": table(("package", "description", "tests"), packages()),
        "make": table(("command", "description"), ((f"`make {target}`", what) for target, what in targets)),
        "statuses": "{} parity, {} drift, {} wrong usage, {} inconclusive, {} unforeseen".format(*STATUSES),
        "statuses.zh": "{} 对齐，{} 漂移，{} 用法错误，{} 无法判定，{} 未预见的问题".format(*STATUSES),
    }


def table(header: tuple[str, ...], rows: Iterable[Iterable[str]]) -> str:
    """Return a table on lines of its own."""
    return "\n" + "".join(f"| {' | '.join(row)} |\n" for row in (header, ["---"] * len(header), *rows))


def code(names: Iterable[str]) -> str:
    """Return names as code, with commas between them."""
    return ", ".join(f"`{name}`" for name in names)


def first_sentence(docstring: str | None) -> str:
    """Return how a docstring begins, as Markdown."""
    paragraph = " ".join((docstring or "").partition("\n\n")[0].split())
    plain = re.sub(r":\w+:`[.~]*([^`]*)`", r"`\1`", paragraph).replace("``", "`")
    return re.split(r"(?<=[.?]) (?=[A-Z])", plain)[0]


def module_doc(path: Path) -> str:
    """Return how the docstring of a file begins, or that of a folder's ``__init__``."""
    file = path / "__init__.py" if path.is_dir() else path
    return first_sentence(ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))))


def faults(family: str, kind: str = "") -> list[mutants.Mutant]:
    """Return the real faults of a family's catalogue, or those of one kind."""
    real = [fault for fault in mutants.catalogue(family) if not fault.harmless]
    return [fault for fault in real if kind in ("", fault.kind)]


def faults_by_kind() -> str:
    """Return how many faults the families share, and have of each kind."""
    different = {one.name for family in FAMILIES for one in faults(family)}
    kinds = (f"{word} {' and '.join(str(len(faults(one, kind))) for one in FAMILIES)}" for word, kind in KINDS.items())
    return f"{len(different)} different faults; by kind {', '.join(kinds)}"


def tasks() -> list[tuple[str, Any]]:
    """Return each task with its module."""
    return [(task, importlib.import_module(f"toolkit.tasks.{task}.task")) for task in keys.TASK_KEYS]


def metrics(names: Iterable[str]) -> str:
    """Return what `train.save_best` may name, the default first."""
    best, *others = names
    return f"`{best}`; {code(others)}"


def recipe_keys() -> Iterator[tuple[str, str]]:
    """Yield each section of a recipe, and its keys with their defaults."""
    fields = {
        name: field for name, field in Recipe.model_fields.items() if not hasattr(field.annotation, "model_fields")
    }
    yield "", ", ".join(with_default(name, field.default) for name, field in fields.items())
    for section in (name for name in Recipe.model_fields if name not in fields):
        kind: Any = Recipe.model_fields[section].annotation
        yield (
            f"`{section}`",
            ", ".join(of_owners(section, key, field.default) for key, field in kind.model_fields.items()),
        )


def of_owners(section: str, key: str, default: object) -> str:
    """Return a key with its defaults, by the tasks, models or optimizers that alone know it."""
    owners = defaultdict(list)
    for owner, known in {**keys.TASK_KEYS, **keys.MODEL_KEYS, **keys.OPTIMIZER_KEYS}.items():
        if f"{section}.{key}" in known:
            owners[with_default(key, known[f"{section}.{key}"])].append(owner)
    return ", ".join(f"{text} ({', '.join(names)})" for text, names in owners.items()) or with_default(key, default)


def with_default(key: str, default: object) -> str:
    """Return a key with its default; alone if that is null, or if the key must be given."""
    if not isinstance(default, str | int | float):
        return f"`{key}`"
    return f"`{key}: {default if isinstance(default, str) else json.dumps(default)}`"


def classes() -> Iterator[tuple[str, ...]]:
    """Yield the classes of each family, their heads, and what they are."""
    for family in FAMILIES:
        package = importlib.import_module(f"models.{family}")
        for name in package.__all__:
            kind = getattr(package, name)
            head = code([kind.head] if getattr(kind, "head", None) else [])
            yield f"`models.{family}`", f"`{name}`", head, first_sentence(inspect.getdoc(kind))


def heads() -> str:
    """Return the heads that tasks use, and of which families."""
    users = defaultdict(set)
    for _, task in tasks():
        users[task.HEAD].update(f"`{name}`" for name in FAMILIES if task.HEAD in families.family(name).heads)
    return "; ".join(f"`{head}` of {' and '.join(sorted(owners))}" for head, owners in users.items())


def files_of_models() -> Iterator[tuple[str, str]]:
    """Yield the files that all families share, and what each is; then the families' own."""
    models = ROOT / "models"
    for folder in ("", "port", "operations", "files"):
        for path in sorted((models / folder).glob("[!_]*.py")):
            yield f"`{path.relative_to(models)}`", module_doc(path)
    for family in FAMILIES:
        yield f"`{family}/`", code(sorted(path.stem for path in (models / family).glob("[!_]*.py")))


def packages() -> Iterator[tuple[str, str, str]]:
    """Yield each package in the order of the import contract, with its description and its tests."""
    contracts = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for above in ("toolkit", "models"):
        (layers,) = re.findall(rf'containers = \["{above}"\]\nlayers = \[(.*?)\]', contracts, re.DOTALL)
        for name in re.findall(r"\w+", layers):
            folder = ROOT / above / name
            package = f"{folder.relative_to(ROOT)}/" if folder.is_dir() else f"{folder.relative_to(ROOT)}.py"
            where = "models" if above == "models" else name
            tests = [place for place in (f"tests/{where}/", f"tests/test_{where}.py") if (ROOT / place).exists()]
            yield f"`{package}`", module_doc(ROOT / package), code(tests)


if __name__ == "__main__":
    values = quoted()
    for document in map(ROOT.joinpath, DOCUMENTS):
        before = document.read_text(encoding="utf-8")
        if (after := current(before, values)) != before:
            document.write_text(after, encoding="utf-8")
            print(f"wrote {document.relative_to(ROOT)}")
