"""`toolkit doctor`: what of this installation and this machine would stop or spoil a run, and what mends it.

It must work where nothing else does. So a check that fails is a fault in the table and ends no other; whatever has to
be imported to know is imported by a child process, whose crash or silence is an answer, too; and nothing here is
imported at the top that an installation could lack. Nobody is called, but with ``--network``.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from toolkit.errors import ToolkitError, UserError
from toolkit.escape import one_line
from toolkit.install import install_command

#: Seconds for a child process, which imports frameworks from a disk that may be slow.
PATIENCE = 120.0
#: Seconds for the hub's answer.
NETWORK_PATIENCE = 5.0
#: Seconds for the driver's.
DRIVER_PATIENCE = 20.0
#: Bytes of free memory below which the gate of a small model, two processes, may not fit.
LEAST_MEMORY = 2e9
#: Bytes of free disk below which a small run may not fit.
LEAST_DISK = 1e9
#: Distributions whose exact version decides what a run computes.
PINNED = (
    "paddlepaddle",
    "paddlepaddle-gpu",
    "paddlenlp",
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "safetensors",
)
#: The checkout that this source lies in, if it does: there the pins are, and `make`.
CHECKOUT = Path(__file__).resolve().parents[1]
#: Characters of a child's last words that are shown.
LONGEST_WORDS = 300

State = Literal["ok", "warn", "fault"]


@dataclass(frozen=True)
class Finding:
    """A row of the table.

    Attributes:
        state: ``ok``; ``warn`` where a run works, but not as it could; ``fault`` where one would not.
        what: is there, in a line.
        mend: the command, or what to do; empty where nothing is to be done.
    """

    check: str
    state: State
    what: str
    mend: str = ""


def diagnose(network: bool, reference_python: str | None) -> int:
    """Print the table; returns the exit status, 1 where there is a fault.

    Args:
        network: ask the hub whether it answers.
        reference_python: the interpreter that runs the reference; None for this one.
    """
    with _waiting():
        findings = examine(network, reference_python)
    _show(findings)
    return 1 if any(finding.state == "fault" for finding in findings) else 0


def examine(network: bool, reference_python: str | None) -> list[Finding]:
    """All findings, in the order of the table. The checks run side by side, since some wait for a child."""
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "versions": check_versions,
        "paddle": check_paddle,
        "paddlenlp": check_paddlenlp,
        "threads": check_environment,
        "reference": lambda: check_reference(reference_python),
        "hub": lambda: check_hub(network),
        "wandb": check_wandb,
        "memory": check_memory,
        "disk": check_disk,
        "caches": check_caches,
    }
    with ThreadPoolExecutor(len(checks)) as pool:
        asked = [pool.submit(_caught, name, check) for name, check in checks.items()]
    return [finding for answer in asked for finding in answer.result()]


def _caught(name: str, check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """A check's findings; one that fails finds that it does."""
    found: list[Finding] = []
    try:
        found.extend(check())
    except ToolkitError as problem:
        found.append(Finding(name, "fault", *_told(problem)))
    except Exception as problem:
        message = f"cannot be examined: {type(problem).__name__}: {problem}"
        found.append(Finding(name, "fault", message, _reinstall()))
    return found


# -- what is installed ----------------------------------------------------------------------------------------------


def check_versions() -> Iterator[Finding]:
    """Versions against the ranges that the installed distributions ask for, and against the pins where those are."""
    name = "versions"
    python = ".".join(map(str, sys.version_info[:3]))
    try:
        own = importlib.metadata.metadata("toolkit").json
    except importlib.metadata.PackageNotFoundError:
        yield Finding(name, "fault", "toolkit is not installed, only its source is here", _reinstall())
        return
    from packaging.specifiers import SpecifierSet

    wanted = str(own.get("requires_python", ""))
    if python not in SpecifierSet(wanted):
        yield Finding(name, "fault", f"Python is {python}, and has to be {wanted}", "make install PYTHON=python3.11")
    examined, faults = unfit_distributions("toolkit")
    for wrong in faults:
        yield Finding(name, "fault", wrong.what, wrong.mend)
    differing = [
        f"{pinned} {version} (pin {pins[pinned]})"
        for pins in [read_pins(CHECKOUT / "constraints.txt")]
        for pinned in PINNED
        if pinned in pins and (version := _version(pinned)) and version.partition("+")[0] != pins[pinned]
    ]
    if differing:
        what = f"others than those that were tested together: {', '.join(differing)}"
        yield Finding(name, "warn", what, _reinstall())
    elif not faults:
        yield Finding(name, "ok", f"Python {python}, {examined} distributions fit together")


