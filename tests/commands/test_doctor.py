"""Test `toolkit doctor` on broken installations and machines; each fault names its remedy."""

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
from toolkit.commands.doctor.child import Answer, run_in_child
from toolkit.commands.doctor.doctor import print_diagnosis, run_checks
from toolkit.commands.doctor.finding import Finding
from toolkit.machine.install import DISTRIBUTION

ROOT = Path(__file__).parents[2]
SITE = Path(sysconfig.get_path("purelib"))


def worst_finding(findings, check: str) -> Finding:
    """Return the most serious finding of a check."""
    findings_of_check = [finding for finding in findings if finding.check == check]
    return max(findings_of_check, key=lambda finding: ("ok", "warn", "fault").index(finding.state))


def add_distribution(folder: Path, name: str, version: str, *requires: str) -> None:
    """Write the metadata of an installed distribution, without its files."""
    place = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    place.mkdir(parents=True)
    requirement_lines = "".join(f"Requires-Dist: {line}\n" for line in requires)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requirement_lines}")


# -- versions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "version", "expected_text", "expected_remedy"),
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
def test_an_unsuitable_version_is_a_fault_with_the_supported_range(
    tmp_path, monkeypatch, name, version, expected_text, expected_remedy
):
    requires = ["tokenizers<0.22,>=0.21"] if name == "paddlenlp" else []
    add_distribution(tmp_path, name, version, *requires)
    monkeypatch.syspath_prepend(str(tmp_path))
    (fault_finding,) = [finding for finding in versions.check_versions() if finding.description.startswith(name)]
    assert (
        fault_finding.state == "fault"
        and expected_text in fault_finding.description
        and fault_finding.remedy.startswith(expected_remedy)
    )


def test_the_other_distribution_with_a_folder_named_toolkit_is_a_fault(tmp_path, monkeypatch):
    add_distribution(tmp_path, "toolkit", "0.0.3")
    monkeypatch.syspath_prepend(str(tmp_path))
    (fault_finding,) = [
        finding for finding in versions.check_versions() if finding.description.startswith("the distribution toolkit")
    ]
    assert (
        fault_finding.state == "fault"
        and "toolkit 0.0.3 is installed, which overwrites files" in fault_finding.description
    )
    assert fault_finding.remedy.startswith("pip uninstall -y toolkit, then pip install -c constraints.txt -e '.[cpu,")


def test_only_missing_packages_of_requirements_are_faults(tmp_path, monkeypatch):
    add_distribution(tmp_path, DISTRIBUTION, "9", "aaa>=1", "bbb; extra == 'more'", "ccc>=2; extra == 'more'")
    add_distribution(tmp_path, "aaa", "1.5", "ddd[deep]", "eee; python_version < '3'")
    add_distribution(tmp_path, "ccc", "1.0")
    add_distribution(tmp_path, "ddd", "1.0", "fff; extra == 'deep'", "ggg; extra == 'other'")
    monkeypatch.syspath_prepend(str(tmp_path))
    num_examined, faults = versions.find_unfit_distributions(DISTRIBUTION)
    assert [fault.description for fault in faults] == [
        "ccc is 1.0, and paddle-parity-toolkit needs >=2",
        "fff, which ddd needs, is not installed",
    ]
    assert num_examined == 3 and [fault.remedy for fault in faults] == ["pip install 'ccc>=2'", "pip install 'fff'"]


def test_another_version_than_the_pin_is_a_warning_in_a_checkout(tmp_path, monkeypatch):
    assert worst_finding(versions.check_versions(), "versions").state == "ok"
    (tmp_path / "constraints.txt").write_text("# pins\ntorch==1.0\nnumpy==9 ; python_full_version < '3'\n")
    monkeypatch.setattr(versions, "CHECKOUT", tmp_path)
    finding = worst_finding(versions.check_versions(), "versions")
    assert finding.state == "warn" and finding.description.endswith("(pin 1.0)") and "numpy" not in finding.description
    assert finding.remedy.startswith("pip install -c constraints.txt -e '.[")


