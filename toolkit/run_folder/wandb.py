"""Record a run at Weights & Biases if the recipe enables it. Only this module imports wandb, and only when needed.

Training never depends on wandb. If wandb raises an exception after training has started, a message is printed and the
run continues without it. wandb never prompts, and uses the network only in the mode ``online``. Its error reports,
which it would send even when offline, are off unless ``WANDB_ERROR_REPORTING`` is set.

A resumed run keeps its id (:data:`IDENTITY`), so wandb shows it as the same run. wandb's internal step only grows, but
a resumed run repeats the steps since its last checkpoint. Therefore the x axis of every metric is the metric ``step``:
a repeated step has the same position and value. Rows before the checkpoint that a kill may have lost
(:data:`UNSAFE_SECONDS`) are logged again.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from toolkit.errors import UserError
from toolkit.files.whole import write_text
from toolkit.machine.install import install_command
from toolkit.machine.runtime import installed_versions
from toolkit.recipe.recipe import Recipe
from toolkit.run_folder.folder import REPORT, read_starts
from toolkit.run_folder.read import read_json
from toolkit.terminal.escape import one_line

#: Name of the file in the run folder with wandb's id of the run.
IDENTITY = "wandb_id.txt"
#: Seconds after which wandb writes logged rows to disk. A killed process loses later rows.
FLUSH_SECONDS = 1.0
#: Seconds before a kill whose rows may be lost.
UNSAFE_SECONDS = 5.0
#: Modes of wandb, the most private first. The more private of the recipe's mode and wandb's own setting is used.
MODES = ("disabled", "offline", "online")
#: Alternative name of a mode in wandb -> mode.
SYNONYMS = {"dryrun": "offline", "run": "online", "shared": "online"}
#: Maximum number of characters to show of an error of wandb.
MAX_REASON_LENGTH = 300
#: Pages of a run that are uploaded, if they exist.
PAGES = ("parity/parity.html", "report.html")


def check_wandb(recipe: Recipe) -> None:
    """Check before any computation that wandb can record the run.

    Raises:
        UserError: wandb is not installed, its settings are wrong, or a login is missing; the message has a remedy.
    """
    if importlib.util.find_spec("wandb") is None:
        raise recipe.error(
            "tracking.wandb", f"wandb is not installed; {install_command('tracking')}, or set it to false"
        )
    try:
        own_mode, logged_in = own_settings()
    except Exception as error:
        message = f"wandb does not start: {_describe_error(error)}; mend that, or set it to false"
        raise recipe.error("tracking.wandb", message) from error
    if more_private(own_mode, recipe.tracking.wandb_mode) == "online" and not logged_in:
        raise recipe.error(
            "tracking.wandb",
            "nobody is logged in at Weights & Biases; `wandb login`, or set tracking.wandb_mode: offline "
            "(or WANDB_MODE=offline), and `wandb sync` sends the run later",
        )


def own_settings() -> tuple[str, bool]:
    """Return wandb's own mode (:data:`MODES`), and whether there is a login, without using the network."""
    wandb = _wandb()
    from requests.utils import get_netrc_auth

    settings = wandb.setup().settings
    mode = SYNONYMS.get(settings.mode, settings.mode)
    key = settings.api_key or os.environ.get("WANDB_IDENTITY_TOKEN_FILE") or get_netrc_auth(settings.base_url)
    return mode, bool(key)


def more_private(own_mode: str, recipe_mode: str | None) -> str:
    """Return the more private of wandb's own mode and the recipe's mode, which is ``online`` by default."""
    return min(own_mode, recipe_mode or "online", key=MODES.index)


