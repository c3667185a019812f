"""Test that the sample reports in README.md name current source lines, and that the Chinese README.zh.md is in step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import pytest
import yaml
from pydantic import TypeAdapter

from toolkit.recipe.recipe import Recipe

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCED_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
PLACE = r"(\w+/[\w/]+\.py):(\d+)"


def source_line(path: str, line: str) -> str:
    return (ROOT / path).read_text().splitlines()[int(line) - 1]


@pytest.mark.parametrize(
    ("sample", "expected_pattern"),
    [
        (rf"^DRIFT [\w.]+\.(\w+) \((\w+), {PLACE}", r"self\.{0} = {1}\(|self\.{0} = self\.\w+\("),
        (rf"\.\w+ \((\w+), \S+, class at {PLACE}", r"^class {0}\b"),
    ],
    ids=["a module", "its class"],
)
def test_a_source_location_in_the_readme_is_current(sample, expected_pattern):
    samples = re.findall(sample, README, re.MULTILINE)
    assert samples
    for *names, path, line in samples:
        line_pattern = expected_pattern.format(*names)
        assert re.search(line_pattern, source_line(path, line)), (
            f"README.md: {path}:{line} is {source_line(path, line).strip()!r}"
        )


def test_the_readme_stays_short():
    assert len(README.encode()) <= 15_000


def code_blocks(text: str) -> list[str]:
    """Return the fenced blocks without their comments, which are translated."""
    return [re.sub(r"\s*(^|\s)# .*", "", block, flags=re.MULTILINE) for block in FENCED_BLOCK.findall(text)]


def code_spans(text: str) -> set[str]:
    """Return the commands, keys and files within the sentences."""
    return {" ".join(code_span.split()) for code_span in re.findall(r"`([^`]+)`", FENCED_BLOCK.sub("", text))}


def link_targets(text: str) -> set[str]:
    """Return the targets of links, except for the text in the other language."""
    return {link.replace(".zh.md", ".md") for link in re.findall(r"\]\(([^)]+)\)", text)} - {"README.md"}


def heading_levels(text: str) -> list[str]:
    return re.findall(r"^#+(?= )", FENCED_BLOCK.sub("", text), re.MULTILINE)


@pytest.fixture(params=[".", "recipes"])
def folder(request) -> Path:
    """Return a folder with a README.md and a README.zh.md."""
    return ROOT / request.param


@pytest.fixture
def texts(folder) -> tuple[str, str]:
    """Return the English and the Chinese text."""
    english, chinese = ((folder / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md"))
    return english, chinese


def test_both_readmes_have_the_same_blocks_of_code(texts):
    english, chinese = map(code_blocks, texts)
    for first_name, second_name, second_blocks in (
        ("README.md", "README.zh.md", chinese),
        ("README.zh.md", "README.md", english),
    ):
        for block in english if first_name == "README.md" else chinese:
            assert block in second_blocks, (
                f"{second_name} lacks a block of {first_name} (or it differs there in more than comments):\n{block}"
            )
    assert english == chinese, "the blocks of README.zh.md are in another order than those of README.md"


def test_both_readmes_have_the_same_sections_code_and_links(texts):
    english, chinese = texts
    assert heading_levels(english) == heading_levels(chinese), "README.md and README.zh.md have other sections"
    for extract in (code_spans, link_targets):
        differences = extract(english) ^ extract(chinese)
        assert not differences, f"in one of README.md and README.zh.md alone: {', '.join(sorted(differences))}"


def test_the_readmes_link_to_each_other_and_to_existing_files(folder, texts):
    for text, other_name in zip(texts, ("README.zh.md", "README.md"), strict=True):
        assert f"]({other_name})" in "".join(text.splitlines()[:4])
        for link in re.findall(r"\]\(([^)]+)\)", text):
            if not link.startswith("http"):
                assert (folder / link.partition("#")[0]).exists(), link


#: Document -> the folder to which its paths of source files are relative.
DOCUMENTS = {
    "README.md": ".",
    "recipes/README.md": ".",
    "recipes/README.zh.md": ".",
    "models/README.md": "models",
    "toolkit/commands/bench/README.md": "toolkit/commands/bench",
    ".github/CONTRIBUTING.md": ".",
    **dict.fromkeys(
        (f"toolkit/parity/{name}.md" for name in ("README", "PAIRS", "INTERNALS", "MEASUREMENTS")), "toolkit/parity"
    ),
}
#: Prefixes of paths of source files: the packages, and the folders of models and of the gate.
PATH_PREFIXES = {"toolkit", "models", "tests"} | {
    folder.name for above in ("models", "toolkit/parity") for folder in (ROOT / above).iterdir() if folder.is_dir()
}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_source_files_in_a_document_exist(document):
    """Check paths with a package. Capitals stand for any family; a file without a package may be the user's."""
    text = FENCED_BLOCK.sub("", (ROOT / document).read_text(encoding="utf-8"))
    paths = re.findall(rf"`((?:{'|'.join(PATH_PREFIXES)})/[\w/]+\.(?:py|yaml))\b", text)
    missing = [path for path in paths if not re.search("[A-Z]{2}", path) and not any(
        (ROOT / folder / path).is_file() for folder in (DOCUMENTS[document], "."))]  # fmt: skip
    assert missing == []


def test_the_readme_of_models_names_files_with_their_package():
    text = (ROOT / "models/README.md").read_text(encoding="utf-8")
    assert re.findall(r"`(\w+\.py)`", text) == ["collector.py", "families.py"]


def examples_of_keys() -> list[tuple[str, str, str]]:
    """Return section, key and example of each row in the tables of recipes/README.md; a row may continue a key."""
    text = (ROOT / "recipes/README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:`(\w+)\.(\w+)`)? ?\| `([^`]+)` \|", text, re.MULTILINE)
    examples, key = [], ("", "")
    for section, name, example in rows:
        key = (section, name) if section else key
        examples.append((*key, example))
    return [row for row in examples if row[0] in Recipe.model_fields]


@pytest.mark.parametrize(("section", "name", "example"), examples_of_keys())
def test_the_example_of_a_key_is_a_value_of_this_key(section, name, example):
    field = Recipe.model_fields[section].annotation.model_fields[name]
    adapter = TypeAdapter(Annotated[(field.annotation, *field.metadata, "as in the recipe")])
    assert adapter.validate_python(yaml.safe_load(example)) is not None


def test_the_tables_of_keys_have_examples_for_all_sections():
    sections = [section for section, *_ in examples_of_keys()]
    assert len(sections) > 40 and set(sections) >= {"data", "model", "train", "tracking", "parity"}