def test_both_wheels_of_paddle_are_a_fault(tmp_path, monkeypatch):
    add_distribution(tmp_path, "paddlepaddle-gpu", "3.0.0")
    monkeypatch.syspath_prepend(str(tmp_path))
    finding = worst_finding(frameworks.check_paddle(), "paddle")
    assert finding.state == "fault" and "both installed" in finding.description
    assert finding.remedy.startswith("pip uninstall -y paddlepaddle paddlepaddle-gpu, then pip install")


# -- the machine ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "fault", "cuda", "num_visible", "visible_devices", "state", "expected_text"),
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
def test_gpus_of_the_driver_and_of_paddle_are_compared(
    monkeypatch, gpus, fault, cuda, num_visible, visible_devices, state, expected_text
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible_devices is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible_devices)
    finding = gpu.gpu_finding(gpus, fault, num_visible, has_cuda=cuda)
    assert finding.state == state and expected_text in finding.description and bool(finding.remedy) == (state != "ok")


@pytest.mark.parametrize(
    ("script", "gpus", "fault"),
    [
        ("echo 'NVIDIA H100, 550.1, 81559 MiB'", ["NVIDIA H100, 550.1, 81559 MiB"], ""),
        ("echo Failed to initialize NVML; exit 9", [], "nvidia-smi: Failed to initialize NVML"),
    ],
)
def test_the_driver_is_queried_by_its_own_program(tmp_path, monkeypatch, script, gpus, fault):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert gpu.query_driver() == (gpus, fault)


def test_threads_and_flags_in_the_environment_are_a_warning(monkeypatch):
    for name in ("OMP_NUM_THREADS", "FLAGS_paddle_num_threads", "NVIDIA_TF32_OVERRIDE", "FLAGS_cudnn_deterministic"):
        monkeypatch.delenv(name, raising=False)
    assert worst_finding(frameworks.check_environment(), "threads").state == "ok"
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    finding = worst_finding(frameworks.check_environment(), "threads")
    assert finding.state == "warn" and "OMP_NUM_THREADS=77 is set" in finding.description
    assert finding.remedy == "unset OMP_NUM_THREADS NVIDIA_TF32_OVERRIDE"


def test_little_memory_is_a_warning(monkeypatch):
    monkeypatch.setattr(machine, "available_memory", lambda: (1_000_000_000, 4_000_000_000))
    finding = worst_finding(machine.check_memory(), "memory")
    assert finding.state == "warn" and "1.0 GB of 4.0 GB are free" in finding.description