def unfit_distributions(root: str) -> tuple[int, list[Finding]]:
    """How many installed distributions a distribution needs, directly or not, and what is wrong with them. Of its
    extras those count that are installed."""
    from packaging.requirements import Requirement

    faults: dict[str, Finding] = {}
    examined: set[tuple[str, str]] = set()
    left = [(root, "")]
    while left:
        name, extra = left.pop()
        if (name, extra) in examined:
            continue
        examined.add((name, extra))
        for line in importlib.metadata.requires(name) or ():
            wanted = Requirement(line)
            plain = wanted.marker is None or wanted.marker.evaluate({"extra": extra})
            optional = name == root and not plain
            if not plain and not (optional and wanted.marker and "extra" in str(wanted.marker)):
                continue
            version = _version(wanted.name)
            mend = f"pip install '{wanted.name}{wanted.specifier}'"
            if version is None:
                if not optional:
                    what = f"{wanted.name}, which {name} needs, is not installed"
                    faults.setdefault(wanted.name, Finding("versions", "fault", what, mend))
            elif not wanted.specifier.contains(version, prereleases=True):
                what = f"{wanted.name} is {version}, and {name} needs {wanted.specifier}"
                faults.setdefault(wanted.name, Finding("versions", "fault", what, mend))
            else:
                left += [(wanted.name, one) for one in ("", *wanted.extras)]
    return len({name for name, _ in examined}), list(faults.values())


def read_pins(constraints: Path) -> dict[str, str]:
    """Name -> version of a constraints file, as far as its markers hold here; empty where there is none."""
    if not constraints.is_file():
        return {}
    from packaging.requirements import Requirement

    pins = {}
    for line in constraints.read_text(encoding="utf-8").splitlines():
        if line.partition("#")[0].strip():
            wanted = Requirement(line.partition("#")[0])
            if wanted.marker is None or wanted.marker.evaluate():
                pins[wanted.name] = str(wanted.specifier).removeprefix("==")
    return pins


# -- what it runs on ------------------------------------------------------------------------------------------------

PADDLE = """
from toolkit import runtime
device = runtime.configure("auto")
import paddle
say(version=paddle.__version__, cuda=paddle.is_compiled_with_cuda())
say(gpus=paddle.device.cuda.device_count() if paddle.is_compiled_with_cuda() else 0)
total = float((paddle.ones([8, 8]) @ paddle.ones([8, 8])).sum())
assert total == 512.0, f"the sum of a product of ones is {total}"
say(device=device)
"""


def check_paddle() -> Iterator[Finding]:
    """Paddle's wheels, that it computes, and the GPU: the driver's and Paddle's view of it."""
    from toolkit.runtime import explain_paddle_installation

    try:
        explain_paddle_installation()
    except UserError as problem:
        yield Finding("paddle", "fault", *_told(problem))
        yield _without_paddle(*_driver())
        return
    answer = ask(PADDLE)
    wheel = "paddlepaddle-gpu" if _version("paddlepaddle-gpu") else "paddlepaddle"
    if answer.failed:
        yield Finding("paddle", "fault", f"{wheel} does not work: {answer.failed}", _reinstall())
    else:
        yield Finding("paddle", "ok", f"{wheel} {answer.said['version']}, computes on {answer.said['device']}")
    gpus, fault = _driver()
    if answer.failed and "gpus" not in answer.said:
        yield _without_paddle(gpus, fault)
    else:
        yield _gpu(gpus, fault, answer.said["cuda"], answer.said.get("gpus", 0))


