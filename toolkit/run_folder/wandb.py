"""A run at Weights & Biases, where the recipe asks for it; wandb is imported nowhere else, and only then.

Training never depends on it: what wandb raises once training has begun is told in a line, and the run goes on without.
wandb prompts for nothing, and outside ``online`` contacts nobody: its error reports, which it sends even when offline,
are off unless ``WANDB_ERROR_REPORTING`` is set.

A resumed run is the same run there: it keeps its id, in :data:`IDENTITY`. wandb's own step only ever grows, while a
resumed run repeats the steps since its last checkpoint. So the x axis of every metric is a number of ours, ``step``: a
repeated step lands where it was, with the same value. Rows before the checkpoint that a kill may have lost
(:data:`UNSAFE_SECONDS`) are logged again likewise.
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
from toolkit.machine.runtime import versions
from toolkit.recipe.recipe import Recipe
from toolkit.run_folder.folder import REPORT, read_starts
from toolkit.run_folder.read import read_json
from toolkit.terminal.escape import one_line

#: In the run folder: the id under which wandb knows the run.
IDENTITY = "wandb_id.txt"
#: Seconds after which wandb writes what it was given; a killed process loses the rest.
FLUSH_SECONDS = 1.0
#: Rows of this many seconds before a kill may not have been written.
UNSAFE_SECONDS = 5.0
#: Modes, the most private first. Of the recipe's mode and wandb's own setting, the more private counts.
MODES = ("disabled", "offline", "online")
#: wandb's other names for them.
SYNONYMS = {"dryrun": "offline", "run": "online", "shared": "online"}
#: Most characters of a wandb error shown.
LONGEST_REASON = 300
#: Pages of a run that are kept with it, if present.
PAGES = ("parity/parity.html", "report.html")


def check_wandb(recipe: Recipe) -> None:
    """Stop before any computation if wandb could not take the run: a UserError, with what to do, if it is not
    installed, its settings are wrong, or nobody is logged in."""
    if importlib.util.find_spec("wandb") is None:
        raise recipe.error(
            "tracking.wandb", f"wandb is not installed; {install_command('tracking')}, or set it to false"
        )
    try:
        own_mode, logged_in = own_settings()
    except Exception as error:
        message = f"wandb does not start: {_reason(error)}; mend that, or set it to false"
        raise recipe.error("tracking.wandb", message) from error
    if more_private(own_mode, recipe.tracking.wandb_mode) == "online" and not logged_in:
        raise recipe.error(
            "tracking.wandb",
            "nobody is logged in at Weights & Biases; `wandb login`, or set tracking.wandb_mode: offline "
            "(or WANDB_MODE=offline), and `wandb sync` sends the run later",
        )


def own_settings() -> tuple[str, bool]:
    """The mode (:data:`MODES`) that wandb's environment and files set, and whether it has a key; asks nobody."""
    wandb = _wandb()
    from requests.utils import get_netrc_auth

    settings = wandb.setup().settings
    mode = SYNONYMS.get(settings.mode, settings.mode)
    key = settings.api_key or os.environ.get("WANDB_IDENTITY_TOKEN_FILE") or get_netrc_auth(settings.base_url)
    return mode, bool(key)


def more_private(own_mode: str, wanted: str | None) -> str:
    """The mode of a run: the recipe's, unless wandb is set to a more private one."""
    return min(own_mode, wanted or "online", key=MODES.index)


