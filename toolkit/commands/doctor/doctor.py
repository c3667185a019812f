"""Run all checks in parallel, and print the table of findings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from toolkit.commands.doctor.finding import Finding, reinstall_command, split_message
from toolkit.commands.doctor.frameworks import (
    check_environment,
    check_loops,
    check_paddle,
    check_paddlenlp,
    check_reference,
)
from toolkit.commands.doctor.machine import check_caches, check_disk, check_memory
from toolkit.commands.doctor.services import check_hub, check_wandb
from toolkit.commands.doctor.versions import check_versions
from toolkit.errors import ToolkitError
from toolkit.terminal.escape import one_line


def print_diagnosis(reference_python: str | None, *, network: bool) -> int:
    """Print the table of findings; return the exit status, 1 if there is a fault.

    Args:
        network: whether the hub is contacted.
        reference_python: path of the Python that runs the reference; None for the running Python.
    """
    with _show_status():
        findings = run_checks(reference_python, network=network)
    _print_findings(findings)
    return 1 if any(finding.state == "fault" for finding in findings) else 0


def run_checks(reference_python: str | None, *, network: bool) -> list[Finding]:
    """Return all findings in table order. The checks run in parallel, since some start child processes.

    Args:
        network: whether the network is checked, too.
        reference_python: path of the Python that runs the reference; None for the running Python.
    """
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "versions": check_versions,
        "paddle": check_paddle,
        "paddlenlp": check_paddlenlp,
        "loops": check_loops,
        "threads": check_environment,
        "reference": lambda: check_reference(reference_python),
        "hub": lambda: check_hub(network=network),
        "wandb": check_wandb,
        "memory": check_memory,
        "disk": check_disk,
        "caches": check_caches,
    }
    with ThreadPoolExecutor(len(checks)) as pool:
        futures = [pool.submit(run_check, name, check) for name, check in checks.items()]
    return [finding for future in futures for finding in future.result()]


def run_check(name: str, check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """Run a check and return its findings. If it raises an exception, add a finding for the failure."""
    findings: list[Finding] = []
    try:
        findings.extend(check())
    except ToolkitError as error:
        findings.append(Finding(name, "fault", *split_message(error)))
    except Exception as error:
        message = f"cannot be examined: {type(error).__name__}: {error}"
        findings.append(Finding(name, "fault", message, reinstall_command()))
    return findings


def _show_status() -> contextlib.AbstractContextManager:
    """Return a context that shows a status line on a terminal while the checks run."""
    try:
        from toolkit.terminal.console import LiteralConsole

        return LiteralConsole(stderr=True).status("importing what a run imports")
    except ImportError:
        return contextlib.nullcontext()


def _print_findings(findings: list[Finding]) -> None:
    """Print the findings as a table with a summary; without the package rich, print a line for each."""
    try:
        from rich.table import Table
        from rich.text import Text

        from toolkit.terminal.console import LiteralConsole
    except ImportError as error:  # without rich, print lines instead of a table
        print(f"fault  rich: {error}: {reinstall_command()}")
        for finding in findings:
            print(
                f"{finding.state:<6} {finding.check}: {one_line(finding.description)}  "
                f"{one_line(finding.remedy)}".rstrip()
            )
        return
    table = Table("check", "", "what", "how to fix it, or details")
    for finding in findings:
        state = Text(finding.state, style={"ok": "green", "warn": "yellow", "fault": "bold red"}[finding.state])
        table.add_row(finding.check, state, one_line(finding.description), finding.remedy)
    LiteralConsole().print(table)
    counts = {state: sum(finding.state == state for finding in findings) for state in ("warn", "fault")}
    LiteralConsole().print(f"{_plural(counts['fault'], 'fault')}, {_plural(counts['warn'], 'warning')}")


def _plural(count: int, word: str) -> str:
    """Return a count with its noun, such as ``no faults``, ``1 fault`` or ``2 faults``."""
    return f"{count or 'no'} {word}{'' if count == 1 else 's'}"
