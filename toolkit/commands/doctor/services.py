"""Check the hub of models and data sets, and Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Iterator

from toolkit.commands.doctor.child import ask
from toolkit.commands.doctor.finding import LONGEST_WORDS, Finding, reinstall
from toolkit.machine.install import install_command
from toolkit.machine.runtime import version_of
from toolkit.terminal.escape import one_line

#: Seconds for the hub's answer.
NETWORK_PATIENCE = 5.0

HUB = """
from huggingface_hub import constants, get_token
say(endpoint=constants.ENDPOINT, offline=bool(constants.HF_HUB_OFFLINE), token=get_token() is not None)
"""


def check_hub(network: bool) -> Iterator[Finding]:
    """Check where models and data sets come from; with ``network``, that the hub answers."""
    answer = ask(HUB)
    if answer.failed:
        yield Finding("hub", "fault", f"huggingface_hub does not work: {answer.failed}", reinstall())
        return
    endpoint = str(answer.said["endpoint"])
    mirror = "mirror " if os.environ.get("HF_ENDPOINT") else ""
    token = "with a token" if answer.said["token"] else "without a token"
    if not endpoint.startswith(("https://", "http://")):
        what = f"HF_ENDPOINT={endpoint} is no address"
        yield Finding("hub", "fault", what, "export HF_ENDPOINT=https://..., or unset HF_ENDPOINT")
    elif answer.said["offline"]:
        yield Finding("hub", "ok", "offline (HF_HUB_OFFLINE): only its cache is used")
    elif not network:
        yield Finding("hub", "ok", f"{mirror}{endpoint}, {token}; not asked", "toolkit doctor --network")
    elif unreachable := _unreachable(endpoint):
        mend = "export HF_ENDPOINT=https://hf-mirror.com or another mirror; or HF_HUB_OFFLINE=1 for its cache alone"
        yield Finding("hub", "warn", f"{mirror}{endpoint} does not answer: {unreachable}", mend)
    else:
        yield Finding("hub", "ok", f"{mirror}{endpoint} answers, {token}")


def _unreachable(address: str) -> str:
    """Say why an address does not answer; empty if it does, whatever it says."""
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=NETWORK_PATIENCE):
            return ""
    except urllib.error.HTTPError:
        return ""
    except (OSError, ValueError) as error:
        return one_line(str(getattr(error, "reason", error)))[:LONGEST_WORDS] or type(error).__name__


WANDB = """
from toolkit.run_folder.wandb import own_settings
mode, logged_in = own_settings()
import wandb
say(mode=mode, logged_in=logged_in, version=wandb.__version__)
wandb.teardown()
"""


def check_wandb() -> Iterator[Finding]:
    """Check Weights & Biases, which only a recipe with ``tracking.wandb`` needs."""
    if not version_of("wandb"):
        yield Finding("wandb", "ok", "not installed; only tracking.wandb needs it", install_command("tracking"))
        return
    answer = ask(WANDB)
    if answer.failed:
        what = f"does not start, so tracking.wandb cannot be used: {answer.failed}"
        yield Finding("wandb", "warn", what, install_command("tracking"))
    elif answer.said["mode"] == "online" and not answer.said["logged_in"]:
        what = f"{answer.said['version']}, nobody is logged in; only tracking.wandb needs it"
        yield Finding("wandb", "ok", what, "wandb login, or tracking.wandb_mode=offline")
    else:
        known = "somebody is logged in" if answer.said["logged_in"] else "nobody is logged in"
        yield Finding("wandb", "ok", f"{answer.said['version']}, {answer.said['mode']}, {known}")
