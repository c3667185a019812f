"""Test that the gate judges what trains, line by line.

Every line of the port and of the update that runs in the first steps of a gated recipe has also run in the gate's
process of the port. The test runs `toolkit finetune` once per recipe, the real command with the real gate, under
coverage's tracer. Sizes are small, because they do not decide which lines run; every kind of randomness and
accumulation is on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import coverage
import pytest
from gates import ROOT
from soak import some

#: Code that computes the forward, backward, loss and update; code that stores weights or reads configurations is not
#: included.
COMPUTES = ("models/*.py", "toolkit/training/optimizer.py", "toolkit/data/batches.py")
STORES = (
    "models/files/plain.py",
    "models/files/hub.py",
    "models/*config.py",
    "models/*schema.py",
    "models/families.py",
    "models/*tokeniz*.py",
    "models/files/tensor_file.py",
)

#: File that only the port's process runs.
PORT_FILE = "toolkit/parity/candidate/result.py"
#: Patterns of the files that coverage traces.
TRACED_FILES = ", ".join(f"{ROOT}/{pattern.replace('*', '**/*')}" for pattern in (*COMPUTES, PORT_FILE))

#: Runs the command line and traces it while it trains; of the gate's processes, it traces the port's.
DRIVER = """
import sys
from coverage import Coverage

tracer = Coverage.current()
tracer.stop()
from toolkit import cli
from toolkit.finetune import finetune as train
from toolkit.parity.processes import processes

make_trainer, child = train.make_trainer, processes.child_process

def make_traced(*arguments):
    trainer = make_trainer(*arguments)
    fit = trainer.fit

    def traced(resume_from=None):
        tracer.start()
        tracer.switch_context("training")
        fit(resume_from)
        tracer.switch_context("")
        tracer.stop()

    trainer.fit = traced
    return trainer

def child_traced(command, env, **options):
    if "toolkit.parity.candidate" not in command:
        env = {name: value for name, value in env.items() if not name.startswith("COVERAGE_")}
    return child(command, env=env, **options)

train.make_trainer, processes.child_process = make_traced, child_traced
sys.exit(cli.main())
"""
RCFILE = """
[run]
parallel = true
patch = subprocess, _exit
include = {files}
data_file = {folder}/coverage
"""
SHORT = (
    "train.max_steps=2", "train.epochs=null", "train.eval_steps=1", "train.batch_size=2",
    "train.gradient_accumulation_steps=2", "train.warmup_ratio=0.5", "runtime.device=cpu", "train.baseline=false",
    "parity.dtype=float32",
)  # fmt: skip
REFORMER = (
    "model.config.hidden_dropout_prob=0.1", "model.config.local_attention_probs_dropout_prob=0.1",
    "model.config.lsh_attention_probs_dropout_prob=0.1",
)  # fmt: skip
CTRL = ("model.config.resid_pdrop=0.1", "model.config.embd_pdrop=0.1", "train.eval_batch_size=16", "train.eval_steps=2")
FEW = ("data.limit.train=8", "data.limit.validation=4", "data.limit.test=4")
LANGUAGES = ("data.options.train=4", "data.options.validation=1", "data.options.test=1")
PLAIN = ("model.residual=plain", "model.config.num_hashes=2")
RECIPES = [
    pytest.param("reformer_cls", (*REFORMER, *LANGUAGES, *PLAIN), id="reformer_cls-plain"),
    pytest.param("reformer_cls", (*REFORMER, *LANGUAGES), id="reformer_cls"),
    pytest.param("reformer_qa", (*REFORMER, *FEW, "model.backward=reversible"), id="reformer_qa-reversible"),
    pytest.param("ctrl_lm", CTRL, id="ctrl_lm"),
    pytest.param("ctrl_lm", (*CTRL, "train.recompute=true"), id="ctrl_lm-recompute"),
]


def find_lines(data: coverage.CoverageData, context: str | None = None) -> Iterator[tuple[str, int]]:
    """Return the lines that ran in all contexts or in one."""
    if context is not None:
        data.set_query_context(context)
    for file in data.measured_files():
        name = Path(file).relative_to(ROOT).as_posix()
        if any(fnmatch(name, pattern) for pattern in COMPUTES) and not any(
            fnmatch(name, pattern) for pattern in STORES
        ):
            yield from ((name, line) for line in data.lines(file) or ())


def read_coverage_files(folder: Path) -> Iterator[coverage.CoverageData]:
    for path in sorted(folder.glob("coverage.*")):
        data = coverage.CoverageData(str(path))
        data.read()
        yield data


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "overrides"), some(RECIPES))
def test_every_trained_line_was_judged(recipe, overrides, tmp_path):
    (tmp_path / "driver.py").write_text(DRIVER)
    (tmp_path / "rc").write_text(RCFILE.format(files=TRACED_FILES, folder=tmp_path))
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={tmp_path / 'rc'}", str(tmp_path / "driver.py"),
               "finetune", str(ROOT / "recipes" / f"{recipe}.yaml"), f"train.output_dir={tmp_path / 'run'}", *SHORT,
               *overrides]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    trained_lines: set[tuple[str, int]] = set()
    judged_lines: set[tuple[str, int]] = set()
    for data in read_coverage_files(tmp_path):
        trained_lines |= set(find_lines(data, "training")) if "training" in data.measured_contexts() else set()
        if data.lines(str(ROOT / PORT_FILE)):  # a file that did not run has no lines
            judged_lines |= set(find_lines(data))
    assert len(trained_lines) > 100 and len({file for file, _ in trained_lines}) > 5  # the tracer saw the training
    assert sorted(trained_lines - judged_lines) == []
