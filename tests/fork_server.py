"""A fork server for tests: programs of this project start by a fork of a process that has done their imports.

A `toolkit` command, a worker of a gate and a script with transformers each spend 2 to 5 seconds on imports. In tests
:class:`ForkingPopen` takes the place of :class:`subprocess.Popen`. It recognizes these programs by their command line
and asks the fork server for them; every other program starts as always. The server keeps a template for each kind of
program and each environment: a process that has done the imports, and that is forked. A forked program has its own
environment, folder, descriptors, session and source tree, so a test may run an edited copy of the project. Tests that
need a new interpreter carry the marker ``new_interpreter``.

Run as a script, this file is the fork server or one of its templates. The server ends with the process that has
started it, and the templates end with the server.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: Packages of the project, which a forked program imports again if it runs another source tree.
PACKAGES = ("toolkit", "models", "recipes")
#: The variable with the path of the fork server's socket.
ADDRESS = "TOOLKIT_TEST_FORK_SERVER"
#: :data:`toolkit.machine.scratch.TREES_VARIABLE`; the fork server imports nothing of the toolkit.
TREES_VARIABLE = "TOOLKIT_PROCESS_TREES"
#: Variables that nothing reads during the imports; they may differ from program to program.
READ_LATER = {
    "COLUMNS", "OLDPWD", "PWD", "PYTHONPATH", "TMPDIR", "TOOLKIT_CACHE", "TOOLKIT_KERNELS",
    "TOOLKIT_PARITY_PIPE", "TRAINER_GLOBAL_STEP", "GLIBC_TUNABLES", ADDRESS, TREES_VARIABLE,
}  # fmt: skip
#: Signals that a program inherits as blocked or ignored.
INHERITED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: The commands that compute with Paddle in their own process.
COMPUTING = ("finetune", "search", "finish", "evaluate", "predict", "generate", "serve", "export")
#: Received descriptors are moved above this number, so that they do not collide with the program's descriptors.
HIGH_DESCRIPTOR = 256
#: Templates that the fork server keeps; each takes up to 400 MB.
MAX_TEMPLATES = 12

#: The modules that a template of each kind of program imports, in this order.
MODULES = {
    "reference": (
        *("toolkit.parity.reference.environment", "toolkit.parity.families.reformer.reference"),
        *("toolkit.parity.families.ctrl.reference", "toolkit.parity.reference.measure"),
    ),
    "reference of a pair": (
        *("toolkit.parity.reference.environment", "toolkit.parity.families.pair.reference"),
        *("toolkit.parity.families.pair.reference_description", "toolkit.parity.reference.measure"),
        *("transformers.generation.utils", "transformers.modeling_utils"),
    ),
    "candidate": (
        *("toolkit.parity.candidate.kernel_client", "toolkit.parity.families.reformer.candidate"),
        *("toolkit.parity.families.ctrl.candidate", "toolkit.parity.candidate.result"),
    ),
    "candidate of a pair": (
        *("toolkit.parity.candidate.kernel_client", "toolkit.parity.families.pair.candidate"),
        "toolkit.parity.candidate.result",
    ),
    "candidate of a pair with paddlenlp": (
        *("toolkit.parity.candidate.kernel_client", "toolkit.parity.families.pair.candidate"),
        *("toolkit.parity.candidate.result", "paddlenlp.transformers"),
    ),
    "comparator": ("toolkit.parity.comparator.result", "toolkit.parity.comparator.forced_input"),
    "computing command": (
        *("toolkit.cli", "toolkit.training.trainer", "toolkit.finetune.finetune", "toolkit.data.load"),
        *("toolkit.tasks.classification.task", "toolkit.parity.gate", "models.operations.loops"),
        *("sklearn.svm", "sklearn.linear_model", "sklearn.feature_extraction.text", "sklearn.pipeline"),
        *("matplotlib.figure", "matplotlib.backends.backend_svg"),
    ),
    "command": (
        *("toolkit.cli", "toolkit.parity.gate", "toolkit.parity.options"),
        *("matplotlib.figure", "matplotlib.backends.backend_svg"),
    ),
    "unpickler": ("torch", "safetensors.torch"),
    "script with transformers": (
        *("torch", "transformers", "transformers.generation.utils"),
        *("transformers.models.reformer.modeling_reformer", "transformers.models.ctrl.modeling_ctrl"),
        *("transformers.models.reformer.tokenization_reformer_fast", "transformers.models.ctrl.tokenization_ctrl"),
    ),
}
#: Module of each side of `toolkit bench` -> the kind of program that imports the same modules.
BENCH_SIDES = {
    "toolkit.commands.bench.sides.port": "computing command",
    "toolkit.commands.bench.sides.transformers": "reference",
}
#: Kinds that import Paddle.
WITH_PADDLE = ("candidate", "candidate of a pair", "candidate of a pair with paddlenlp", "computing command")


@dataclass(frozen=True)
class Program:
    """A program to fork.

    Attributes:
        kind: the key of :data:`MODULES`.
        module: the module that runs, as by ``python -m``, or the code of ``python -c``.
        arguments: its arguments.
        import_path: folders that precede Python's own in ``sys.path``.
        source: the source tree of the project.
        threads: CPU threads of Paddle; None if its environment sets them.
        keeps_memory: whether it keeps freed memory, see :func:`toolkit.machine.heap.keep_freed_memory`.
    """

    kind: str
    module: str
    arguments: Sequence[str]
    import_path: Sequence[str]
    source: str
    threads: int | None = None
    keeps_memory: bool = True


# -- the side of the tests --------------------------------------------------------------------------------------------


def start_server(folder: Path) -> subprocess.Popen:
    """Start the fork server; its socket is in ``folder``, and its address in the environment of this process."""
    address = str(folder / "fork-server")
    os.environ[ADDRESS] = address
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(address)
    listening.listen(64)
    command = [sys.executable, __file__, str(listening.fileno())]
    with listening:
        # The server ends when the other end of its standard input is closed.
        return subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listening.fileno()], start_new_session=True)


class ForkingPopen(subprocess.Popen):
    """A process, forked by the fork server if it is a program of this project."""

    _status: int | None = None

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *options: Any) -> None:
        """Start the program; :class:`subprocess.Popen` calls this method with its own ``options``."""
        environment = dict(os.environ if env is None else env)
        shell, user_and_mask = options[2], options[10:14]
        is_plain = not (shell or executable or preexec_fn) and user_and_mask == (None, None, None, -1)
        program = None
        if ADDRESS in os.environ and is_plain and isinstance(args, (list, tuple)):
            program = recognize_program(list(map(str, args)), environment, str(cwd or os.getcwd()))
        if program is None:
            super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *options)
            return
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = options[3:9]
        streams = [
            number if descriptor == -1 else descriptor
            for number, descriptor in enumerate((p2cread, c2pwrite, errwrite))
        ]
        reading, writing = os.pipe()
        blocked_signals = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        request = {
            "program": asdict(program),
            "environment": {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()},
            "folder": os.path.abspath(cwd or os.getcwd()),
            "descriptors": [0, 1, 2, *pass_fds],
            "blocked": [number for number in INHERITED_SIGNALS if number in blocked_signals],
            "ignored": [number for number in INHERITED_SIGNALS if signal.getsignal(number) is signal.SIG_IGN],
        }
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(os.environ[ADDRESS])
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
            socket.send_fds(connection, [json.dumps(request).encode()], [writing, *streams, *pass_fds])
        os.close(writing)
        devnull = getattr(self, "_devnull", None)
        for parent_end, child_end in ((p2cwrite, p2cread), (c2pread, c2pwrite), (errread, errwrite)):
            if -1 not in (parent_end, child_end) and child_end != devnull:  # a pipe, and not a file of the caller's
                os.close(child_end)
        if devnull is not None:
            os.close(devnull)
        self._closed_child_pipe_fds = True
        self._status = reading
        self.pid = self._read_number()
        self._child_created = True

    def _internal_poll(self, *arguments: Any, **options: Any) -> int | None:
        if self._status is None:
            return super()._internal_poll(*arguments, **options)
        return self._ended_within(0)

    def _wait(self, timeout: float | None) -> int | None:
        if self._status is None:
            return super()._wait(timeout)
        if self._ended_within(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def _ended_within(self, timeout: float | None) -> int | None:
        """Return the exit status, or None if the process still runs after `timeout` seconds."""
        with self._waitpid_lock:
            if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
                self.returncode = self._read_number()
                os.close(self._status)
        return self.returncode

    def _read_number(self) -> int:
        """Read one line of the status pipe, and no more, so that the next one can be waited for."""
        digits = b""
        while (digit := os.read(self._status, 1)) not in (b"\n", b""):
            digits += digit
        if not digits:
            raise RuntimeError(f"the fork server did not start {self.args}; its standard error says why")
        return int(digits)


def recognize_program(command: Sequence[str], environment: Mapping[str, str], folder: str) -> Program | None:
    """Return the program that a command line starts; None if it needs a new interpreter."""
    places = [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]
    if any(Path(folder, place, "sitecustomize.py").exists() for place in places):
        return None
    if command[:3] == [sys.executable, "-m", "toolkit"]:
        return _recognize_command(command[3:], [folder, *places])
    if command[:2] == [sys.executable, "-c"] and _imports_transformers(command[2]):
        if environment.get("USE_TORCH") == "0":
            return None
        return Program("script with transformers", command[2], command[3:], ["", *places], str(ROOT))
    return _recognize_worker(command, places)


def _imports_transformers(code: str) -> bool:
    return ("transformers" in code or "reference_tokens" in code) and "paddle" not in code


def _recognize_command(arguments: Sequence[str], import_path: Sequence[str]) -> Program | None:
    source = next((place for place in import_path if Path(place, "toolkit/__main__.py").exists()), str(ROOT))
    word = next((word for word in arguments if not word.startswith("-")), None)
    if word is None or {"-h", "--help"} & set(arguments):
        return None
    kind = "computing command" if word in COMPUTING else "command"
    return Program(kind, "toolkit", arguments, import_path, source)


def _recognize_worker(command: Sequence[str], places: Sequence[str]) -> Program | None:
    """Return a worker of a gate or a side of `toolkit bench`; None for any other program.

    A worker that runs the reference's kernels or uses a GPU is not recognized.
    """
    from models.files import another_python
    from toolkit.parity.exchange import files

    if len(command) < 5 or command[:3] != another_python.module_command(sys.executable, "")[:3]:
        return None
    _, _, _, source, module, *arguments = command
    if module in BENCH_SIDES:
        return Program(BENCH_SIDES[module], module, arguments, [source, *places], source)
    if len(arguments) < 2:
        return None
    task, *folders = arguments
    side = module.removeprefix("toolkit.parity.")
    if side == "reference.unpickle":
        return Program("unpickler", module, [task, *folders], [source, *places], source)
    if side not in ("reference", "candidate", "comparator") or task == "attribution":
        return None
    if not all(Path(folder, "job.json").exists() for folder in folders):  # a test of processes without a job
        return None
    jobs = [files.read_job(Path(folder)) for folder in folders]
    if any(job.kernels is not None or job.device != "cpu" for job in jobs):
        return None
    kind = side
    if side != "comparator" and jobs[0].pair is not None:
        kind = f"{side} of a pair"
        if side == "candidate" and _names_paddlenlp(jobs[0].pair.port):
            kind += " with paddlenlp"
    return Program(kind, module, [task, *folders], [source, *places], source, jobs[0].threads, not jobs[0].brief)


def _names_paddlenlp(port: str) -> bool:
    from toolkit.parity.job.user_code import UserCodeError, locate_source

    with contextlib.suppress(UserCodeError):  # the worker reports it
        return "paddlenlp" in locate_source(port).read_text()
    return False


# -- the fork server --------------------------------------------------------------------------------------------------


def serve(listening: socket.socket) -> None:
    """Hand each request to the template of its kind and environment, until standard input is closed."""
    templates: dict[str, socket.socket] = {}
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        if 0 in select.select([listening, 0], [], [])[0]:
            return
        connection, _ = listening.accept()
        with connection:
            content, descriptors, _, _ = socket.recv_fds(connection, 2**20, 64)
        request = json.loads(content)
        key = json.dumps([request["program"]["kind"], request["program"]["threads"], _settings(request)])
        template = templates.pop(key, None) or _make_template(request, [listening, *templates.values()])
        templates[key] = template  # the most recently used template is removed last
        try:
            socket.send_fds(template, [content], descriptors)
        except OSError as error:  # it could not import its modules, and has printed the error
            print(f"fork server: {error}", file=sys.stderr)
            templates.pop(key).close()
        for descriptor in descriptors:
            os.close(descriptor)
        if len(templates) > MAX_TEMPLATES:
            templates.pop(next(iter(templates))).close()


def _settings(request: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the variables that programs of one template have in common."""
    variables = request["environment"].items()
    return sorted((name, value) for name, value in variables if name not in READ_LATER and name[:7] != "PYTEST_")