def test_a_cache_that_cannot_be_written_is_a_fault_that_names_the_variable(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOOLKIT_CACHE", "/proc/cache")
    finding = worst_finding(machine.check_disk(), "disk")
    assert finding.state == "fault" and "the cache, /proc/cache: cannot be written" in finding.description
    assert finding.remedy.startswith("export TOOLKIT_CACHE=") and list(tmp_path.iterdir()) == []


@needs_mount
def test_a_full_disk_is_a_fault_that_names_the_folder(tmp_path):
    code_line = "[print(f.state, f.description, '|', f.remedy) for f in machine.check_disk()]"
    code = f"from toolkit.commands.doctor import machine; {code_line}"
    script = f'cd "$0"; "{sys.executable}" -c "{code}"'
    disk = tmp_path / "disk"
    result = on_small_disk(disk, "1m", script, TMPDIR=str(disk), TOOLKIT_CACHE=str(disk / "c"), PYTHONPATH=str(ROOT))
    lines = result.stdout.splitlines()
    assert len(lines) == 3 and all(line.startswith("fault ") and " | make room, or " in line for line in lines), result


# -- checks in a child process --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "expected_failure"),
    [
        ("say(a=1)", ""),
        ("say(a=1); print('noise'); import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("say(a=1); import os; os.kill(os.getpid(), 11)", "the process was ended by SIGSEGV"),
        ("say(a=1); import time; time.sleep(60)", "no answer within 1 s"),
        ("say(a=1); import os; os._exit(3)", "exit status 3"),
    ],
)
def test_any_end_of_a_child_process_is_a_result(code, expected_failure):
    answer = run_in_child(code, timeout_seconds=1.0 if "sleep" in code else 60.0)
    assert (answer.values, answer.failure) == ({"a": 1}, expected_failure)


def test_a_paddle_that_crashes_on_import_is_a_fault(monkeypatch):
    monkeypatch.setattr(frameworks, "PADDLE", "import os; os.kill(os.getpid(), 11)")
    finding = worst_finding(frameworks.check_paddle(), "paddle")
    assert (
        finding.state == "fault"
        and "does not work: the process was ended by SIGSEGV" in finding.description
        and finding.remedy
    )


def test_an_inaccurate_compiled_loop_is_a_fault_with_its_remedy(monkeypatch):
    values = {"count": 25, "faults": ["norm_rows on 300 x 64: off by 9 units of rounding (RMS)"]}
    monkeypatch.setattr(frameworks, "run_in_child", lambda code: Answer(values, ""))
    (finding,) = frameworks.check_loops()
    assert finding.state == "fault" and finding.description.startswith("the compiled loop norm_rows on 300 x 64: off")
    assert finding.remedy == "export TOOLKIT_KERNELS=composed"
    monkeypatch.setattr(frameworks, "run_in_child", lambda code: Answer({}, "ended by SIGILL"))
    (finding,) = frameworks.check_loops()
    assert finding.state == "fault" and "do not work: ended by SIGILL" in finding.description


def test_the_compiled_loops_of_this_processor_are_accurate():
    (finding,) = frameworks.check_loops()
    assert finding.state == "ok" and "compiled loops are" in finding.description


def test_a_failing_check_is_a_fault_and_the_others_continue(monkeypatch, capsys):
    def fails(*_, **__):
        raise RuntimeError("[red]broken\nin two lines")
        yield

    for name in ("paddle", "paddlenlp", "reference", "hub", "wandb", "versions"):
        monkeypatch.setattr(command, f"check_{name}", fails)
    monkeypatch.setenv("COLUMNS", "400")
    assert print_diagnosis(network=False, reference_python=None) == 1
    output = capsys.readouterr().out
    assert output.count("cannot be examined: RuntimeError: [red]broken in two lines") == 6
    assert "temporary files" in output and "6 faults, " in output


def test_a_missing_reference_python_or_torch_is_a_fault(tmp_path):
    lacking = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys._base_executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    for path, expected_text in ((tmp_path / "none", "no such interpreter"), (lacking, "lacks torch, transformers")):
        (finding,) = command.run_check("reference", lambda path=path: frameworks.check_reference(str(path)))
        assert finding.state == "fault" and expected_text in finding.description and finding.remedy


# -- the hub --------------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch):
    """Run a mirror on this machine, and return the list of its requests."""
    request_paths = []

    class Mirror(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            request_paths.append(self.path)
            self.send_response(404)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Mirror) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield request_paths
        server.shutdown()


def test_the_hub_is_queried_only_on_request(hub, monkeypatch):
    finding = worst_finding(services.check_hub(network=False), "hub")
    assert (finding.state, hub) == ("ok", []) and finding.description.startswith("mirror http://127.0.0.1:")
    assert "answers" in worst_finding(services.check_hub(network=True), "hub").description and len(hub) == 1
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    finding = worst_finding(services.check_hub(network=True), "hub")
    assert "offline (HF_HUB_OFFLINE)" in finding.description and len(hub) == 1


@pytest.mark.parametrize(
    ("endpoint", "state", "expected_text"),
    [
        ("http://127.0.0.1:9", "warn", "does not answer: "),
        ("hf-mirror.com", "fault", "HF_ENDPOINT=hf-mirror.com is no address"),
    ],
)
def test_an_invalid_mirror_is_reported(monkeypatch, endpoint, state, expected_text):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    finding = worst_finding(services.check_hub(network=True), "hub")
    assert finding.state == state and expected_text in finding.description and "HF_ENDPOINT" in finding.remedy


def test_wrong_settings_of_wandb_are_a_warning(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "onlin")
    finding = worst_finding(services.check_wandb(), "wandb")
    assert finding.state == "warn" and "does not start" in finding.description


# -- the whole command, on installations that are broken ------------------------------------------------------------


@pytest.fixture
def venv(tmp_path) -> Path:
    """Return a virtual environment with the installed packages, which tests can remove and break."""
    subprocess.run([sys._base_executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    for path in SITE.iterdir():
        (site / path.name).symlink_to(path)
    return site


#: Variables that make or the imports of this process set.
SET_HERE = ("OMP_NUM_THREADS", "TOOLKIT_KERNELS")


def run_doctor(site: Path, **environment: str) -> subprocess.CompletedProcess:
    python = site.parents[2] / "bin" / "python"
    plain = {name: value for name, value in os.environ.items() if name not in SET_HERE}
    return subprocess.run(
        [python, "-m", "toolkit", "doctor"], capture_output=True, text=True, check=False, cwd=ROOT,
        env={**plain, "PYTHONPATH": str(ROOT), "COLUMNS": "300", "HF_HUB_OFFLINE": "1", **environment},
    )  # fmt: skip


def rows(result: subprocess.CompletedProcess) -> dict[str, list[str]]:
    """Return state, description and remedy of the most serious finding of each check."""
    cells_by_check: dict[str, list[str]] = {}
    for line in result.stdout.splitlines():
        if line.startswith("│"):
            check, *cells = [cell.strip() for cell in line.strip("│").split("│")]
            if check not in cells_by_check or cells[0] == "fault":
                cells_by_check[check] = cells
    return cells_by_check


@pytest.mark.slow
def test_an_installation_without_torch(venv):
    for path in venv.glob("torch*"):
        path.unlink()
    result = run_doctor(venv)
    cells_by_check = rows(result)
    assert result.returncode == 1 and result.stderr == ""
    assert cells_by_check["reference"][:2] == ["fault", "torch is not installed, so no gate can run"]
    assert "[reference]" in cells_by_check["reference"][2] and "--reference-python" in cells_by_check["reference"][2]
    assert {check: cells[0] for check, cells in cells_by_check.items() if check != "reference"}["paddle"] == "ok"
    assert result.stdout.rstrip().endswith("1 fault, no warnings"), result.stdout


@pytest.mark.slow
def test_an_installation_with_wrong_versions_and_a_paddle_that_crashes(venv):
    for name, version in (("transformers", "4.30.0"), ("paddlenlp", "2.8.0")):
        (dist_info,) = venv.glob(f"{name}-*.dist-info")
        dist_info.unlink()
        add_distribution(venv, name, version)
    (venv / "paddle").unlink()
    (venv / "paddle").mkdir()
    (venv / "paddle" / "__init__.py").write_text("import os; os.kill(os.getpid(), 11)")
    result = run_doctor(venv)
    assert result.returncode == 1 and result.stderr == ""
    assert (
        "transformers is 4.30.0, and paddle-parity-toolkit needs" in result.stdout
        and "paddlenlp is 2.8.0, and" in result.stdout
    )
    cells_by_check = rows(result)
    assert cells_by_check["paddle"][0] == "fault" and "ended by SIGSEGV" in cells_by_check["paddle"][1]
    assert cells_by_check["paddlenlp"][0] == "fault" and cells_by_check["reference"][0] == "ok"


@pytest.mark.slow
def test_an_installation_without_almost_anything_and_a_cache_that_cannot_be_written(venv):
    kept_prefixes = ("click", "__editable__", "toolkit", "_virtualenv")
    for path in venv.iterdir():
        if not path.name.startswith(kept_prefixes):
            path.unlink() if path.is_symlink() else shutil.rmtree(path)
    result = run_doctor(venv, TOOLKIT_CACHE="/proc/cache")
    assert result.returncode == 1 and "Traceback" not in result.stdout + result.stderr
    assert "fault  paddle: Paddle is not installed" in result.stdout and "fault  rich: " in result.stdout
    assert "the cache, /proc/cache: cannot be written" in result.stdout


def test_nothing_heavy_is_imported_by_the_command_itself():
    code = (
        "import sys; from toolkit.commands.doctor import doctor, machine\n"
        "for check in (machine.check_memory, machine.check_disk, machine.check_caches): list(check())\n"
        "print([name for name in ('paddle', 'torch', 'datasets', 'wandb', 'paddlenlp') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout == "[]\n"


def test_every_check_is_in_the_table(monkeypatch):
    names = [name.removeprefix("check_") for name in vars(command) if name.startswith("check_")]
    for name in names:
        monkeypatch.setattr(command, f"check_{name}", lambda *_, name=name: iter([Finding(name, "ok", "")]))
    assert sorted(finding.check for finding in run_checks(None, network=False)) == sorted(names) and len(names) == 11
