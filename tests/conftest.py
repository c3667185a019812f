"""Shared setup of all tests: Paddle configured as in a run, markers that skip with a reason, and small models."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import fork_server
import numpy as np
import pytest

from models.operations.kernels import can_compile
from toolkit.machine import runtime
from toolkit.terminal.quiet import silence_startup

#: Test files that take minutes. They run first, so that no single process runs one of them at the end.
LONGEST = (
    "test_readme_commands.py",
    "test_parity.py",
    "test_pairs.py",
    "test_coverage_of_training.py",
    "test_kills.py",
    "test_signals.py",
    "test_ranks.py",
    "test_sweep.py",
    "test_recipe_fuzz.py",
    "test_bench.py",
    "test_model_zoo_language_models.py",
    "test_model_zoo_vision.py",
)
#: Variables that pytest and the fixtures of several tests set.
OWN_VARIABLES = ("PYTEST_", "TOOLKIT_CACHE")
SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


pytest_plugins = ["pytester"]


SERVER = pytest.StashKey[tuple[subprocess.Popen, Path]]()
#: Whether Python wrote no bytecode before the collection; pytest disables it while it collects the tests.
DONT_WRITE_BYTECODE = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    # In a background job the suite ignores Ctrl-C, and under nohup SIGHUP; child processes would inherit this.
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
    if not hasattr(config, "workerinput"):  # the processes of pytest-xdist share the first fork server
        folder = Path(tempfile.mkdtemp(prefix="fork-server-"))
        config.stash[SERVER] = fork_server.start_server(folder), folder
    config.stash[DONT_WRITE_BYTECODE] = sys.dont_write_bytecode
    sys.dont_write_bytecode = False  # pytest keeps the tests with rewritten assertions for the next lane
    subprocess.Popen = fork_server.ForkingPopen  # type: ignore[misc]
    silence_startup()
    runtime.configure_paddle("cpu")


def pytest_unconfigure(config: pytest.Config) -> None:
    if SERVER in config.stash:
        server, folder = config.stash[SERVER]
        server.communicate()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Start the programs of a test with the marker ``new_interpreter`` without the fork server.

    Variables that a library sets during a test are removed afterwards, because the fork server has a process for each
    environment.
    """
    initial_environment = dict(os.environ)
    if item.get_closest_marker("new_interpreter"):
        del os.environ[fork_server.ADDRESS]
    try:
        return (yield)
    finally:
        for name in {*os.environ, *initial_environment} - {
            name for name in os.environ if name.startswith(OWN_VARIABLES)
        }:
            if name in initial_environment:
                os.environ[name] = initial_environment[name]
            else:
                del os.environ[name]


@pytest.fixture(scope="session")
def cache_dirs(tmp_path_factory) -> Iterator[Path]:
    """Return paths of the tests' caches, in one folder.

    Each ``mktemp("cache")`` would read the names of all earlier folders to find a free number.
    """
    folder = tmp_path_factory.mktemp("caches")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def own_cache(cache_dirs, monkeypatch) -> None:
    """Give each test its own cache, so it shares no tokens and verdicts with other tests or runs."""
    cache_dir = next(cache_dirs)
    cache_dir.mkdir(mode=0o700)
    monkeypatch.setenv("TOOLKIT_CACHE", str(cache_dir))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Freeze the imported objects, so that the garbage collector does not traverse them in each test."""
    sys.dont_write_bytecode = session.config.stash[DONT_WRITE_BYTECODE]
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import paddle

    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))
    gpu = paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count() > 0
    for item in items:
        if item.get_closest_marker("gpu") and not gpu:
            item.add_marker(pytest.mark.skip(reason="Paddle sees no GPU here"))
        if item.get_closest_marker("shared_data") and not SHARED_DATA.is_dir():
            item.add_marker(pytest.mark.skip(reason=f"{SHARED_DATA} (real data sets and tokenizers) is absent"))


@pytest.fixture(
    params=[
        pytest.param(("cpu", "compiled"), marks=pytest.mark.skipif(not can_compile(), reason="needs Numba")),
        ("cpu", "composed"),
        ("cpu", "paddle"),
        pytest.param(("gpu", "paddle"), marks=pytest.mark.gpu),
    ],
    ids="-".join,
)
def kernels(request, monkeypatch) -> Iterator[str]:
    """Run a test on every available device, and on the CPU with all kinds of kernels; yield the kind."""
    import paddle

    device, kind = request.param
    marker = request.node.get_closest_marker("beyond_paddle")
    if marker and request.param == ("cpu", "paddle"):
        request.applymarker(pytest.mark.xfail(reason=marker.args[0], strict=marker.kwargs.get("strict", True)))
    monkeypatch.setenv("TOOLKIT_KERNELS", kind)
    paddle.set_device(device)
    yield kind
    paddle.set_device("cpu")


@pytest.fixture
def shared_data() -> Path:
    """Return the folder of real data; tests with this fixture need the marker ``shared_data``."""
    return SHARED_DATA


@pytest.fixture
def command_line(capsys) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs `toolkit ARGUMENTS` in this process and returns exit status, stdout and stderr."""
    from toolkit import cli

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_info:
            cli.main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        return exit_info.value.code, output.out, output.err

    return run


@pytest.fixture
def tiny_config() -> dict:
    """Return a small Reformer configuration: local and LSH layers, two hash rounds, dropout and 128 positions."""
    from toolkit.parity.families.reformer.trial import SMALL_REFORMER as REFORMER_TRIAL

    return {**REFORMER_TRIAL, "attn_layers": ["local", "lsh"], "hidden_act": "relu"}


@pytest.fixture
def tiny_batch() -> dict[str, np.ndarray]:
    """Return two examples of 128 tokens, the second with padding."""
    draw = np.random.default_rng(0)
    mask = (np.arange(128) < np.array([[128], [90]])).astype(np.int64)
    return {"input_ids": draw.integers(0, 64, (2, 128)), "attention_mask": mask, "labels": np.array([0, 2])}
