"""Check the hub of models and data sets, and Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Iterator

from toolkit.commands.doctor.child import run_in_child
from toolkit.commands.doctor.finding import MAX_MESSAGE_LENGTH, Finding, reinstall_command
from toolkit.machine.install import install_command
from toolkit.machine.runtime import distribution_version
from toolkit.terminal.escape import one_line

#: Time limit for the hub's answer, in seconds.
NETWORK_TIMEOUT = 5.0

HUB = """
from huggingface_hub import constants, get_token
say(endpoint=constants.ENDPOINT, offline=bool(constants.HF_HUB_OFFLINE), token=get_token() is not None)
"""


def check_hub(*, network: bool) -> Iterator[Finding]:
    """Check the settings of the hub of models and data sets; if ``network``, also check that the hub answers."""
    answer = run_in_child(HUB)
    if answer.failure:
        yield Finding("hub", "fault", f"huggingface_hub does not work: {answer.failure}", reinstall_command())
        return
    endpoint = str(answer.values["endpoint"])
    mirror = "mirror " if os.environ.get("HF_ENDPOINT") else ""
    token = "with a token" if answer.values["token"] else "without a token"
    if not endpoint.startswith(("https://", "http://")):
        description = f"HF_ENDPOINT={endpoint} is no address"
        yield Finding("hub", "fault", description, "export HF_ENDPOINT=https://..., or unset HF_ENDPOINT")
    elif answer.values["offline"]:
        yield Finding("hub", "ok", "offline (HF_HUB_OFFLINE): only its cache is used")
    elif not network:
        yield Finding("hub", "ok", f"{mirror}{endpoint}, {token}; not asked", "toolkit doctor --network")
    elif reason := _why_unreachable(endpoint):
        remedy = "export HF_ENDPOINT=https://hf-mirror.com or another mirror; or HF_HUB_OFFLINE=1 for its cache alone"
        yield Finding("hub", "warn", f"{mirror}{endpoint} does not answer: {reason}", remedy)
    else:
        yield Finding("hub", "ok", f"{mirror}{endpoint} answers, {token}")


def _why_unreachable(address: str) -> str:
    """Return why an address does not answer; empty if it answers, even with an HTTP error."""
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=NETWORK_TIMEOUT):
            return ""
    except urllib.error.HTTPError:
        return ""
    except (OSError, ValueError) as error:
        return one_line(str(getattr(error, "reason", error)))[:MAX_MESSAGE_LENGTH] or type(error).__name__


WANDB = """
from toolkit.run_folder.wandb import own_settings
mode, logged_in = own_settings()
import wandb
say(mode=mode, logged_in=logged_in, version=wandb.__version__)
wandb.teardown()
"""


def check_wandb() -> Iterator[Finding]:
    """Check Weights & Biases, which only a recipe with ``tracking.wandb`` needs."""
    if not distribution_version("wandb"):
        yield Finding("wandb", "ok", "not installed; only tracking.wandb needs it", install_command("tracking"))
        return
    answer = run_in_child(WANDB)
    if answer.failure:
        description = f"does not start, so tracking.wandb cannot be used: {answer.failure}"
        yield Finding("wandb", "warn", description, install_command("tracking"))
    elif answer.values["mode"] == "online" and not answer.values["logged_in"]:
        description = f"{answer.values['version']}, nobody is logged in; only tracking.wandb needs it"
        yield Finding("wandb", "ok", description, "wandb login, or tracking.wandb_mode=offline")
    else:
        login_state = "somebody is logged in" if answer.values["logged_in"] else "nobody is logged in"
        yield Finding("wandb", "ok", f"{answer.values['version']}, {answer.values['mode']}, {login_state}")
