"""`toolkit push RUN OWNER/NAME`: a run's best model and its card on the Hugging Face hub."""

from __future__ import annotations

import re
import shutil
import warnings
from pathlib import Path
from typing import Any

from models.files.hub_errors import Wanted, explain_push
from models.files.plain import UnreadableFile, open_tensors
from toolkit.commands.predict import MEND, read_recipe
from toolkit.errors import ToolkitError, UserError
from toolkit.files.whole import write_text
from toolkit.finetune.card import parity_statement, with_model
from toolkit.machine.scratch import scratch_folder
from toolkit.run_folder.folder import REPORT, read_starts
from toolkit.run_folder.read import read_json, reading
from toolkit.tasks.classification.calibration import logits_note

#: Files of a run that are uploaded only on request: they quote the data.
REPORTS = ("report.html", f"{REPORT}/parity.json", f"{REPORT}/parity.html")
#: Files of `model/` to upload. Others were left unfinished by a killed process, or are no part of a model.
PARTS = re.compile(r"[^.].*\.(json|safetensors|txt|model)")


class PushFailed(ToolkitError):
    """The hub did not take the upload; the message says why."""


def push_run(
    folder: Path,
    repository: str,
    private: bool = False,
    revision: str | None = None,
    message: str | None = None,
    with_report: bool = False,
    despite_skipped_parity: bool = False,
) -> list[str]:
    """Upload a finished run's `model/` and its card.

    Args:
        repository: ``owner/name``, created if missing.
        private: make a new repository private; an existing public one is refused.
        revision: the branch, created if missing; None for the main branch.

    Returns:
        Lines: the files, the address with the commit, and how to read probabilities off the logits, if they are
        calibrated.

    Raises:
        UserError: the folder is no finished run, is damaged, or was trained without the gate.
        PushFailed: the hub did not take the upload.
    """
    read_recipe(folder)
    _check_parity(folder, despite_skipped_parity)
    _check_model(folder / "model")
    if not re.fullmatch(r"[^/\s]+/[^/\s]+", repository):
        raise UserError(f"{repository}: is no name of a repository; write OWNER/NAME, such as my-team/{folder.name}")
    with scratch_folder("toolkit-push-") as staged:
        _stage(folder, staged, repository, with_report)
        files = sorted(path.relative_to(staged).as_posix() for path in staged.rglob("*") if path.is_file())
        try:
            info = _upload(staged, repository, private, revision, message or f"Add {folder.resolve().name}")
        except Exception as error:
            explained = explain_push(error, Wanted(repository, revision))
            if explained is None:
                raise
            raise PushFailed(str(explained)) from error
    line = logits_note(read_json(folder / "metrics.json", MEND).get("calibration", {}))
    notes = [f"note: {line}"] if line else []
    return [f"pushed {', '.join(files)}", f"{info.repo_url} at commit {info.oid}", *notes]


def _check_parity(folder: Path, despite: bool) -> None:
    starts = read_starts(folder)
    if despite or (starts and all(start["passed"] is not None for start in starts)):
        return
    why = next((start["skipped"] for start in starts if start["skipped"] is not None), "nothing is recorded of it")
    raise UserError(
        f"{folder}: was trained without the parity gate ({why}); train with it, or add --despite-skipped-parity: "
        "the card says so"
    )


def _check_model(model: Path) -> None:
    """Raise UserError where the model's files are missing or damaged."""
    read_json(model / "config.json", MEND)
    tensors = sorted(model.glob("*.safetensors"))
    if not any(path.name.startswith("model") for path in tensors):
        raise UserError(f"{model / 'model.safetensors'}: is missing; {MEND}")
    for path in tensors:
        with reading(path, MEND):
            try:
                with open_tensors(path):
                    pass
            except UnreadableFile as error:
                raise UserError(f"{error}; {MEND}") from error


def _stage(folder: Path, staged: Path, repository: str, with_report: bool) -> None:
    """Copy the files to upload into ``staged``, in the repository's layout."""
    for path in sorted((folder / "model").iterdir()):
        if path.is_file() and PARTS.fullmatch(path.name):
            with reading(path, MEND):
                shutil.copy(path, staged)
    with reading(folder / "README.md", "toolkit finetune writes it at the end; restore it from a copy"):
        card = (folder / "README.md").read_text(encoding="utf-8")
    write_text(staged / "README.md", _told(with_model(card, repository), folder))
    for name in REPORTS if with_report else ():
        if (folder / name).is_file():
            (staged / name).parent.mkdir(exist_ok=True)
            shutil.copy(folder / name, staged / name)


def _told(card: str, folder: Path) -> str:
    """Return the card with the run's parity statement, even if somebody has edited that out."""
    statement = parity_statement(read_starts(folder)) or "**Nothing is recorded of the parity gate** of this run."
    return card if statement in card else f"{card.rstrip()}\n\n## Parity with the reference\n\n{statement}\n"


def _upload(staged: Path, repository: str, private: bool, revision: str | None, message: str) -> Any:
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    hub = HfApi(token=True)  # the login's token, which must exist
    hub.create_repo(repository, private=private or None, exist_ok=True)
    if private and not hub.repo_info(repository).private:
        raise UserError(f"--private: {repository} exists and is public; make it private, or name another")
    if revision is not None:
        hub.create_branch(repository, branch=revision, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the card's header
        return hub.upload_folder(repo_id=repository, folder_path=staged, revision=revision, commit_message=message)
