"""The Python that runs the reference, if it is another than the gate's (``--reference-python``).

Two environments then need not fit together: the reference's has torch, transformers, numpy and safetensors, and no
Paddle. All that is known of it is what it says of itself.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess

from models.files.another_python import code_command
from toolkit.errors import Inconclusive, UserError
from toolkit.machine.home import in_own_home
from toolkit.parity.job import launch

#: What the reference imports. SentencePiece is only for runs whose tokenizer is to be compared.
NEEDED = ("torch", "transformers", "numpy", "safetensors")
#: The oldest Python that reads this source.
OLDEST = (3, 10)
#: Seconds after which a silent interpreter counts as none.
PATIENCE = 60.0
#: The question. It looks at metadata and imports nothing heavy, so the answer takes some tens of milliseconds.
QUESTION = """
import importlib.metadata, json, platform, sys
found = {"python": platform.python_version(), "platform": platform.platform()}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps({"version_info": sys.version_info[:2], "versions": found}))
"""


def locate(path: str) -> str:
    """The interpreter as an absolute path. Links are not followed: a virtual environment is known by its own.

    Args:
        path: of a file, or a command's name.

    Raises:
        UserError: there is nothing that could be run.
    """
    written = os.path.expanduser(in_own_home(path))
    found = shutil.which(os.path.abspath(written) if os.path.exists(written) else written)
    if found is None:
        reason = "is not an executable file" if os.path.exists(written) else "no such interpreter"
        raise UserError(f"{path}: {reason}; name the Python that has torch and transformers, such as venv/bin/python")
    return os.path.abspath(found)


def reference_interpreter(path: str) -> str:
    """The interpreter as an absolute path, once it has said that it can run the reference.

    Raises:
        UserError: it is not an interpreter.
        Inconclusive: it is one that lacks torch or transformers.
    """
    found = locate(path)
    versions_of(found)
    return found


@functools.cache
def versions_of(interpreter: str) -> dict[str, str]:
    """Name -> version of Python and of what the reference needs, as the interpreter itself says.

    Raises:
        UserError: it is not a Python.
        Inconclusive: it is one that cannot run the reference.
    """
    answer = _ask(interpreter)
    if tuple(answer["version_info"]) < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise Inconclusive(
            f"{interpreter}: is Python {answer['versions']['python']}; the reference needs {needed} or newer"
        )
    missing = [name for name in NEEDED if name not in answer["versions"]]
    if missing:
        raise Inconclusive(
            f"{interpreter}: lacks {', '.join(missing)}, which the reference needs; "
            f"{interpreter} -m pip install {' '.join(missing)}"
        )
    return answer["versions"]


def _ask(interpreter: str) -> dict:
    try:
        done = subprocess.run(
            code_command(interpreter, QUESTION, *NEEDED, "sentencepiece", "tokenizers"),
            env=launch.worker_environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            stdin=subprocess.DEVNULL,
        )
        answer = json.loads(done.stdout.splitlines()[-1])
        return {"version_info": answer["version_info"], "versions": answer["versions"]}
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, TypeError):
        raise UserError(f"{interpreter}: does not answer as a Python interpreter does") from None
