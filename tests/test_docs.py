"""Test that the documents quote the code correctly: counts, lists, tables, and the bounds of the gate."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from toolkit import cli
from toolkit.parity.pairs.map_file import read_map

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("docs", ROOT / ".ci" / "docs.py")
docs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(docs)
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in docs.DOCUMENTS}


@pytest.fixture(scope="module")
def values() -> dict[str, str]:
    return docs.quoted()


@pytest.mark.parametrize("document", TEXTS)
def test_a_document_quotes_the_current_code(document, values):
    outdated_quotations = [
        place[0] for place in docs.PLACE.finditer(TEXTS[document]) if place[0] != docs.current(place[0], values)
    ]
    assert outdated_quotations == [], f"{document} quotes what has changed: run `make docs`"


def test_every_quotation_is_used_and_every_marker_is_closed(values):
    assert {name for text in TEXTS.values() for name in docs.PLACE.findall(text)} == set(values)
    for document, text in TEXTS.items():
        rest = re.sub("`[^`\n]*`", "", docs.PLACE.sub("", text))
        assert "docs -->" not in rest and "<!-- docs" not in rest, document


def test_an_outdated_quotation_is_updated():
    text = "All <!-- docs:faults.ctrl -->121<!-- /docs --> faults."
    assert docs.current(text, {"faults.ctrl": "122"}) == text.replace("121", "122")


@pytest.mark.parametrize("document", TEXTS)
def test_no_line_of_a_paragraph_begins_with_a_marker(document):
    """Markdown reads such a line as HTML: the paragraph ends, and its code and links are not rendered."""
    assert re.findall(r"^[ >-]*<!-- /?docs.*-->.*\S.*$", TEXTS[document], re.MULTILINE) == []


def heading_anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a document."""
    headings = re.findall(r"^#+ (.*)", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", TEXTS)
def test_links_lead_to_files_and_headings_that_exist(document):
    folder = (ROOT / document).parent
    links = [link.partition("#") for link in re.findall(r"\]\(([^)]+)\)", TEXTS[document]) if "://" not in link]
    broken_links = []
    for name, _, anchor in links:
        target = folder / name if name else ROOT / document
        if not target.exists() or (anchor and anchor not in heading_anchors(target.read_text(encoding="utf-8"))):
            broken_links.append(f"{name}#{anchor}")
    assert broken_links == []


# -- commands and examples ------------------------------------------------------------------------------------------

#: Placeholders in the commands of the gate's documents -> valid values.
PLACEHOLDERS = {"MODEL": "reformer", "FOLDER": "folder", "FILE": "file.py", "PATH": "python", "N": "2", "NAME": "name"}


def parity_commands(document: str) -> list[str]:
    """Return the commands `toolkit parity ...` of a document, in blocks and in sentences, with valid values."""
    sentences = re.sub(r"^```.*?^```$", "", TEXTS[document], flags=re.MULTILINE | re.DOTALL)
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", sentences)]
    lines = [re.sub(r"\s+# .*", "", line) for line in TEXTS[document].splitlines()]
    commands = [text for text in (*spans, *lines) if text.startswith("toolkit parity ")]
    return [" ".join(PLACEHOLDERS.get(word, word) for word in text.split()) for text in commands]


@pytest.mark.parametrize("document", ["toolkit/parity/PAIRS.md", "toolkit/parity/MEASUREMENTS.md"])
def test_commands_of_the_gate_have_known_options(document):
    commands = parity_commands(document)
    assert len(commands) > 10
    for command in commands:
        cli.toolkit.main([*shlex.split(command)[1:], "--help"], standalone_mode=False, obj=cli.Settings())


def test_the_example_of_a_map_is_a_map(tmp_path):
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", TEXTS["toolkit/parity/PAIRS.md"], re.MULTILINE | re.DOTALL)
    (tmp_path / "map.yaml").write_text(example, encoding="utf-8")
    parameters, accept, layouts = read_map(tmp_path / "map.yaml")
    assert len(parameters) == 7 and len(accept) == 1 and len(layouts) == 2


# -- the bounds -----------------------------------------------------------------------------------------------------

NAMES, NUMBERS = r"`\w+`(?:, `\w+`)*", r"[\d.e^-]+(?:, [\d.e^-]+)*"


#: Documents of the gate with tables of constants.
BOUNDS = [f"toolkit/parity/{name}.md" for name in ("README", "INTERNALS", "MEASUREMENTS")]


def stated_bounds(document: str) -> dict[tuple[str, str], str]:
    """Return file and name of each constant with a plain number in the tables of a document -> that number."""
    rows = re.findall(rf"^\| ({NAMES}) \| ({NUMBERS}) \| `([\w/]+\.py)` \|", TEXTS[document], re.MULTILINE)
    return {
        (file, name.strip("`")): value.replace("^", "**")
        for names, values, file in rows
        if names.count(",") == values.count(",")  # otherwise a constant has a number for each dtype
        for name, value in zip(names.split(", "), values.split(", "), strict=True)
    }


def assigned_constants(file: str) -> dict[str, ast.expr]:
    """Return the constants in a file of the gate or of another package of the toolkit: name -> expression."""
    expressions: dict[str, ast.expr] = {}
    paths = (ROOT / "toolkit" / "parity" / file, ROOT / "toolkit" / file)
    source = next(path for path in paths if path.exists()).read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign):
            continue
        target, value = node.targets[0], node.value
        pairs = zip(target.elts, value.elts, strict=True) if isinstance(target, ast.Tuple) else [(target, value)]
        expressions |= {name.id: expression for name, expression in pairs}
    return expressions


@pytest.mark.parametrize(("document", "least"), zip(BOUNDS, (15, 6, 12), strict=True))
def test_the_documents_give_the_bounds_of_the_gate(document, least):
    bounds = stated_bounds(document)
    assert len(bounds) >= least
    for (file, name), value in bounds.items():
        assert eval(ast.unparse(assigned_constants(file)[name])) == eval(value), f"{file}: {name}"
