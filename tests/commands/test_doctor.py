"""`toolkit doctor` on installations and machines that are broken, each as it breaks; a fault names what mends it."""

from __future__ import annotations

import http.server
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path

import pytest
from test_disk import needs_mount, on_small_disk

from toolkit.commands.doctor import doctor as command
from toolkit.commands.doctor import frameworks, gpu, machine, services, versions
from toolkit.commands.doctor.child import run_in_child
from toolkit.commands.doctor.doctor import print_diagnosis, run_checks
from toolkit.commands.doctor.finding import Finding
from toolkit.machine.install import DISTRIBUTION

ROOT = Path(__file__).parents[2]
SITE = Path(sysconfig.get_path("purelib"))


def worst(findings, check: str) -> Finding:
    """The gravest finding of a check."""
    found = [finding for finding in findings if finding.check == check]
    return max(found, key=lambda finding: ("ok", "warn", "fault").index(finding.state))


def distribution(folder: Path, name: str, version: str, *requires: str) -> None:
    """The metadata of an installed distribution, without its files."""
    place = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    place.mkdir(parents=True)
    wanted = "".join(f"Requires-Dist: {line}\n" for line in requires)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{wanted}")


# -- versions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "version", "said", "mend"),
    [
        ("paddlenlp", "2.8.0", "paddlenlp is 2.8.0, and paddle-parity-toolkit needs ", "pip install 'paddlenlp"),
        (
            "transformers",
            "4.30.0",
            "transformers is 4.30.0, and paddle-parity-toolkit needs >=4.44",
            "pip install 'transformers>=4.44",
        ),
        ("tokenizers", "0.22.0", "tokenizers is 0.22.0, and ", "pip install 'tokenizers"),
    ],
)
def test_a_version_that_does_not_fit_is_a_fault_with_the_range_that_does(
    tmp_path, monkeypatch, name, version, said, mend
):
    requires = ["tokenizers<0.22,>=0.21"] if name == "paddlenlp" else []
    distribution(tmp_path, name, version, *requires)
    monkeypatch.syspath_prepend(str(tmp_path))
    (wrong,) = [one for one in versions.check_versions() if one.description.startswith(name)]
    assert wrong.state == "fault" and said in wrong.description and wrong.remedy.startswith(mend)


def test_the_other_distribution_with_a_folder_named_toolkit_is_a_fault(tmp_path, monkeypatch):
    distribution(tmp_path, "toolkit", "0.0.3")
    monkeypatch.syspath_prepend(str(tmp_path))
    (wrong,) = [
        finding for finding in versions.check_versions() if finding.description.startswith("the distribution toolkit")
    ]
    assert wrong.state == "fault" and "toolkit 0.0.3 is installed, which overwrites files" in wrong.description
    assert wrong.remedy.startswith("pip uninstall -y toolkit, then pip install -c constraints.txt -e '.[cpu,")


def test_what_is_missing_below_a_requirement_is_a_fault_and_what_only_an_extra_needs_is_none(tmp_path, monkeypatch):
    distribution(tmp_path, DISTRIBUTION, "9", "aaa>=1", "bbb; extra == 'more'", "ccc>=2; extra == 'more'")
    distribution(tmp_path, "aaa", "1.5", "ddd[deep]", "eee; python_version < '3'")
    distribution(tmp_path, "ccc", "1.0")
    distribution(tmp_path, "ddd", "1.0", "fff; extra == 'deep'", "ggg; extra == 'other'")
    monkeypatch.syspath_prepend(str(tmp_path))
    examined, faults = versions.find_unfit_distributions(DISTRIBUTION)
    assert [fault.description for fault in faults] == [
        "ccc is 1.0, and paddle-parity-toolkit needs >=2",
        "fff, which ddd needs, is not installed",
    ]
    assert examined == 3 and [fault.remedy for fault in faults] == ["pip install 'ccc>=2'", "pip install 'fff'"]


