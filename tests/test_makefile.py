"""Test `make` on machines with and without an NVIDIA driver, the workflows, and the report of skipped tests.

The driver is a real program on PATH with NVIDIA's output; the programs pip and toolkit record their arguments.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from toolkit.commands.doctor.versions import read_pins
from toolkit.parity.processes import interpreter

ROOT = Path(__file__).resolve().parents[1]
FILES = ("Makefile", "setup.cfg", "constraints.txt", "pyproject.toml")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = re.findall(r"^([a-z-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE)
#: Variables that affect `make` for anyone who runs the tests, also by `make test`.
INHERITED_VARIABLES = (
    "PADDLE",
    "PADDLE_CUDA",
    "PIP_ARGS",
    "TORCH_ARGS",
    "TOOLKIT_REFERENCE_PYTHON",
    "PYTEST_ARGS",
    "WORKERS",
)
MAKES_OWN = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES", "GNUMAKEFLAGS")
DRIVER = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 560.35.03              Driver Version: 560.35.03      {cuda:<21} |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:00:04.0 Off |                    0 |
|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |
|    0   N/A  N/A      4711      C   it's $(touch harm) `touch harm` CUDA          512MiB |
"""
NOTES = '#!/bin/sh\necho "$0 $*" >> "{log}"\n'


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class Machine:
    """A checkout with only a Makefile, on a machine with a chosen driver."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.programs, self.log = folder / "checkout", folder / "programs", folder / "log"
        self.folder.mkdir()
        for name in FILES:
            shutil.copy(ROOT / name, self.folder)
        self.without_driver()

    def without_driver(self) -> None:
        """Add an nvidia-smi without a driver; a missing driver looks like a driver that does not answer."""
        write_program(
            self.programs / "nvidia-smi", '#!/bin/sh\necho "NVIDIA-SMI has failed. CUDA Version: 12.6"\nexit 9\n'
        )

    def with_driver(self, cuda: str = "CUDA Version: 12.6") -> None:
        (self.folder.parent / "answer").write_text(DRIVER.format(cuda=cuda))
        write_program(self.programs / "nvidia-smi", f'#!/bin/sh\ncat "{self.folder.parent / "answer"}"\n')

    def with_environments(self) -> None:
        """Create the environments of `make install`, with programs that record their arguments."""
        for name in (".venv/bin/python", ".venv/bin/toolkit", ".venv-reference/bin/python"):
            write_program(self.folder / name, NOTES.format(log=self.log))

    def make(self, *arguments: str, status: int = 0, **variables: str) -> str:
        """Run `make` and return its output on both streams."""
        environment = {
            name: value for name, value in os.environ.items() if name not in (*INHERITED_VARIABLES, *MAKES_OWN)
        }
        path = f"{self.programs}{os.pathsep}{environment['PATH']}"
        result = subprocess.run(
            ["make", f"PYTHON={sys.executable}", *arguments],
            cwd=self.folder,
            env={**environment, "PATH": path, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == status, result.stdout + result.stderr
        assert not (self.folder / "harm").exists()
        return result.stdout + result.stderr

    def recorded_commands(self) -> list[str]:
        """Return the commands of the environments' programs since the last call, with paths in the checkout."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [line.replace(f"{self.folder}/", "") for line in lines]


@pytest.fixture
def machine(tmp_path) -> Machine:
    return Machine(tmp_path)


# -- which wheel ----------------------------------------------------------------------------------------------------


def test_without_a_driver_everything_is_for_the_cpu(machine):
    output = machine.make("-n", "ci")
    assert "-e '.[cpu,reference,demo,tracking,dev]'" in output and "-m pytest -p xdist -n 2 --dist loadscope" in output
    assert "TOOLKIT_KERNELS=paddle .venv/bin/toolkit parity --model ctrl" in output
    assert output.rstrip().endswith(".ci/unseen.py runs/ci/test/junit.xml runs/ci/test-slow/junit.xml")
    assert not re.search(r"gpu|packages/stable|venv-reference", output)
    assert machine.make("-n", "ci", PADDLE="", PADDLE_CUDA="") == output  # as in an image without these variables


def test_with_a_driver_ci_installs_gates_and_trains_on_the_gpu(machine):
    machine.with_driver()
    output = machine.make("-n", "ci")
    assert "--extra-index-url https://www.paddlepaddle.org.cn/packages/stable/cu126/" in output
    assert "-e '.[gpu,reference,demo,tracking,dev]'" in output and "[cpu" not in output
    assert f"{sys.executable} -m venv .venv-reference" in output
    assert re.search(r"toolkit parity --model reformer .*--device all", output)
    assert re.search(r"-m pytest -p xdist -m gpu --junitxml=runs/ci/gpu/junit.xml", output)
    for lane in ("not slow", "slow"):
        assert f'-m "{lane} and not gpu"' in output  # tests on the GPU run in a separate lane
    assert output.rstrip().endswith("runs/ci/test-slow/junit.xml runs/ci/gpu/junit.xml")


