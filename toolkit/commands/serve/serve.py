"""`toolkit serve`: open a port, load the run, and answer requests until a signal arrives."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models import families
from toolkit.commands.predict import load_baseline, load_run, read_recipe
from toolkit.commands.serve.requests import Service, make_service, warm_up
from toolkit.errors import UserError
from toolkit.run_folder.predictions import SPLITS
from toolkit.run_folder.read import read_json
from toolkit.tasks.interface import Run

if TYPE_CHECKING:
    from rich.console import Console


def serve_run(folder: Path, console: Console, host: str, port: int, timeout: float, *, baseline: bool = False) -> None:
    """Answer requests to a run's best model until a signal arrives.

    Args:
        folder: folder of a finished run.
        console: console for the address.
        host: name or IP address to listen on.
        port: port to listen on; 0 for a free port.
        timeout: time limit of a request in seconds.
        baseline: whether the kept baseline predicts instead of the model.

    Raises:
        UserError: the folder is not a finished run, or the address cannot be used.
    """
    read_recipe(folder)
    with open_socket(host, port) as listening_socket:
        from toolkit.commands.serve.app import make_app
        from toolkit.commands.serve.connections import make_server
        from toolkit.commands.serve.page import build_page
        from toolkit.commands.serve.worker import Worker

        address, port = listening_socket.getsockname()[:2]
        # In the main thread: in another thread, Paddle would install its signal handlers.
        run = load_baseline(folder) if baseline else load_run(folder)
        service = make_service(run)
        warm_up(service)
        about = describe_run(run, service)
        names = {"localhost", host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}
        app = make_app(service, Worker(), about, build_page(about, service, folder), names, timeout)
        server = make_server(app, timeout)
        url_host = f"[{host}]" if ":" in host else host
        console.print(f"{folder}: http://{url_host}:{port}/ until Ctrl-C", highlight=False, soft_wrap=True)
        if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            console.print("note: whoever reaches this address can use the run; there is no password", soft_wrap=True)
        server_future = ThreadPoolExecutor(1).submit(
            server.run, [listening_socket]
        )  # outside the main thread it ignores signals
        try:
            server_future.result()
        finally:
            server.should_exit = True
            wait([server_future])


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address.

    Args:
        host: name or address to listen on.
        port: port number; 0 for any free port.

    Raises:
        UserError: the address does not exist, is in use, or is not permitted.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family)
    except (socket.gaierror, UnicodeError):
        raise UserError(f"--host {host}: is no address of this machine") from None
    except OSError as error:
        message = f"{os.strerror(error.errno or 0)} ({host}); take another, or 0 for a free one"
        raise UserError(f"--port {port}: {message}") from None


def describe_run(run: Run, service: Service) -> dict[str, Any]:
    """Return the description of a run, without paths of files."""
    results = read_json(run.folder / "metrics.json", "restore it from a copy, or train again")
    metrics = results if run.baseline is None else results["baselines"][results["kept_baseline"]]
    return {
        "run": run.folder.resolve().name,
        "task": run.task.DESCRIPTION.name,
        "model": families.family(run.recipe.model.name).title if run.baseline is None else results["kept_baseline"],
        "parameters": results.get("parameters") if run.baseline is None else int(run.baseline.weights.size),
        "length": run.length,
        "labels": run.label_names,
        "control_codes": list(service.codes),
        "metrics": {
            split_name: metrics[split_name] for split_name in SPLITS if isinstance(metrics.get(split_name), Mapping)
        },
        "path": service.path,
        "fields": list(service.request.model_fields),
    }