def test_another_version_than_the_pin_is_a_warning_where_the_pins_are(tmp_path, monkeypatch):
    assert worst(versions.check_versions(), "versions").state == "ok"
    (tmp_path / "constraints.txt").write_text("# pins\ntorch==1.0\nnumpy==9 ; python_full_version < '3'\n")
    monkeypatch.setattr(versions, "CHECKOUT", tmp_path)
    found = worst(versions.check_versions(), "versions")
    assert found.state == "warn" and found.description.endswith("(pin 1.0)") and "numpy" not in found.description
    assert found.remedy.startswith("pip install -c constraints.txt -e '.[")


def test_both_wheels_of_paddle_are_a_fault(tmp_path, monkeypatch):
    distribution(tmp_path, "paddlepaddle-gpu", "3.0.0")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = worst(frameworks.check_paddle(), "paddle")
    assert found.state == "fault" and "both installed" in found.description
    assert found.remedy.startswith("pip uninstall -y paddlepaddle paddlepaddle-gpu, then pip install")


# -- the machine ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "fault", "cuda", "seen", "hidden", "state", "said"),
    [
        ([], "", False, 0, None, "ok", "none; runs are on the CPU"),
        (["H100"], "", True, 1, None, "ok", "H100; Paddle sees 1"),
        (["H100"], "", False, 0, None, "warn", "Paddle's wheel is for the CPU"),
        ([], "", True, 0, None, "warn", "no driver (nvidia-smi) here"),
        (["H100"], "", True, 0, None, "fault", "H100; Paddle sees none of them"),
        (["H100"], "", True, 0, "", "warn", "hidden by CUDA_VISIBLE_DEVICES=''"),
        ([], "nvidia-smi: no devices were found", True, 0, None, "fault", "no devices were found"),
    ],
)
def test_the_drivers_view_of_gpus_and_paddles(monkeypatch, gpus, fault, cuda, seen, hidden, state, said):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    found = gpu.gpu_finding(gpus, fault, seen, has_cuda=cuda)
    assert found.state == state and said in found.description and bool(found.remedy) == (state != "ok")


@pytest.mark.parametrize(
    ("script", "gpus", "fault"),
    [
        ("echo 'NVIDIA H100, 550.1, 81559 MiB'", ["NVIDIA H100, 550.1, 81559 MiB"], ""),
        ("echo Failed to initialize NVML; exit 9", [], "nvidia-smi: Failed to initialize NVML"),
    ],
)
def test_the_driver_is_asked_by_its_own_program(tmp_path, monkeypatch, script, gpus, fault):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert gpu.query_driver() == (gpus, fault)


def test_threads_and_flags_that_the_shell_has_set_are_a_warning(monkeypatch):
    for name in ("OMP_NUM_THREADS", "FLAGS_paddle_num_threads", "NVIDIA_TF32_OVERRIDE", "FLAGS_cudnn_deterministic"):
        monkeypatch.delenv(name, raising=False)
    assert worst(frameworks.check_environment(), "threads").state == "ok"
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    found = worst(frameworks.check_environment(), "threads")
    assert found.state == "warn" and "OMP_NUM_THREADS=77 is set" in found.description
    assert found.remedy == "unset OMP_NUM_THREADS NVIDIA_TF32_OVERRIDE"


def test_little_memory_is_a_warning(monkeypatch):
    monkeypatch.setattr(machine, "available_memory", lambda: (1_000_000_000, 4_000_000_000))
    found = worst(machine.check_memory(), "memory")
    assert found.state == "warn" and "1.0 GB of 4.0 GB are free" in found.description