def _gpu(gpus: list[str], fault: str, cuda: bool, seen: int) -> Finding:
    """What a driver's GPUs and Paddle's come to.

    Args:
        gpus: of the driver, in words.
        fault: of the driver; empty where it answers, or is not there.
        cuda: whether Paddle is compiled for GPUs.
        seen: the GPUs that Paddle sees.
    """
    if fault:
        return Finding("gpu", "fault", fault, "mend the driver, until nvidia-smi lists the GPU; or runtime.device=cpu")
    if gpus and not cuda:
        mend = "pip uninstall -y paddlepaddle; " + install_command("gpu")
        return Finding("gpu", "warn", f"{', '.join(gpus)}; Paddle's wheel is for the CPU, and so are runs", mend)
    if gpus and not seen:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        if hidden is not None and hidden.strip() in ("", "-1"):
            what = f"{', '.join(gpus)}, hidden by CUDA_VISIBLE_DEVICES={hidden!r}; runs are on the CPU"
            return Finding("gpu", "warn", what, "unset CUDA_VISIBLE_DEVICES")
        mend = "update the driver, or install a paddlepaddle-gpu of the driver's CUDA version"
        return Finding("gpu", "fault", f"{', '.join(gpus)}, of which Paddle sees none", mend)
    if cuda and not gpus:
        mend = "pip uninstall -y paddlepaddle-gpu; " + install_command("cpu")
        return Finding("gpu", "warn", "no driver (nvidia-smi) here, and Paddle's wheel is for GPUs", mend)
    return Finding("gpu", "ok", f"{', '.join(gpus)}; Paddle sees {seen}" if gpus else "none; runs are on the CPU")


def _without_paddle(gpus: list[str], fault: str) -> Finding:
    return Finding("gpu", "fault" if fault else "ok", fault or ", ".join(gpus) or "none")