@pytest.mark.parametrize(
    ("driver", "index"),
    [("13.2", "cu130"), ("13.0", "cu130"), ("12.9", "cu129"), ("12.8", "cu126"), ("12.6", "cu126"), ("12.4", "cu118")],
)
@pytest.mark.parametrize("words", ["CUDA Version: ", "CUDA UMD Version: "])
def test_the_index_is_for_the_newest_cuda_that_the_driver_can_run(machine, driver, index, words):
    machine.with_driver(words + driver)
    assert re.findall(r"packages/stable/(\w+)/", machine.make("-n", "install")) == [index]


@pytest.mark.parametrize(("driver", "version"), [("CUDA Version: 11.4", "11.4"), ("CUDA Version: N/A", "unknown")])
def test_a_driver_without_a_wheel_is_reported_with_advice(machine, driver, version):
    machine.with_driver(driver)
    error = machine.make("install", status=2)
    assert f"the driver runs {version}: update the driver" in error and "make PADDLE_CUDA=cu126" in error
    assert not (machine.folder / ".venv").exists()
    assert "packages/stable/cu118/" in machine.make("-n", "install", "PADDLE_CUDA=cu118")


def test_the_command_line_and_the_environment_override_the_driver(machine):
    machine.with_driver()
    assert "'.[cpu," in machine.make("-n", "install", "PADDLE=cpu")
    assert "'.[cpu," in machine.make("-n", "install", PADDLE="cpu")
    machine.without_driver()
    assert "make PADDLE=cpu" in machine.make("install", "PADDLE=gpu", status=2)
    assert "packages/stable/cu129/" in machine.make("-n", "install", PADDLE="gpu", PADDLE_CUDA="cu129")
    assert "PADDLE=tpu: there are cpu and gpu" in machine.make("install", "PADDLE=tpu", status=2)


def test_another_wheel_replaces_the_installed_wheel(machine):
    """All wheels have the folder paddle/, and pip would keep a wheel of the same version for another CUDA."""
    machine.with_environments()
    uninstall_command = ".venv/bin/python -m pip uninstall --quiet --yes paddlepaddle paddlepaddle-gpu"
    machine.make("install")
    arguments = [line.rpartition(" ")[2] for line in machine.recorded_commands()]
    assert arguments == [
        ".[cpu,reference,demo,tracking,dev]",
        "check",
        ".venv/lib",
        "toolkit",
    ]  # the last two: bytecode
    machine.make("install")
    assert machine.recorded_commands() == []
    machine.with_driver()
    machine.make("install")
    first, second, *_, reference = machine.recorded_commands()
    assert first == uninstall_command and "/cu126/ " in second and ".[gpu," in second
    assert reference.startswith(".venv-reference/bin/python -m pip install") and "paddle" not in reference
    machine.make("install", "PADDLE_CUDA=cu118")
    first, second, *_ = machine.recorded_commands()
    assert first == uninstall_command and "/cu118/" in second
    machine.make("install", "PADDLE=cpu")
    first, second, *_ = machine.recorded_commands()
    assert first == uninstall_command and ".[cpu," in second
    assert [path.name for path in (machine.folder / ".venv").glob(".installed*")] == [".installed-cpu"]


def test_the_distribution_of_the_former_name_is_removed_before_the_installation(machine):
    machine.with_environments()
    (machine.folder / ".venv/lib/python3.11/site-packages/toolkit-0.1.0.dist-info").mkdir(parents=True)
    (machine.folder / "toolkit.egg-info").mkdir()
    machine.make("install")
    first, second, *_ = machine.recorded_commands()
    assert first == ".venv/bin/python -m pip uninstall --quiet --yes toolkit" and "-e .[cpu," in second
    assert not (machine.folder / "toolkit.egg-info").exists()


def test_an_interrupted_switch_is_completed(machine):
    machine.with_environments()
    machine.make("install")
    fails = 'case "$*" in *"-e .[gpu"*) exit 1;; esac\n'
    write_program(machine.folder / ".venv/bin/python", NOTES.format(log=machine.log) + fails)
    machine.with_driver()
    machine.make("install", status=2)
    assert list((machine.folder / ".venv").glob(".installed*")) == []
    machine.with_environments()
    machine.recorded_commands()
    machine.make("install")
    assert any(".[gpu," in line for line in machine.recorded_commands())


def test_gpu_targets_use_the_references_own_environment(machine):
    machine.with_environments()
    write_program(
        machine.folder / ".venv/bin/toolkit", f'#!/bin/sh\necho "$TOOLKIT_REFERENCE_PYTHON" >> {machine.log}\n'
    )
    machine.with_driver()
    machine.make("install")
    machine.recorded_commands()
    machine.make("parity")
    assert set(machine.recorded_commands()) == {".venv-reference/bin/python"}
    machine.without_driver()
    machine.make("install")
    machine.recorded_commands()
    machine.make("parity")
    assert set(machine.recorded_commands()) == {""}


def test_the_references_environment_has_all_its_requirements():
    [line] = re.findall(r"\$\(TORCH_ARGS\).*?\n\t +(.*)", (ROOT / "Makefile").read_text())
    assert {*interpreter.REQUIRED_PACKAGES["reference"], "sentencepiece", "protobuf"} <= set(line.split())