class WandbRun:
    """A run at wandb, whose methods never raise an exception of wandb.

    Args:
        folder: folder of the run; wandb writes to ``wandb/`` in it.
        recipe: recipe, whose content becomes wandb's config.
        on_warning: function that is called with a message if wandb fails.
    """

    def __init__(self, folder: Path, recipe: Recipe, on_warning: Callable[[str], None]) -> None:
        self._folder = folder
        self._on_warning = on_warning
        self._run: Any = None
        with self._continuing_after_errors():
            self._run = _start_run(folder, recipe)

    def log(self, row: dict[str, Any], metrics: dict[str, Any]) -> None:
        """Record ``metrics``, metric -> value, at the step and epoch of a row of metrics."""
        with self._continuing_after_errors():
            if self._run is not None:
                self._run.log({"step": row["step"], "epoch": row["epoch"], **metrics})

    def summarize(self, results: dict[str, Any]) -> None:
        """Record the content of metrics.json: the best step, and the metrics of each split at this step."""
        best = results["best"]
        summary = {"best/step": best["step"], f"best/{best['metric']}": best["value"]}
        for split_name in ("validation", "test"):
            prefix = "test" if split_name == "test" else "best/validation"
            summary |= {f"{prefix}/{name}": value for name, value in results.get(split_name, {}).items()}
        with self._continuing_after_errors():
            if self._run is not None:
                self._run.summary.update(summary)

    def keep_files(self, *, log_model: bool) -> None:
        """Upload the run's pages, and its model folder as an artifact if ``log_model`` is set."""
        with self._continuing_after_errors():
            if self._run is None:
                return
            for page in PAGES:
                if (self._folder / page).is_file():
                    self._run.save(str(self._folder / page), base_path=str(self._folder), policy="now")
            if log_model:
                artifact = _wandb().Artifact(f"model-{self._run.id}", type="model")
                artifact.add_dir(str(self._folder / "model"))
                self._run.log_artifact(artifact)

    def close(self, exit_status: int = 0) -> None:
        """Send all remaining data. An exit status other than 0 marks the run as failed."""
        with self._continuing_after_errors():
            if self._run is not None:
                self._run.finish(exit_code=exit_status)
                _wandb().teardown()  # waits until wandb's background process has written all data of finish()

    @contextlib.contextmanager
    def _continuing_after_errors(self) -> Iterator[None]:
        """Turn an error of wandb in the ``with`` block into a warning, and stop to send metrics."""
        try:
            yield
        except Exception as error:
            self._run = None
            self._on_warning(f"wandb failed, and the run goes on without it: {_describe_error(error)}")


def gate_summary(folder: Path) -> dict[str, Any]:
    """Return a summary of the gate at the latest start of a run.

    Returns:
        ``gate/status`` is ``passed`` or ``skipped: REASON``. After a passed gate, ``gate/tensors`` is the number of
        comparisons, ``gate/nearest`` the tensor nearest to its bound, and ``gate/margin`` its error as a fraction of
        the bound.
    """
    start = read_starts(folder)[-1:]
    if not start or start[0]["passed"] is None:
        return {"gate/status": f"skipped: {start[0]['skipped'] if start else 'unknown'}"}
    summary: dict[str, Any] = {"gate/status": "passed"}
    with contextlib.suppress(UserError, KeyError, TypeError):  # the report was edited or is damaged
        tensors = read_json(folder / REPORT / "parity.json", "")["tensors"]
        nearest = max(tensors, key=lambda tensor: tensor["margin"])
        summary["gate/tensors"] = len(tensors)
        summary |= {"gate/nearest": f"{nearest['name']} ({nearest['dtype']})", "gate/margin": nearest["margin"]}
    return summary


def _start_run(folder: Path, recipe: Recipe) -> Any:
    """Start wandb's run of a run folder, or continue it, and return wandb's object."""
    wandb = _wandb()
    run = wandb.init(
        project=recipe.tracking.project or "toolkit",
        name=folder.name,
        id=_run_id(folder),
        resume="allow",
        dir=str(folder),
        mode=more_private(own_settings()[0], recipe.tracking.wandb_mode),
        config={**recipe.model_dump(mode="json"), "versions": installed_versions()},
        allow_val_change=True,
        # wandb prints nothing, since the terminal shows this program's progress bar.
        settings=wandb.Settings(silent=True, console="off", x_transaction_log_flush_interval=FLUSH_SECONDS),
    )
    run.define_metric("step", hidden=True)
    run.define_metric("*", step_metric="step")
    run.summary.update(gate_summary(folder))
    return run


def _run_id(folder: Path) -> str:
    """Return wandb's id of the run, which is created at its first start."""
    path = folder / IDENTITY
    with contextlib.suppress(OSError, ValueError):
        saved_id = path.read_text(encoding="utf-8").strip()
        if re.fullmatch("[0-9a-z]{8,64}", saved_id):
            return saved_id
    new_id = secrets.token_hex(4)
    write_text(path, new_id + "\n")
    return new_id


def _wandb() -> Any:
    """Import wandb with quiet settings. It reads these variables at import and passes them to its own process."""
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    return wandb


def _describe_error(error: Exception) -> str:
    """Return an error of wandb in one line, with its type and its complete message."""
    reason = one_line(str(error))
    return f"{type(error).__name__}: {reason[:MAX_REASON_LENGTH]}" if reason else type(error).__name__