def _driver() -> tuple[list[str], str]:
    """The GPUs that the driver lists, and what is wrong with it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return [], ""
    question = [program, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            question, capture_output=True, text=True, timeout=DRIVER_PATIENCE, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return [], f"nvidia-smi does not answer: {one_line(str(problem))[:LONGEST_WORDS]}"
    if done.returncode != 0:
        return [], f"nvidia-smi: {one_line(done.stdout or done.stderr)[:LONGEST_WORDS]}"
    return [one_line(line) for line in done.stdout.splitlines() if line.strip()], ""


PADDLENLP = """
from toolkit import quiet, runtime
quiet.silence_startup()
runtime.configure("cpu")
import paddlenlp
from paddlenlp.trainer import Trainer
from models.reformer import ReformerForSequenceClassification
say(version=paddlenlp.__version__)
"""


def check_paddlenlp() -> Iterator[Finding]:
    """That the training loop and the ports can be imported."""
    answer = ask(PADDLENLP)
    if answer.failed:
        yield Finding("paddlenlp", "fault", f"cannot be imported: {answer.failed}", _reinstall())
    else:
        yield Finding("paddlenlp", "ok", f"{answer.said['version']}, and the ports")


def check_environment() -> Iterator[Finding]:
    """The variables that :func:`toolkit.runtime.environment` sets, where the shell has set them otherwise."""
    from models import kernels
    from toolkit.runtime import environment, physical_cores

    cores = physical_cores()
    set_here = environment()
    wanted = {
        "OMP_NUM_THREADS": (str(cores), f"of {cores} physical cores"),
        "FLAGS_paddle_num_threads": (str(cores), f"of {cores} physical cores"),
        "NVIDIA_TF32_OVERRIDE": ("0", "on a GPU float32 is then not float32"),
        "FLAGS_cudnn_deterministic": ("1", "on a GPU a run does then not repeat"),
    }
    wrong = {name: reason for name, (value, reason) in wanted.items() if set_here[name] != value}
    if wrong:
        what = "; ".join(f"{name}={set_here[name]} is set, {reason}" for name, reason in wrong.items())
        yield Finding("threads", "warn", what, f"unset {' '.join(wrong)}")
    else:
        path = set_here.get("MKL_DEBUG_CPU_TYPE")
        yield Finding("threads", "ok", f"{cores} on {cores} physical cores{f', MKL code path {path}' if path else ''}")
    if set_here[kernels.VARIABLE] == kernels.PADDLE:
        what = f"{kernels.VARIABLE}={kernels.PADDLE} is set: on a CPU runs are slower, and lose digits"
        yield Finding("kernels", "warn", what, f"unset {kernels.VARIABLE}")


REFERENCE = """
import torch, transformers
assert transformers.ReformerConfig and transformers.CTRLConfig
assert float(torch.ones(8, 8).sum()) == 64.0
say(torch=torch.__version__, transformers=transformers.__version__)
"""


def check_reference(python: str | None) -> Iterator[Finding]:
    """That the reference's process has what it needs: without it there is no gate."""
    from toolkit.parity.job.interpreter import reference_interpreter

    place = reference_interpreter(python) if python else sys.executable
    missing = [] if python else [name for name in ("torch", "transformers") if not _version(name)]
    if missing:
        what = f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not installed, and so no gate can run"
        mend = f"{install_command('reference')}, or --reference-python PATH of a Python that has them"
        yield Finding("reference", "fault", what, mend)
        return
    answer = ask(REFERENCE, place)
    if answer.failed:
        yield Finding(
            "reference", "fault", f"torch and transformers do not work: {answer.failed}", install_command("reference")
        )
        return
    where = f" in {place}" if python else ""
    what = f"torch {answer.said['torch']}, transformers {answer.said['transformers']}{where}"
    yield Finding("reference", "ok", what)


# -- others' services -----------------------------------------------------------------------------------------------

HUB = """
from huggingface_hub import constants, get_token
say(endpoint=constants.ENDPOINT, offline=bool(constants.HF_HUB_OFFLINE), token=get_token() is not None)
"""


def check_hub(network: bool) -> Iterator[Finding]:
    """Where models and data sets would come from; with ``network`` whether it answers."""
    answer = ask(HUB)
    if answer.failed:
        yield Finding("hub", "fault", f"huggingface_hub does not work: {answer.failed}", _reinstall())
        return
    endpoint = str(answer.said["endpoint"])
    mirror = "mirror " if os.environ.get("HF_ENDPOINT") else ""
    token = "with a token" if answer.said["token"] else "without a token"
    if not endpoint.startswith(("https://", "http://")):
        what = f"HF_ENDPOINT={endpoint} is no address"
        yield Finding("hub", "fault", what, "export HF_ENDPOINT=https://..., or unset HF_ENDPOINT")
    elif answer.said["offline"]:
        yield Finding("hub", "ok", "offline (HF_HUB_OFFLINE): what is in its cache, and nothing else")
    elif not network:
        yield Finding("hub", "ok", f"{mirror}{endpoint}, {token}; not asked", "toolkit doctor --network")
    elif unreachable := _unreachable(endpoint):
        mend = "export HF_ENDPOINT=https://hf-mirror.com or another mirror; or HF_HUB_OFFLINE=1 for its cache alone"
        yield Finding("hub", "warn", f"{mirror}{endpoint} does not answer: {unreachable}", mend)
    else:
        yield Finding("hub", "ok", f"{mirror}{endpoint} answers, {token}")


def _unreachable(address: str) -> str:
    """Why an address does not answer; empty where it does, whatever it says."""
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=NETWORK_PATIENCE):
            return ""
    except urllib.error.HTTPError:
        return ""
    except (OSError, ValueError) as problem:
        return one_line(str(getattr(problem, "reason", problem)))[:LONGEST_WORDS] or type(problem).__name__