class WandbRun:
    """The run at wandb. No method raises what wandb raises.

    Args:
        folder: the run folder; wandb's files go into ``wandb/`` there.
        recipe: its content is the run's config.
        tell: told in a line if wandb fails.
    """

    def __init__(self, folder: Path, recipe: Recipe, tell: Callable[[str], None]) -> None:
        self._folder = folder
        self._tell = tell
        self._run: Any = None
        with self._going_on_without():
            self._run = _start(folder, recipe)

    def log(self, row: dict[str, Any], numbers: dict[str, Any]) -> None:
        """Record a row of metrics: ``numbers`` by their names, at the row's step and epoch."""
        with self._going_on_without():
            if self._run is not None:
                self._run.log({"step": row["step"], "epoch": row["epoch"], **numbers})

    def summarize(self, results: dict[str, Any]) -> None:
        """Record the content of metrics.json: the best step, and each split's numbers at it."""
        best = results["best"]
        summary = {"best/step": best["step"], f"best/{best['metric']}": best["value"]}
        for split in ("validation", "test"):
            prefix = "test" if split == "test" else "best/validation"
            summary |= {f"{prefix}/{name}": value for name, value in results.get(split, {}).items()}
        with self._going_on_without():
            if self._run is not None:
                self._run.summary.update(summary)

    def keep_files(self, log_model: bool) -> None:
        """Give wandb the run's pages, and its model folder as an artifact if that is wanted."""
        with self._going_on_without():
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
        """Send what is still to be sent; a status other than 0 marks the run as failed."""
        with self._going_on_without():
            if self._run is not None:
                self._run.finish(exit_code=exit_status)
                _wandb().teardown()  # waits until wandb's own process has written what finish() has only handed over

    @contextlib.contextmanager
    def _going_on_without(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._run = None
            self._tell(f"wandb failed, and the run goes on without it: {_reason(error)}")


def gate_summary(folder: Path) -> dict[str, Any]:
    """Summarize how this start of a run passed or skipped the gate.

    Returns:
        ``gate/status``: passed, or skipped: REASON. If passed, ``gate/tensors``: number of comparisons;
        ``gate/nearest`` and ``gate/margin``: the one nearest to its bound, and how near, as a share.
    """
    start = read_starts(folder)[-1:]
    if not start or start[0]["passed"] is None:
        return {"gate/status": f"skipped: {start[0]['skipped'] if start else 'unknown'}"}
    found: dict[str, Any] = {"gate/status": "passed"}
    with contextlib.suppress(UserError, KeyError, TypeError):  # somebody has changed the report
        tensors = read_json(folder / REPORT / "parity.json", "")["tensors"]
        nearest = max(tensors, key=lambda one: one["margin"])
        found["gate/tensors"] = len(tensors)
        found |= {"gate/nearest": f"{nearest['name']} ({nearest['dtype']})", "gate/margin": nearest["margin"]}
    return found


def _start(folder: Path, recipe: Recipe) -> Any:
    wandb = _wandb()
    run = wandb.init(
        project=recipe.tracking.project or "toolkit",
        name=folder.name,
        id=_identity(folder),
        resume="allow",
        dir=str(folder),
        mode=more_private(own_settings()[0], recipe.tracking.wandb_mode),
        config={**recipe.model_dump(mode="json"), "versions": versions()},
        allow_val_change=True,
        # The terminal shows this program's bars, and its own lines only.
        settings=wandb.Settings(silent=True, console="off", x_transaction_log_flush_interval=FLUSH_SECONDS),
    )
    run.define_metric("step", hidden=True)
    run.define_metric("*", step_metric="step")
    run.summary.update(gate_summary(folder))
    return run


def _identity(folder: Path) -> str:
    """The run's id, made with its first start."""
    path = folder / IDENTITY
    with contextlib.suppress(OSError, ValueError):
        kept = path.read_text(encoding="utf-8").strip()
        if re.fullmatch("[0-9a-z]{8,64}", kept):
            return kept
    made = secrets.token_hex(4)
    write_text(path, made + "\n")
    return made


def _wandb() -> Any:
    """The module, which reads these variables when it is imported and hands them to the process that it starts."""
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    return wandb


def _reason(problem: Exception) -> str:
    """wandb's error in one line. Its kind alone says little, and so does the first line of a wrong setting's."""
    reason = one_line(str(problem))
    return f"{type(problem).__name__}: {reason[:LONGEST_REASON]}" if reason else type(problem).__name__
