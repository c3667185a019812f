"""A program: the real client behind :mod:`models.hub`, asked line by line, so that many questions share a start.

A line of the standard input is a JSON object: ``id``, ``revision``, ``token`` (or null). The answer is one, too:
``folder`` and the names of its ``files``; or ``error`` and ``reason``. What is neither is a traceback,
and ends the program.
"""

import json
import os
import sys
from pathlib import Path

from models.files import UnreadableFile, open_tensors, read_object
from models.hub import resolve_folder, tensor_files
from models.hub_errors import HubError


def answer(id: str, revision: str | None = None, token: str | None = None, read: bool = False) -> dict:
    os.environ.pop("HF_TOKEN", None)
    if token:
        os.environ["HF_TOKEN"] = token
    try:
        folder = resolve_folder(id, revision)
        if read:
            read_object(folder / "config.json")
            for file in tensor_files(folder):
                with open_tensors(file):
                    pass
    except HubError as problem:
        return {"error": str(problem), "reason": problem.reason}
    except (UnreadableFile, FileNotFoundError) as problem:
        return {"error": str(problem), "reason": type(problem).__name__}
    return {"folder": str(folder), "files": sorted(path.name for path in Path(folder).iterdir())}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), flush=True)
