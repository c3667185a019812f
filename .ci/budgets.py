"""Check the number of lines, vague names and unidiomatic phrases of each package and of the tests against a maximum.

    python .ci/budgets.py             fail if a package exceeds a maximum of budgets.json; list its names and phrases
    python .ci/budgets.py --lower     lower each maximum to the current count; no maximum is ever raised

Lines are code and blank lines. Docstrings and comments do not count, because nobody should save a sentence. A vague
name is a single past participle, or for a parameter a pronoun, an adverb or a preposition. The phrases are
constructions that a reader has to read twice.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAXIMA_FILE = Path(__file__).with_name("budgets.json")
KINDS = ("lines", "names", "phrases")
#: Largest number of names and phrases in a failure's list.
MAX_LISTED = 40
#: Budget of lines for groups of packages, which the maxima are to reach.
BUDGETS = {
    ("toolkit",): 700, ("toolkit/commands",): 5_000, ("toolkit/finetune",): 2_300, ("toolkit/parity",): 19_500,
    ("toolkit/training",): 1_050, ("toolkit/tasks",): 4_600, ("toolkit/data", "toolkit/files"): 2_800,
    ("toolkit/run_folder", "toolkit/recipe"): 1_900, ("toolkit/machine", "toolkit/terminal", "toolkit/pages"): 1_150,
    ("models",): 6_900, ("tests",): 32_000,
}  # fmt: skip
IRREGULAR_PARTICIPLES = re.compile(
    "begun|bound|built|caught|chosen|done|drawn|felt|found|given|gone|grown|held|hidden|kept|known|laid|led|left|lent|"
    "lost|made|meant|met|said|seen|sent|shown|shut|split|spoken|stood|sought|taken|taught|thought|told|understood|worn|"
    "written"
)
NOT_PARTICIPLES = {"embed", "feed", "need", "seed", "speed", "unused", "used"}
VAGUE_PARAMETERS = re.compile(
    "aside|before|beside|else|few|here|into|like|many|most|much|nothing|ones?|others?|over|same|some|such|that|then|"
    "there|this|those|thus|under|what|whatever|where|which|whole?|whose"
)
PHRASES = re.compile(
    r"\bwhat (?:is|was|are|were|it|they|the|a|an|each|this|its|has|have|comes|goes|makes|\w+ed)\b"
    r"|\b(?:that|those) of\b|\b(?:of|by|in|on|to|from|with|for|at) (?:which|whose|whom)\b|\bbeside\b"
    r"|\bby (?:itself|themselves)\b|\bof (?:its|their|his) own\b|\b(?:is|are|was|were|be) no \w+"
    r"|\bin (?:place of|its place|their place)\b|\belse[.;,:)]|\ball (?:that|of it|of them|else)\b"
    r"|\b[Ww]here (?:it|they|there|no|this|that|one|both|each|its|all|nothing)\b|\b(?:says?|said|tells?|told)\b"
    r"|\b(?:anew|begun|alike|mend(?:s|ed)?|lest|thereof|nobody|somebody|once more)\b|\bones\b"
    r"|\b(?:a|an|the|each|any|no|such|that|this|every|first|last|other|same|\w+er) one\b"
    r"|\b(?:is|are|was|were|be) made\b"
)


def is_vague(kind: str, name: str) -> bool:
    """Return whether a name is a single past participle, or a parameter's name that is a pronoun or the like."""
    word = name.strip("_").lower()
    if kind == "parameter" and VAGUE_PARAMETERS.fullmatch(word):
        return True
    is_regular = word.endswith("ed") and len(word) > 4 and not word.endswith(("seed", "embed"))
    return "_" not in word and word not in NOT_PARTICIPLES and bool(is_regular or IRREGULAR_PARTICIPLES.fullmatch(word))


def named_nodes(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """Yield kind, name and line of each parameter, function, class and variable."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield "function", node.name, node.lineno
            yield from (("parameter", one.arg, one.lineno) for one in (*node.args.args, *node.args.kwonlyargs))
        elif isinstance(node, ast.ClassDef):
            yield "class", node.name, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield "variable", node.id, node.lineno


def texts_of(source: str, tree: ast.AST) -> Iterator[tuple[int, int, str]]:
    """Yield the first line, the number of lines and the text of each docstring and comment."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if docstring := ast.get_docstring(node):
            statement = node.body[0]
            yield statement.lineno, (statement.end_lineno or 0) - statement.lineno + 1, docstring
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], int(token.line.lstrip().startswith("#")), token.string.lstrip("#: ")


def count_packages() -> tuple[dict[str, Counter[str]], dict[str, list[str]]]:
    """Return the counts of each package by kind, and a list of its vague names and phrases with file and line."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted([path for folder in ("models", "tests", "toolkit") for path in ROOT.glob(f"{folder}/**/*.py")]):
        file = path.relative_to(ROOT)
        depth = 1 if file.parts[0] == "tests" else 3 if file.parts[:2] == ("toolkit", "parity") else 2
        package = "/".join(file.parent.parts[:depth])
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        counts[package]["lines"] += source.count("\n")
        for kind, name, line in named_nodes(tree):
            if is_vague(kind, name):
                counts[package]["names"] += 1
                places[package].append(f"{file}:{line}: the {kind} {name}")
        for line, num_lines, text in texts_of(source, tree):
            counts[package]["lines"] -= num_lines
            for match in PHRASES.finditer(text):
                counts[package]["phrases"] += 1
                places[package].append(f"{file}:{line}: {match[0]!r}")
    return counts, places


def main() -> None:
    """Print a row for each package; exit with status 1 if a package exceeds a maximum."""
    counts, places = count_packages()
    maxima = json.loads(MAXIMA_FILE.read_text()) if MAXIMA_FILE.exists() else {}
    if "--lower" in sys.argv:
        maxima = {
            package: {kind: min(counts[package][kind], maxima.get(package, {}).get(kind, 10**9)) for kind in KINDS}
            for package in sorted(counts)
        }
        rows = ",\n".join(f"  {json.dumps(package)}: {json.dumps(maximum)}" for package, maximum in maxima.items())
        MAXIMA_FILE.write_text(f"{{\n{rows}\n}}\n")
    print(f"{'package':34}" + "".join(f"{kind:>9} {'max':>6}" for kind in KINDS))
    failures = []
    for package in sorted(counts):
        maximum = {kind: maxima.get(package, {}).get(kind, 0) for kind in KINDS}
        print(f"{package:34}" + "".join(f"{counts[package][kind]:9,} {maximum[kind]:6,}" for kind in KINDS))
        excess = [kind for kind in KINDS if counts[package][kind] > maximum[kind]]
        if excess:
            failures.append(f"{package}: more {' and '.join(excess)} than its maximum in .ci/budgets.json")
            failures += places[package][:MAX_LISTED] if excess != ["lines"] else []
    print(f"{'all':34}" + "".join(f"{sum(count[kind] for count in counts.values()):9,} {'':6}" for kind in KINDS))
    for packages, budget in BUDGETS.items():
        is_exact = packages == ("toolkit",)  # the files of the folder itself, not the packages in it
        num_lines = sum(
            count["lines"]
            for package, count in counts.items()
            if package in packages or (not is_exact and package.startswith(tuple(f"{name}/" for name in packages)))
        )
        print(f"{', '.join(packages):60}{num_lines:9,} lines, budget {budget:6,}")
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
