"""The Python interpreters that run the reference and a user's port (``--reference-python``, ``--port-python``).

They may have other environments than the gate, which then need not fit together: the reference's has torch and
transformers and no Paddle, the port's has Paddle and no torch. The gate knows only the versions that an interpreter
itself reports.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from collections.abc import Sequence

from models.files.another_python import code_command
from toolkit.errors import Inconclusive, ToolkitError, UserError
from toolkit.machine.home import expand_user_home
from toolkit.parity.processes import launch

#: Names of the packages that each side needs. SentencePiece is needed only if a run's tokenizer is compared.
REQUIRED_PACKAGES = {
    "reference": ("torch", "transformers", "numpy", "safetensors"),
    "port": ("paddlepaddle", "numpy", "safetensors"),
}
#: Name of another distribution that provides a required package, by the package.
INSTEAD = {"paddlepaddle": "paddlepaddle-gpu"}
#: Oldest version of Python, (major, minor), that can run this project.
OLDEST = (3, 10)
#: Number of seconds after which an interpreter without an answer counts as invalid.
PATIENCE = 60.0
#: Program that an interpreter runs to print its versions as JSON. It reads metadata and imports no large package, so it
#: takes a tenth of a second.
QUESTION = """
import importlib.metadata, json, platform, sys
found = {one.metadata["Name"]: one.version for one in importlib.metadata.distributions()}
found.update(python=platform.python_version(), platform=platform.platform())
print(json.dumps({"version_info": sys.version_info[:2], "versions": found}))
"""


def locate_interpreter(path: str, having: Sequence[str] = REQUIRED_PACKAGES["reference"][:2]) -> str:
    """Return the absolute path of an interpreter. Links are not followed, since a virtual environment is a link.

    Args:
        path: path of a file, or name of a command.
        having: packages that the interpreter should have, for the error message.

    Raises:
        UserError: there is no such executable file.
    """
    expanded_path = os.path.expanduser(expand_user_home(path))
    executable = shutil.which(os.path.abspath(expanded_path) if os.path.exists(expanded_path) else expanded_path)
    if executable is None:
        reason = "is not an executable file" if os.path.exists(expanded_path) else "no such interpreter"
        raise UserError(f"{path}: {reason}; name the Python that has {' and '.join(having)}, such as venv/bin/python")
    return os.path.abspath(executable)


def reference_interpreter(path: str) -> str:
    """Return the absolute path of an interpreter after checking that it can run the reference.

    Args:
        path: path of a file, or name of a command.

    Raises:
        UserError: it is not a Python interpreter.
        Inconclusive: it lacks torch or transformers, or is too old.
    """
    return _check_interpreter(path, "reference")


def interpreter_of(python_path: str | None, side: str) -> str | None:
    """Return the absolute path of an option's interpreter after checking that it can run its side.

    Args:
        python_path: value of ``--reference-python`` or ``--port-python``; None, which is returned, for the gate's
            interpreter.
        side: ``reference`` or ``port``.

    Raises:
        UserError: it is not a Python interpreter. The message names the option.
        Inconclusive: it lacks a package, or is too old. The message names the option.
    """
    try:
        return None if python_path is None else _check_interpreter(python_path, side)
    except ToolkitError as error:
        raise type(error)(f"--{side}-python: {error}") from None


def _check_interpreter(path: str, side: str) -> str:
    """Return the absolute path of an interpreter after checking that it can run ``reference`` or ``port``."""
    executable = locate_interpreter(path, REQUIRED_PACKAGES[side][:2])
    versions_of(executable, side)
    return executable


@functools.cache
def versions_of(interpreter: str, side: str = "reference") -> dict[str, str]:
    """Return the versions of an interpreter's Python, platform and installed packages, by name.

    Args:
        interpreter: path of the interpreter.
        side: side that it is to run, ``reference`` or ``port``.

    Raises:
        UserError: it is not a Python interpreter.
        Inconclusive: it lacks a package of the side, or is too old.
    """
    answer = _query_interpreter(interpreter)
    if tuple(answer["version_info"]) < OLDEST:
        min_version = ".".join(map(str, OLDEST))
        raise Inconclusive(
            f"{interpreter}: is Python {answer['versions']['python']}; the {side} needs {min_version} or newer"
        )
    missing = [
        name for name in REQUIRED_PACKAGES[side] if not {name, INSTEAD.get(name, name)} & answer["versions"].keys()
    ]
    if missing:
        raise Inconclusive(
            f"{interpreter}: lacks {', '.join(missing)}, which the {side} needs; "
            f"{interpreter} -m pip install {' '.join(missing)}"
        )
    return answer["versions"]


def _query_interpreter(interpreter: str) -> dict:
    """Return the answer of an interpreter to :data:`QUESTION`: its ``version_info`` and ``versions``.

    Raises:
        UserError: the interpreter does not answer.
    """
    try:
        process = subprocess.run(
            code_command(interpreter, QUESTION),
            env=launch.worker_environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            stdin=subprocess.DEVNULL,
        )
        answer = json.loads(process.stdout.splitlines()[-1])
        return {"version_info": answer["version_info"], "versions": answer["versions"]}
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, TypeError):
        raise UserError(f"{interpreter}: does not answer as a Python interpreter does") from None
