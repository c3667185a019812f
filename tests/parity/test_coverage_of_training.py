"""What trains is what was judged, line by line: every line of the port and of what makes an update that runs in the
first steps of a gated recipe has also run in the gate's own process of the port.

One `toolkit finetune` of each recipe, the real command with the real gate, under coverage's tracer. Sizes are small and
every kind of randomness and accumulation is on; which lines run does not hang on sizes.
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

#: What computes: forward, backward, loss, update. How weights are stored and configurations are read, is no part of it.
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

#: Runs the command line, traced while it trains; of the gate's two processes the port's is traced.
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
    if "toolkit.parity.reference" in command:
        env = {name: value for name, value in env.items() if not name.startswith("COVERAGE_")}
    return child(command, env=env, **options)

train.make_trainer, processes.child_process = make_traced, child_traced
sys.exit(cli.main())
"""
RCFILE = """
[run]
parallel = true
patch = subprocess, _exit
source = {root}/models, {root}/toolkit
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


def lines(data: coverage.CoverageData, context: str | None = None) -> Iterator[tuple[str, int]]:
    """The lines that ran, of all contexts or of one."""
    if context is not None:
        data.set_query_context(context)
    for file in data.measured_files():
        name = Path(file).relative_to(ROOT).as_posix()
        if any(fnmatch(name, one) for one in COMPUTES) and not any(fnmatch(name, one) for one in STORES):
            yield from ((name, line) for line in data.lines(file) or ())


def of_processes(folder: Path) -> Iterator[coverage.CoverageData]:
    for path in sorted(folder.glob("coverage.*")):
        data = coverage.CoverageData(str(path))
        data.read()
        yield data


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "overrides"), some(RECIPES))
def test_every_line_that_trains_was_judged(recipe, overrides, tmp_path):
    (tmp_path / "driver.py").write_text(DRIVER)
    (tmp_path / "rc").write_text(RCFILE.format(root=ROOT, folder=tmp_path))
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={tmp_path / 'rc'}", str(tmp_path / "driver.py"),
               "finetune", str(ROOT / "recipes" / f"{recipe}.yaml"), f"train.output_dir={tmp_path / 'run'}", *SHORT,
               *overrides]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    trained: set[tuple[str, int]] = set()
    judged: set[tuple[str, int]] = set()
    for data in of_processes(tmp_path):
        trained |= set(lines(data, "training")) if "training" in data.measured_contexts() else set()
        if data.lines(str(ROOT / "toolkit/parity/candidate/result.py")):  # of what did not run there are no lines
            judged |= set(lines(data))
    assert len(trained) > 100 and len({file for file, _ in trained}) > 5  # the tracer saw the training
    assert sorted(trained - judged) == []