WANDB = """
from toolkit.wandb_run import own_settings
mode, logged_in = own_settings()
import wandb
say(mode=mode, logged_in=logged_in, version=wandb.__version__)
wandb.teardown()
"""


def check_wandb() -> Iterator[Finding]:
    """Weights & Biases, which only a recipe with ``tracking.wandb`` needs."""
    if not _version("wandb"):
        yield Finding("wandb", "ok", "not installed; only tracking.wandb needs it", install_command("tracking"))
        return
    answer = ask(WANDB)
    if answer.failed:
        what = f"does not start, and tracking.wandb not with it: {answer.failed}"
        yield Finding("wandb", "warn", what, install_command("tracking"))
    elif answer.said["mode"] == "online" and not answer.said["logged_in"]:
        what = f"{answer.said['version']}, nobody is logged in; only tracking.wandb needs it"
        yield Finding("wandb", "ok", what, "wandb login, or tracking.wandb_mode=offline")
    else:
        known = "somebody is logged in" if answer.said["logged_in"] else "nobody is logged in"
        yield Finding("wandb", "ok", f"{answer.said['version']}, {answer.said['mode']}, {known}")


# -- this machine ---------------------------------------------------------------------------------------------------


def check_memory() -> Iterator[Finding]:
    """Memory that the system can give, and that it has."""
    free, whole = available_memory()
    if free is None or whole is None:
        yield Finding("memory", "ok", "unknown; this system does not say")
        return
    what = f"{free / 1e9:,.1f} GB of {whole / 1e9:,.1f} GB are free"
    if free < LEAST_MEMORY:
        mend = "end other programs, or lower train.batch_size, parity.examples and parity.max_memory"
        yield Finding("memory", "warn", f"{what}; the gate runs two processes", mend)
    else:
        yield Finding("memory", "ok", what)


def available_memory() -> tuple[int | None, int | None]:
    """Bytes of memory that are free and that there are, as far as this process may have them; None if unknown."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        free, whole = (int(lines[key].split()[0]) * 1024 for key in ("MemAvailable", "MemTotal"))
    except (OSError, ValueError, LookupError):
        return None, None
    try:  # a container's
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        return min(free, max(0, limit - used)), min(whole, limit)
    except (OSError, ValueError):  # there is none, or "max"
        return free, whole


def check_disk() -> Iterator[Finding]:
    """That the places a run writes to can be written, and have room."""
    from toolkit.runtime import CACHE_ROOM, cache_place

    places = {
        "run folders": (Path("runs"), "train.output_dir=FOLDER in another place", LEAST_DISK),
        "the cache": (cache_place(), "export TOOLKIT_CACHE=FOLDER in another place", CACHE_ROOM),
        "temporary files": (Path(tempfile.gettempdir()), "export TMPDIR=FOLDER in another place", LEAST_DISK),
    }
    for name, (place, elsewhere, needed) in places.items():
        yield _disk(name, place.absolute(), elsewhere, needed)


def _disk(name: str, place: Path, elsewhere: str, needed: float) -> Finding:
    from toolkit.disk import check_writable, megabytes
    from toolkit.runtime import CACHE_ROOM

    if refused := check_writable(place):
        return Finding("disk", "fault", f"{name}, {place}: {refused}", elsewhere)
    there = next(parent for parent in (place, *place.parents) if parent.exists())
    free = shutil.disk_usage(there).free
    what = f"{name}, {place}: {megabytes(free)} are free"
    if free < needed:
        return Finding("disk", "fault" if free < CACHE_ROOM else "warn", what, f"make room, or {elsewhere}")
    return Finding("disk", "ok", what)


def check_caches() -> Iterator[Finding]:
    """What is kept, where, and how much it takes: the toolkit's, and the hub's of models and data sets."""
    from toolkit.cache_cleaning import entries, size_of_tree
    from toolkit.disk import megabytes
    from toolkit.runtime import cache_place

    found = entries(cache_place())
    size = megabytes(sum(entry.size for entry in found))
    clear = "toolkit cache clear" if found else ""
    yield Finding("caches", "ok", f"the toolkit's, {cache_place()}: {len(found)} entries, {size}", clear)
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or home / "hub").expanduser()
    datasets = Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets").expanduser()
    for name, place, command in (("models", hub, "hf cache delete"), ("data sets", datasets, "")):
        if place.is_dir():
            yield Finding("caches", "ok", f"the hub's {name}, {place}: {megabytes(size_of_tree(place))}", command)


# -- children -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What a child has said.

    Attributes:
        said: by key, up to where it failed.
        failed: how; empty where it did not.
    """

    said: Mapping[str, Any]
    failed: str


