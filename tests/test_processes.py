"""The two processes of a gate: one that fails ends the other, and is the one that is named."""

from __future__ import annotations

import io
import stat
import sys
from pathlib import Path

import pytest
from rich.console import Console

from toolkit.errors import Inconclusive
from toolkit.parity.job.processes import run_workers


def program(path: Path, body: str) -> str:
    """A script that stands in for a side's Python."""
    path.write_text(f"#!{sys.executable}\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_line_says_how_many_of_several_jobs_are_done(tmp_path):
    jobs = [tmp_path / "0", tmp_path / "1"]
    body = "import pathlib, sys, time\nfor job in sys.argv[3:]:\n time.sleep(1)\n (pathlib.Path(job, {!r})).touch()"
    for job in jobs:
        for side in ("reference", "candidate"):
            (job / side).mkdir(parents=True)
    interpreters = {
        side: program(tmp_path / side, body.format(f"{side}/result.json")) for side in ("reference", "candidate")
    }
    out = io.StringIO()
    run_workers(jobs, Console(file=out, force_terminal=True, width=120), interpreters)
    assert "reference and candidate running, 0 of 2 done, " in out.getvalue()
    assert "running, 1 of 2 done, " in out.getvalue()


@pytest.mark.parametrize("failing", ["reference", "candidate"])
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise SystemExit('no disk is left')", "exit status 1; no disk is left"),
        ("", "exit status 0;"),
        ("import os; os.kill(os.getpid(), 9)", "it was killed, as a system does that has no memory left"),
    ],
)
def test_a_side_that_ends_without_a_result_ends_the_other_at_once(failing, body, words, tmp_path):
    """The other would wait for what it has not left."""
    waiting = {"reference": "candidate", "candidate": "reference"}[failing]
    finished = tmp_path / "finished"
    interpreters = {
        side: program(tmp_path / side, content)
        for side, content in (
            (failing, body),
            (waiting, f"import pathlib, time; time.sleep(30); pathlib.Path({str(finished)!r}).touch()"),
        )
    }
    (tmp_path / "job").mkdir()
    with pytest.raises(Inconclusive) as problem:
        run_workers([tmp_path / "job"], Console(file=io.StringIO()), interpreters)
    assert str(problem.value).startswith(f"parity gate: the {failing} could not run: {words}")
    assert not finished.exists()
