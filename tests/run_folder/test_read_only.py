"""Test a read-only run of another user: commands read it and leave nothing in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_deletions import everything_in
from test_train import recipe_file, train  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
#: Runs a command on a run as another user. It first runs on the user's own run, so that all modules are imported:
#: another user may not be allowed to read the Python of the tests.
COMMAND = f"""
import os, sys
from toolkit import cli

def leave(*arguments):
    try:
        cli.main(list(arguments))
    except SystemExit as left:
        return left.code

own, folder, cache, command, *more = sys.argv[1:]
leave(command, own, *more[:-2] if "--output" in more else more)
print("as nobody", flush=True)
print("as nobody", file=sys.stderr, flush=True)
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
os.environ["TOOLKIT_CACHE"] = cache
sys.exit(leave(command, folder, *more))
"""


@pytest.fixture(scope="module")
def place(recipe_file) -> Iterator[Path]:  # noqa: F811
    """Return a folder that other users may read, unlike the folders of pytest."""
    place = Path(tempfile.mkdtemp(prefix="read-only-"))
    try:
        place.chmod(0o755)
        data = shutil.copytree(recipe_file.parent, place / "data", ignore=shutil.ignore_patterns("cache"))
        data.chmod(0o755)
        train(data / recipe_file.name, place / "run", "train.max_steps=2")
        shutil.copytree(place / "run", place / "own")
        (place / "open").mkdir()
        (place / "open").chmod(0o777)
        for path in ((place / "run"), *(place / "run").rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        if os.geteuid() != 0 and os.access(place / "run", os.W_OK):
            pytest.skip("needs root, or a disk on which chmod takes away the right to write")
        yield place
    finally:
        for path in place.rglob("*"):
            path.chmod(0o777)
        shutil.rmtree(place)


def run_read_only(place: Path, command: str, *more: object, run: str = "run") -> tuple[int, str, str]:
    """Return status, output and errors of a command on a run that cannot be written."""
    arguments = [place / "own", place / run, place / "open" / "cache", command, *more]
    result = subprocess.run(
        [sys.executable, "-c", COMMAND, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    return result.returncode, *(stream.partition("as nobody\n")[2] for stream in (result.stdout, result.stderr))


def test_evaluate_measures_a_read_only_run_and_reports_the_unchanged_file(place):
    initial_contents = everything_in(place / "run")
    status, output, err = run_read_only(place, "evaluate")
    assert (status, err) == (0, ""), err
    assert "accuracy" in output and everything_in(place / "run") == initial_contents
    evaluation_file = place / "run" / "evaluation.json"
    assert f"note: {evaluation_file} is left as it is: {place / 'run'} cannot be written: Permission denied\n" in output


def test_predict_works_on_a_read_only_run(place):
    initial_contents = everything_in(place / "run")
    status, output, err = run_read_only(place, "predict", "--text", "cat dog")
    assert (status, err) == (0, "") and "animals" in output and everything_in(place / "run") == initial_contents


def test_report_suggests_an_output_option_that_works(place):
    initial_contents = everything_in(place / "run")
    status, _, err = run_read_only(place, "report")
    expected_error = (
        f"error: {place / 'run'}: cannot be written: Permission denied; to write the page elsewhere, add --output"
    )
    assert status == 2 and err.startswith(expected_error) and err.count("\n") == 1
    page = place / "open" / "page.html"
    status, output, err = run_read_only(place, "report", "--output", page)
    assert (status, err, output) == (0, "", f"report: {page}\n")
    text = page.read_text(encoding="utf-8")
    assert 'href="../run/predictions-test.csv"' in text
    assert text.replace("../run/", "") == (place / "run" / "report.html").read_text(encoding="utf-8")
    status, _, err = run_read_only(place, "report", "--output", page)
    assert status == 2 and f"{page}: exists" in err
    assert everything_in(place / "run") == initial_contents


def test_report_of_a_read_only_run_without_predictions_is_refused_in_one_line(place):
    shutil.copytree(place / "own", place / "lacking")
    (place / "lacking" / "predictions-test.csv").unlink()
    (place / "lacking").chmod(0o555)
    status, _, err = run_read_only(place, "report", "--output", place / "open" / "other.html", run="lacking")
    assert status == 2
    assert "lacks predictions-test.csv, and cannot be written" in err and err.count("\n") == 1


def test_export_of_a_read_only_run_suggests_another_folder(place):
    status, _, err = run_read_only(place, "export", "--format", "hf")
    assert status == 2 and err.count("\n") == 1 and "Permission denied" in err and "--output" in err
