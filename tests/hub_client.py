"""Run the real client of :mod:`models.files.hub` for one request per line, so that many requests share a start.

A line of the standard input is a JSON object: ``id``, ``revision``, ``token`` (or null); or the path of a ``recipe``,
whose data is loaded. The response is a JSON object with ``folder`` and the names of its ``files``, with the ``rows`` of
each split, or with ``error`` and ``reason``. Any other error is a traceback and ends the program.
"""

import json
import os
import sys
import time
from pathlib import Path

from models.files.hub import resolve_folder, tensor_files
from models.files.hub_errors import HubError
from models.files.plain import UnreadableFileError, open_tensors, read_object


def load_data(recipe: str) -> dict:
    """Return the data of a recipe, or its error."""
    from toolkit.errors import UserError
    from toolkit.recipe.load import load_recipe
    from toolkit.tasks import task_of

    try:
        loaded_recipe = load_recipe(recipe)
        splits = task_of(loaded_recipe).load_splits(loaded_recipe)
    except UserError as problem:
        return {"error": str(problem), "reason": "UserError"}
    rows = {name: list(rows["text"]) for name, rows in splits.items()}
    return {"rows": rows, "commit": loaded_recipe.findings.commits.get("data"), "notes": loaded_recipe.findings.notes}


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
    except (UnreadableFileError, FileNotFoundError) as problem:
        return {"error": str(problem), "reason": type(problem).__name__}
    return {"folder": str(folder), "files": sorted(path.name for path in Path(folder).iterdir())}


if __name__ == "__main__":
    # The client would wait for 24 s in all between its retries, although the loopback hub does not change.
    time.sleep = lambda seconds, sleep=time.sleep: sleep(seconds / 20)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(load_data(**request) if "recipe" in request else answer(**request)), flush=True)