def _make_template(request: Mapping[str, Any], parent_sockets: Sequence[socket.socket]) -> socket.socket:
    """Start a template, a Python that imports the modules of a program and is forked; return the socket to it."""
    program = Program(**request["program"])
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
    environment = {**request["environment"], "PYTHONPATH": str(ROOT)}
    environment.pop(TREES_VARIABLE, None)  # the template outlives the program
    command = [sys.executable, __file__, program.kind, str(program.threads or 0), str(far.fileno())]
    subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, pass_fds=[far.fileno()])
    far.close()
    return near


# -- a template -------------------------------------------------------------------------------------------------------


def import_modules(kind: str, threads: int | None) -> None:
    """Import the modules of a kind of programs, in their order."""
    import gc

    if kind in WITH_PADDLE:
        from toolkit.machine import runtime
        from toolkit.terminal.quiet import silence_startup

        silence_startup()
        runtime.configure_paddle("cpu", threads, keeps_freed_memory=False)
    with contextlib.ExitStack() as importing:
        if kind.startswith("reference"):
            from toolkit.parity.reference.imports import hide_packages

            importing.enter_context(hide_packages([], is_toolkit_family=kind == "reference"))
        for name in MODULES[kind]:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def wait_for_program(connection: socket.socket) -> Program:
    """Fork for each request; return in the new process, which is to run the program."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        content, descriptors, _, _ = socket.recv_fds(connection, 2**20, 64)
        if not content:
            os._exit(0)
        if not os.fork():
            break
        for descriptor in descriptors:
            os.close(descriptor)
    connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status, *program_descriptors = map(_move_up, descriptors)
    if process := os.fork():  # this process reports how the program ends
        for descriptor in (0, 1, 2, *program_descriptors):  # their other ends must notice the end of the program
            os.close(descriptor)
        returncode = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        with contextlib.suppress(BrokenPipeError):
            os.write(status, b"%d\n" % returncode)
        os._exit(0)
    os.setsid()
    try:
        os.write(status, b"%d\n" % os.getpid())  # it can be killed with its group from now on
    except BrokenPipeError:  # the process that asked for it was killed meanwhile
        os._exit(0)
    os.close(status)
    return _become_program(json.loads(content), program_descriptors)


def _move_up(descriptor: int) -> int:
    """Give a descriptor a number above :data:`HIGH_DESCRIPTOR`; return the number."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR)
    finally:
        os.close(descriptor)


