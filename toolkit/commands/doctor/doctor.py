"""Run all checks in parallel, and print the table of findings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from toolkit.commands.doctor.finding import Finding, reinstall, told
from toolkit.commands.doctor.frameworks import check_environment, check_paddle, check_paddlenlp, check_reference
from toolkit.commands.doctor.machine import check_caches, check_disk, check_memory
from toolkit.commands.doctor.services import check_hub, check_wandb
from toolkit.commands.doctor.versions import check_versions
from toolkit.errors import ToolkitError
from toolkit.terminal.escape import one_line


def diagnose(network: bool, reference_python: str | None) -> int:
    """Print the table; return the exit status, 1 if there is a fault.

    Args:
        network: ask the hub whether it answers.
        reference_python: the interpreter that runs the reference; None for this one.
    """
    with _waiting():
        findings = examine(network, reference_python)
    _show(findings)
    return 1 if any(finding.state == "fault" for finding in findings) else 0


def examine(network: bool, reference_python: str | None) -> list[Finding]:
    """Return all findings, in table order. The checks run in parallel, since some wait for a child."""
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "versions": check_versions,
        "paddle": check_paddle,
        "paddlenlp": check_paddlenlp,
        "threads": check_environment,
        "reference": lambda: check_reference(reference_python),
        "hub": lambda: check_hub(network),
        "wandb": check_wandb,
        "memory": check_memory,
        "disk": check_disk,
        "caches": check_caches,
    }
    with ThreadPoolExecutor(len(checks)) as pool:
        asked = [pool.submit(caught, name, check) for name, check in checks.items()]
    return [finding for answer in asked for finding in answer.result()]


def caught(name: str, check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """Return a check's findings; its failure is one, too."""
    found: list[Finding] = []
    try:
        found.extend(check())
    except ToolkitError as error:
        found.append(Finding(name, "fault", *told(error)))
    except Exception as error:
        message = f"cannot be examined: {type(error).__name__}: {error}"
        found.append(Finding(name, "fault", message, reinstall()))
    return found


def _waiting() -> contextlib.AbstractContextManager:
    """Show on a terminal that work is going on."""
    try:
        from toolkit.terminal.console import LiteralConsole

        return LiteralConsole(stderr=True).status("importing what a run imports")
    except ImportError:
        return contextlib.nullcontext()


def _show(findings: list[Finding]) -> None:
    try:
        from rich.table import Table
        from rich.text import Text

        from toolkit.terminal.console import LiteralConsole
    except ImportError as error:  # that is a fault as well, and the table's absence must not hide it
        print(f"fault  rich: {error}: {reinstall()}")
        for finding in findings:
            print(f"{finding.state:<6} {finding.check}: {one_line(finding.what)}  {one_line(finding.mend)}".rstrip())
        return
    table = Table("check", "", "what", "how to fix it, or details")
    for finding in findings:
        state = Text(finding.state, style={"ok": "green", "warn": "yellow", "fault": "bold red"}[finding.state])
        table.add_row(finding.check, state, one_line(finding.what), finding.mend)
    LiteralConsole().print(table)
    counted = {state: sum(finding.state == state for finding in findings) for state in ("warn", "fault")}
    LiteralConsole().print(f"{_plural(counted['fault'], 'fault')}, {_plural(counted['warn'], 'warning')}")


def _plural(count: int, word: str) -> str:
    return f"{count or 'no'} {word}{'' if count == 1 else 's'}"