PREAMBLE = """
import json, os, sys
sys.path[:] = [place for place in sys.path if place]
sys.path.append(sys.argv[1])
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what libraries print is no answer
def say(**found):
    answers.write(json.dumps(found) + "\\n")
    answers.flush()
"""


def ask(code: str, python: str | None = None, patience: float = PATIENCE) -> Answer:
    """Run some lines in a process of its own, in which ``say(key=value)`` answers."""
    from toolkit.parity.job.launch import environment
    from toolkit.scratch import child

    variables = {**environment(), "WANDB_ERROR_REPORTING": "false", "GLOG_minloglevel": "2"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    command = [python or sys.executable, "-c", PREAMBLE + code, str(CHECKOUT)]
    late = ""
    with child(command, env=variables, text=True, errors="replace", **pipes) as process:
        try:
            out, log = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            late = f"no answer within {patience:.0f} s"
            process.kill()
            out, log = process.communicate()
    said: dict[str, Any] = {}
    for line in out.splitlines():
        said |= json.loads(line)
    return Answer(said, late or _last_words(process.returncode, log))


def _last_words(status: int, log: str) -> str:
    """How a process has ended; empty where well."""
    if status == 0:
        return ""
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        return f"the process was ended by {name}"
    lines = [line for line in log.splitlines() if line.strip()] or [f"exit status {status}"]
    return one_line(lines[-1])[:LONGEST_WORDS]


# -- words ----------------------------------------------------------------------------------------------------------


def _waiting() -> contextlib.AbstractContextManager:
    """Shows on a terminal that something goes on."""
    try:
        from toolkit.console import LiteralConsole

        return LiteralConsole(stderr=True).status("importing what a run imports")
    except ImportError:
        return contextlib.nullcontext()


def _show(findings: list[Finding]) -> None:
    try:
        from rich.table import Table
        from rich.text import Text

        from toolkit.console import LiteralConsole
    except ImportError as problem:  # that is a fault as well, and the table's absence must not hide it
        print(f"fault  rich: {problem}: {_reinstall()}")
        for finding in findings:
            print(f"{finding.state:<6} {finding.check}: {one_line(finding.what)}  {one_line(finding.mend)}".rstrip())
        return
    table = Table("check", "", "what", "command that mends it, or more about it")
    for finding in findings:
        state = Text(finding.state, style={"ok": "green", "warn": "yellow", "fault": "bold red"}[finding.state])
        table.add_row(finding.check, state, one_line(finding.what), finding.mend)
    LiteralConsole().print(table)
    counted = {state: sum(finding.state == state for finding in findings) for state in ("warn", "fault")}
    LiteralConsole().print(f"{_plural(counted['fault'], 'fault')}, {_plural(counted['warn'], 'warning')}")


def _plural(count: int, word: str) -> str:
    return f"{count or 'no'} {word}{'' if count == 1 else 's'}"


def _told(problem: ToolkitError) -> tuple[str, str]:
    """The toolkit's own message in its halves: what is wrong, and what to do."""
    what, _, mend = one_line(str(problem)).partition("; ")
    return what, mend


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _reinstall() -> str:
    wheel = "gpu" if _version("paddlepaddle-gpu") else "cpu"
    return install_command(f"{wheel},reference")