def _become_program(request: Mapping[str, Any], descriptors: Sequence[int]) -> Program:
    """Turn this process into the requested program, and return the program."""
    program = Program(**request["program"])
    for number, descriptor in zip(request["descriptors"], descriptors, strict=True):
        os.dup2(descriptor, number, inheritable=True)
        os.close(descriptor)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115 - until the end
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115 - as above
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    tempfile.tempdir = None
    with contextlib.suppress(KeyError, OSError):  # /proc/PID/environ shows the template's; this identifies the program
        os.open(os.environ["TMPDIR"], os.O_PATH | os.O_CLOEXEC)
    sys.path[:] = [*program.import_path, *sys.path[2:]]  # without this file's folder, and ROOT of PYTHONPATH
    if Path(program.source).resolve() != ROOT:
        for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
            del sys.modules[name]
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # a fork seeds Python's own generator again, and not NumPy's
    if program.kind in WITH_PADDLE:
        _set_up_paddle(program)
    subprocess.Popen = ForkingPopen  # type: ignore[misc]
    return program


def _set_up_paddle(program: Program) -> None:
    """Do what :func:`toolkit.machine.runtime.configure_paddle` does before it imports Paddle."""
    from toolkit.machine import runtime
    from toolkit.machine.heap import keep_freed_memory

    os.environ.update(runtime.paddle_environment(program.threads))
    if program.keeps_memory:
        keep_freed_memory()


def main() -> None:
    """Run the fork server, or one of its templates."""
    import runpy

    if len(sys.argv) == 2:
        serve(socket.socket(fileno=int(sys.argv[1])))
        return
    kind, threads, number = sys.argv[1:]
    import_modules(kind, int(threads) or None)
    program = wait_for_program(socket.socket(fileno=int(number)))
    if program.kind == "script with transformers":
        sys.argv[:] = ["-c", *program.arguments]
        exec(compile(program.module, "<string>", "exec"), {"__name__": "__main__"})
        return
    sys.argv[1:] = program.arguments
    runpy.run_module(program.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