def test_the_repository_contains_no_symbolic_links():
    """A link to a virtual environment of one machine makes `make install` fail on every other machine."""
    entries = subprocess.run(["git", "ls-files", "--stage"], cwd=ROOT, capture_output=True, text=True)
    if entries.returncode:
        pytest.skip("not a git checkout, so the committed files are unknown")
    assert len(entries.stdout.splitlines()) > 100
    assert [line for line in entries.stdout.splitlines() if line.startswith("120000")] == []


def test_both_wheels_have_the_same_version():
    pins = read_pins(ROOT / "constraints.txt")
    assert pins["paddlepaddle"] == pins["paddlepaddle-gpu"]
    requirements = re.findall(r"^    (paddlepaddle(?:-gpu)?)(\S+)$", (ROOT / "setup.cfg").read_text(), re.MULTILINE)
    assert requirements == [("paddlepaddle", ">=3.0"), ("paddlepaddle-gpu", ">=3.0")]


# -- runners --------------------------------------------------------------------------------------------------------


def commands(workflow: Path) -> list[list[str]]:
    content = yaml.safe_load(workflow.read_text())
    steps = [step for job in content["jobs"].values() for step in job["steps"]]
    return [shlex.split(line) for step in steps for line in step.get("run", "").splitlines()]


def of_make(words: list[str]) -> list[str]:
    """Return the targets of a `make` command, or an empty list for other programs."""
    return [word for word in words[1:] if "=" not in word] if words[:1] == ["make"] else []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_targets_that_exist_and_keeps_the_reports(workflow):
    targets = [target for words in commands(workflow) for target in of_make(words)]
    assert "ci" in targets and set(targets) <= set(TARGETS)
    [job] = yaml.safe_load(workflow.read_text())["jobs"].values()
    [upload_step] = [step for step in job["steps"] if step.get("uses", "").startswith("actions/upload-artifact@")]
    assert upload_step["if"] == "always()"
    report_folders = set(re.findall(r"runs/(?:ci|parity)(?=/|\n)", (ROOT / "Makefile").read_text()))
    assert {path.partition("/**")[0] for path in upload_step["with"]["path"].split()} == report_folders
    assert {path.rpartition("/")[2] for path in upload_step["with"]["path"].split()} == {"junit.xml", "parity.html"}


def test_the_gpu_workflow_runs_on_an_own_machine_without_foreign_code():
    workflows = {path.stem: yaml.safe_load(path.read_text()) for path in WORKFLOWS}
    assert workflows.keys() == {"cpu", "gpu"}
    assert workflows["gpu"]["jobs"]["ci"]["runs-on"] == ["self-hosted", "gpu"]
    assert (
        "pull_request" in workflows["cpu"][True] and "pull_request" not in workflows["gpu"][True]
    )  # YAML's `on` is true


def test_the_other_files_of_a_runner_name_targets_that_exist():
    image = re.findall(r"^RUN (make .*)$", (ROOT / ".ci/Dockerfile").read_text(), re.MULTILINE)
    script = re.findall(r"^timed (make .*)$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert image and script
    assert {target for line in [*image, *script] for target in of_make(shlex.split(line))} <= set(TARGETS)
    assert subprocess.run(["bash", "-n", ROOT / ".ci/run"], check=False).returncode == 0


# -- what could not be shown ----------------------------------------------------------------------------------------

SKIPS = """
import pytest

@pytest.mark.parametrize("sharding", [1, 2])
@pytest.mark.skip(reason="Paddle sees no GPU here")
def test_a_run_with_sharding_learns(sharding):
    pass

def test_a_file_system_is_full():
    pytest.skip("nothing can be mounted")

@pytest.mark.xfail(reason="lacks digits")
def test_what_is_expected_to_fail():
    assert False

def test_what_passes():
    pass
"""


NEVER = "What no test shows, on any machine:\n"


def test_skips_are_listed_by_reason(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_some.py").write_text(SKIPS)
    report = tmp_path / "junit.xml"
    arguments = ["-p", "no:cacheprovider", "-q", tmp_path, f"--junitxml={report}"]
    assert subprocess.run([sys.executable, "-m", "pytest", *arguments], capture_output=True).returncode == 0
    table = [sys.executable, ROOT / ".ci/unseen.py"]
    output = subprocess.run([*table, report], capture_output=True, text=True, check=True).stdout
    skips, _, never = output.partition(NEVER)
    assert "several machines" in never
    assert skips == (
        "What this machine could not show:\n\n"
        "Paddle sees no GPU here\n"
        "  test_some                       2 tests\n"
        "    a run with sharding learns\n\n"
        "nothing can be mounted\n"
        "  test_some                       1 test\n"
        "    a file system is full\n\n"
    )
    report.write_text("<testsuites><testsuite><testcase classname='a.b' name='c'/></testsuite></testsuites>")
    skips = subprocess.run([*table, report], capture_output=True, text=True, check=True).stdout
    assert skips == f"This machine has run every test.\n\n{NEVER}{never}"