def test_a_cache_that_cannot_be_written_is_a_fault_that_names_the_variable(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOOLKIT_CACHE", "/proc/cache")
    found = worst(machine.check_disk(), "disk")
    assert found.state == "fault" and "the cache, /proc/cache: cannot be written" in found.description
    assert found.remedy.startswith("export TOOLKIT_CACHE=") and list(tmp_path.iterdir()) == []


@needs_mount
def test_a_disk_without_room_is_a_fault_that_says_where(tmp_path):
    found = "[print(f.state, f.description, '|', f.remedy) for f in machine.check_disk()]"
    code = f"from toolkit.commands.doctor import machine; {found}"
    script = f'cd "$0"; "{sys.executable}" -c "{code}"'
    disk = tmp_path / "disk"
    done = on_small_disk(disk, "1m", script, TMPDIR=str(disk), TOOLKIT_CACHE=str(disk / "c"), PYTHONPATH=str(ROOT))
    lines = done.stdout.splitlines()
    assert len(lines) == 3 and all(line.startswith("fault ") and " | make room, or " in line for line in lines), done


# -- what only a child process can tell -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "failed"),
    [
        ("say(a=1)", ""),
        ("say(a=1); print('noise'); import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("say(a=1); import os; os.kill(os.getpid(), 11)", "the process was ended by SIGSEGV"),
        ("say(a=1); import time; time.sleep(60)", "no answer within 1 s"),
        ("say(a=1); import os; os._exit(3)", "exit status 3"),
    ],
)
def test_however_a_child_ends_is_an_answer(code, failed):
    answer = run_in_child(code, timeout_seconds=1.0 if "sleep" in code else 60.0)
    assert (answer.values, answer.failure) == ({"a": 1}, failed)


def test_a_paddle_that_crashes_when_it_is_imported_is_a_fault(monkeypatch):
    monkeypatch.setattr(frameworks, "PADDLE", "import os; os.kill(os.getpid(), 11)")
    found = worst(frameworks.check_paddle(), "paddle")
    assert (
        found.state == "fault"
        and "does not work: the process was ended by SIGSEGV" in found.description
        and found.remedy
    )


def test_a_check_that_fails_is_a_fault_and_the_others_go_on(monkeypatch, capsys):
    def fails(*_):
        raise RuntimeError("[red]broken\nin two lines")
        yield

    for name in ("paddle", "paddlenlp", "reference", "hub", "wandb", "versions"):
        monkeypatch.setattr(command, f"check_{name}", fails)
    monkeypatch.setenv("COLUMNS", "400")
    assert print_diagnosis(network=False, reference_python=None) == 1
    said = capsys.readouterr().out
    assert said.count("cannot be examined: RuntimeError: [red]broken in two lines") == 6
    assert "temporary files" in said and "6 faults, " in said


def test_a_reference_python_that_is_none_or_lacks_torch_is_a_fault(tmp_path):
    lacking = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys._base_executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    for path, said in ((tmp_path / "none", "no such interpreter"), (lacking, "lacks torch, transformers")):
        (found,) = command.run_check("reference", lambda path=path: frameworks.check_reference(str(path)))
        assert found.state == "fault" and said in found.description and found.remedy


# -- the hub --------------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch):
    """A mirror on this machine; what it was asked."""
    asked = []

    class Mirror(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            asked.append(self.path)
            self.send_response(404)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Mirror) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield asked
        server.shutdown()


def test_the_hub_is_asked_only_if_that_is_wanted(hub, monkeypatch):
    found = worst(services.check_hub(network=False), "hub")
    assert (found.state, hub) == ("ok", []) and found.description.startswith("mirror http://127.0.0.1:")
    assert "answers" in worst(services.check_hub(network=True), "hub").description and len(hub) == 1
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = worst(services.check_hub(network=True), "hub")
    assert "offline (HF_HUB_OFFLINE)" in found.description and len(hub) == 1


@pytest.mark.parametrize(
    ("endpoint", "state", "said"),
    [
        ("http://127.0.0.1:9", "warn", "does not answer: "),
        ("hf-mirror.com", "fault", "HF_ENDPOINT=hf-mirror.com is no address"),
    ],
)
def test_a_mirror_that_is_none(monkeypatch, endpoint, state, said):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    found = worst(services.check_hub(network=True), "hub")
    assert found.state == state and said in found.description and "HF_ENDPOINT" in found.remedy


def test_a_wandb_whose_settings_are_wrong_is_a_warning(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "onlin")
    found = worst(services.check_wandb(), "wandb")
    assert found.state == "warn" and "does not start" in found.description


# -- the whole command, on installations that are broken ------------------------------------------------------------


@pytest.fixture
def venv(tmp_path) -> Path:
    """A virtual environment with what is installed here, in which things can be missing and broken."""
    subprocess.run([sys._base_executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    for path in SITE.iterdir():
        (site / path.name).symlink_to(path)
    return site


#: By make, and by what this process imports.
SET_HERE = ("OMP_NUM_THREADS", "TOOLKIT_KERNELS")


def run_doctor(site: Path, **environment: str) -> subprocess.CompletedProcess:
    python = site.parents[2] / "bin" / "python"
    plain = {name: value for name, value in os.environ.items() if name not in SET_HERE}
    return subprocess.run(
        [python, "-m", "toolkit", "doctor"], capture_output=True, text=True, check=False, cwd=ROOT,
        env={**plain, "PYTHONPATH": str(ROOT), "COLUMNS": "300", "HF_HUB_OFFLINE": "1", **environment},
    )  # fmt: skip


def rows(done: subprocess.CompletedProcess) -> dict[str, list[str]]:
    """Check -> state, what and mend of its gravest finding."""
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        if line.startswith("│"):
            check, *cells = [cell.strip() for cell in line.strip("│").split("│")]
            if check not in found or cells[0] == "fault":
                found[check] = cells
    return found


@pytest.mark.slow
def test_an_installation_without_torch(venv):
    for path in venv.glob("torch*"):
        path.unlink()
    done = run_doctor(venv)
    found = rows(done)
    assert done.returncode == 1 and done.stderr == ""
    assert found["reference"][:2] == ["fault", "torch is not installed, so no gate can run"]
    assert "[reference]" in found["reference"][2] and "--reference-python" in found["reference"][2]
    assert {check: cells[0] for check, cells in found.items() if check != "reference"}["paddle"] == "ok"
    assert done.stdout.rstrip().endswith("1 fault, no warnings"), done.stdout


@pytest.mark.slow
def test_an_installation_with_wrong_versions_and_a_paddle_that_crashes(venv):
    for name, version in (("transformers", "4.30.0"), ("paddlenlp", "2.8.0")):
        (old,) = venv.glob(f"{name}-*.dist-info")
        old.unlink()
        distribution(venv, name, version)
    (venv / "paddle").unlink()
    (venv / "paddle").mkdir()
    (venv / "paddle" / "__init__.py").write_text("import os; os.kill(os.getpid(), 11)")
    done = run_doctor(venv)
    assert done.returncode == 1 and done.stderr == ""
    assert (
        "transformers is 4.30.0, and paddle-parity-toolkit needs" in done.stdout
        and "paddlenlp is 2.8.0, and" in done.stdout
    )
    found = rows(done)
    assert found["paddle"][0] == "fault" and "ended by SIGSEGV" in found["paddle"][1]
    assert found["paddlenlp"][0] == "fault" and found["reference"][0] == "ok"


@pytest.mark.slow
def test_an_installation_without_almost_anything_and_a_cache_that_cannot_be_written(venv):
    kept = ("click", "__editable__", "toolkit", "_virtualenv")
    for path in venv.iterdir():
        if not path.name.startswith(kept):
            path.unlink() if path.is_symlink() else shutil.rmtree(path)
    done = run_doctor(venv, TOOLKIT_CACHE="/proc/cache")
    assert done.returncode == 1 and "Traceback" not in done.stdout + done.stderr
    assert "fault  paddle: Paddle is not installed" in done.stdout and "fault  rich: " in done.stdout
    assert "the cache, /proc/cache: cannot be written" in done.stdout


def test_nothing_heavy_is_imported_by_the_command_itself():
    code = (
        "import sys; from toolkit.commands.doctor import doctor, machine\n"
        "for check in (machine.check_memory, machine.check_disk, machine.check_caches): list(check())\n"
        "print([name for name in ('paddle', 'torch', 'datasets', 'wandb', 'paddlenlp') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"


def test_every_check_is_in_the_table(monkeypatch):
    names = [name.removeprefix("check_") for name in vars(command) if name.startswith("check_")]
    for name in names:
        monkeypatch.setattr(command, f"check_{name}", lambda *_, name=name: iter([Finding(name, "ok", "")]))
    assert sorted(one.check for one in run_checks(None, network=False)) == sorted(names) and len(names) == 10
