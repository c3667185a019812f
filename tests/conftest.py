"""What all tests share: Paddle set up as in a run, markers that skip and say why, and the checks' small models."""

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

#: The files of tests that take minutes, run first: at the end one process would be alone with the last of them.
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
#: Variables that pytest and fixtures of several tests set.
OWN_VARIABLES = ("PYTEST_", "TOOLKIT_CACHE")
SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


pytest_plugins = ["pytester"]


SERVER = pytest.StashKey[tuple[subprocess.Popen, Path]]()
#: Whether Python was told to write no bytecode; pytest does while it collects the tests.
DONT_WRITE_BYTECODE = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the processes of pytest-xdist share the fork server of the first one
        folder = Path(tempfile.mkdtemp(prefix="fork-server-"))
        config.stash[SERVER] = fork_server.start_server(folder), folder
    config.stash[DONT_WRITE_BYTECODE] = sys.dont_write_bytecode
    sys.dont_write_bytecode = False  # pytest keeps the tests with rewritten assertions for the next lane
    subprocess.Popen = fork_server.ForkingPopen  # type: ignore[misc]
    silence_startup()
    runtime.configure_paddle("cpu")
    # Begun with & by a script, the suite ignores Ctrl-C, and by nohup SIGHUP: so would what its tests start.
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


def pytest_unconfigure(config: pytest.Config) -> None:
    if SERVER in config.stash:
        server, folder = config.stash[SERVER]
        server.communicate()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Start every program of a test that is marked ``new_interpreter`` by itself, and none from the fork server.

    Variables that a library sets during a test are not for the programs of the next: the fork server has a process for
    each environment.
    """
    before = dict(os.environ)
    if item.get_closest_marker("new_interpreter"):
        del os.environ[fork_server.ADDRESS]
    try:
        return (yield)
    finally:
        for name in {*os.environ, *before} - {name for name in os.environ if name.startswith(OWN_VARIABLES)}:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


@pytest.fixture(scope="session")
def cache_dirs(tmp_path_factory) -> Iterator[Path]:
    """Paths of the tests' caches, in one folder.

    Each ``mktemp("cache")`` would read the names of all earlier folders to find a free number.
    """
    folder = tmp_path_factory.mktemp("caches")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def own_cache(cache_dirs, monkeypatch) -> None:
    """Tokens and verdicts of a test are not those of another test or of a run."""
    cache_dir = next(cache_dirs)
    cache_dir.mkdir(mode=0o700)
    monkeypatch.setenv("TOOLKIT_CACHE", str(cache_dir))


def pytest_collection_finish(session: pytest.Session) -> None:
    """What has been imported stays: the collector need not walk over it in each test."""
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
    """The test runs on every device that there is, and on the CPU with both kinds of kernels; gives the kind."""
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
    """The folder of real data; a test that uses it carries the marker ``shared_data``."""
    return SHARED_DATA


@pytest.fixture
def command_line(capsys) -> Callable[..., tuple[int, str, str]]:
    """Run `toolkit ARGUMENTS` in this process; gives exit status, stdout, stderr."""
    from toolkit import cli

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            cli.main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        return left.value.code, output.out, output.err

    return run


@pytest.fixture
def tiny_config() -> dict:
    """A Reformer of every part, small: local and LSH layers, two hash rounds, dropout everywhere, 128 positions."""
    from toolkit.parity.families.reformer.trial import SMALL_REFORMER as REFORMER_TRIAL

    return {**REFORMER_TRIAL, "attn_layers": ["local", "lsh"], "hidden_act": "relu"}


@pytest.fixture
def tiny_batch() -> dict[str, np.ndarray]:
    """Two examples of 128 tokens, the second with padding."""
    draw = np.random.default_rng(0)
    mask = (np.arange(128) < np.array([[128], [90]])).astype(np.int64)
    return {"input_ids": draw.integers(0, 64, (2, 128)), "attention_mask": mask, "labels": np.array([0, 2])}
