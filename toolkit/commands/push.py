"""`toolkit push RUN OWNER/NAME`: upload a run's best model and its card to the Hugging Face hub."""

from __future__ import annotations

import re
import shutil
import warnings
from pathlib import Path
from typing import Any

from models.files.hub_errors import HubRequest, explain_push_error
from models.files.plain import UnreadableFileError, open_tensors
from toolkit.commands.predict import MODEL_REMEDY, read_recipe
from toolkit.errors import ToolkitError, UserError
from toolkit.files.whole import write_text
from toolkit.finetune.card import parity_statement, with_model
from toolkit.machine.scratch import scratch_folder
from toolkit.run_folder.folder import REPORT, read_starts
from toolkit.run_folder.read import read_calibration, read_json, reading
from toolkit.tasks.classification.calibration import logits_note

#: Files of a run that are uploaded only on request: they quote the data.
REPORT_FILES = ("report.html", f"{REPORT}/parity.json", f"{REPORT}/parity.html")
#: Pattern of the file names in `model/` to upload. Other files do not belong to the model or are unfinished.
MODEL_FILE_NAME = re.compile(r"[^.].*\.(json|safetensors|txt|model)")


class PushError(ToolkitError):
    """The hub rejected the upload. The message gives the reason."""


def push_run(
    folder: Path,
    repository: str,
    revision: str | None = None,
    message: str | None = None,
    *,
    private: bool = False,
    with_report: bool = False,
    despite_skipped_parity: bool = False,
) -> list[str]:
    """Upload a finished run's `model/` and its card.

    Args:
        folder: folder of a finished run.
        repository: repository ``owner/name``, created if missing.
        private: whether a new repository is private; an existing public repository is an error.
        revision: branch, created if missing; None for the main branch.
        message: commit message; None for ``Add`` and the name of the folder.
        with_report: whether the reports are uploaded too.
        despite_skipped_parity: whether a run that was trained without the parity gate may be uploaded.

    Returns:
        Lines to print: the files, the address with the commit, and how to compute probabilities from calibrated
        logits.

    Raises:
        UserError: the folder is not a finished run, is damaged, or was trained without the gate.
        PushError: the hub rejected the upload.
    """
    read_recipe(folder)
    _check_parity(folder, despite_skipped_parity=despite_skipped_parity)
    _check_model(folder / "model")
    if not re.fullmatch(r"[^/\s]+/[^/\s]+", repository):
        raise UserError(f"{repository}: is no name of a repository; write OWNER/NAME, such as my-team/{folder.name}")
    with scratch_folder("toolkit-push-") as staging_dir:
        _copy_files(folder, staging_dir, repository, with_report=with_report)
        files = sorted(path.relative_to(staging_dir).as_posix() for path in staging_dir.rglob("*") if path.is_file())
        try:
            info = _upload(
                staging_dir, repository, revision, message or f"Add {folder.resolve().name}", private=private
            )
        except Exception as error:
            explanation = explain_push_error(error, HubRequest(repository, revision))
            if explanation is None:
                raise
            raise PushError(str(explanation)) from error
    calibration_note = logits_note(read_calibration(folder, MODEL_REMEDY))
    notes = [f"note: {calibration_note}"] if calibration_note else []
    return [f"pushed {', '.join(files)}", f"{info.repo_url} at commit {info.oid}", *notes]


def _check_parity(folder: Path, *, despite_skipped_parity: bool) -> None:
    """Reject a run that was trained without the parity gate, unless ``despite_skipped_parity``."""
    starts = read_starts(folder)
    if despite_skipped_parity or (starts and all(start["passed"] is not None for start in starts)):
        return
    reason = next((start["skipped"] for start in starts if start["skipped"] is not None), "nothing is recorded of it")
    raise UserError(
        f"{folder}: was trained without the parity gate ({reason}); train with it, or add --despite-skipped-parity: "
        "the card says so"
    )


def _check_model(model_path: Path) -> None:
    """Check that the files of the model exist and can be read.

    Raises:
        UserError: a file is missing or damaged.
    """
    read_json(model_path / "config.json", MODEL_REMEDY)
    tensors = sorted(model_path.glob("*.safetensors"))
    if not any(path.name.startswith("model") for path in tensors):
        raise UserError(f"{model_path / 'model.safetensors'}: is missing; {MODEL_REMEDY}")
    for path in tensors:
        with reading(path, MODEL_REMEDY):
            try:
                with open_tensors(path):
                    pass
            except UnreadableFileError as error:
                raise UserError(f"{error}; {MODEL_REMEDY}") from error


def _copy_files(folder: Path, staging_dir: Path, repository: str, *, with_report: bool) -> None:
    """Copy the files to upload into the folder ``staging_dir``, in the layout of the repository."""
    for path in sorted((folder / "model").iterdir()):
        if path.is_file() and MODEL_FILE_NAME.fullmatch(path.name):
            with reading(path, MODEL_REMEDY):
                shutil.copy(path, staging_dir)
    with reading(folder / "README.md", "toolkit finetune writes it at the end; restore it from a copy"):
        card = (folder / "README.md").read_text(encoding="utf-8")
    write_text(staging_dir / "README.md", _with_parity_statement(with_model(card, repository), folder))
    for name in REPORT_FILES if with_report else ():
        if (folder / name).is_file():
            (staging_dir / name).parent.mkdir(exist_ok=True)
            shutil.copy(folder / name, staging_dir / name)


def _with_parity_statement(card: str, folder: Path) -> str:
    """Return the card with the run's parity statement, which is added if the card does not contain it."""
    statement = parity_statement(read_starts(folder)) or "**Nothing is recorded of the parity gate** of this run."
    return card if statement in card else f"{card.rstrip()}\n\n## Parity with the reference\n\n{statement}\n"


def _upload(staging_dir: Path, repository: str, revision: str | None, message: str, *, private: bool) -> Any:
    """Create the repository on the hub if it is missing, and upload a folder to it as one commit.

    Args:
        staging_dir: folder to upload.
        repository: name of the repository, ``owner/name``.
        private: whether the repository must be private.
        revision: branch for the commit, created if it is missing; None for the main branch.
        message: message of the commit.

    Returns:
        Information of huggingface_hub about the commit.
    """
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
        return hub.upload_folder(repo_id=repository, folder_path=staging_dir, revision=revision, commit_message=message)
