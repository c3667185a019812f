"""Test `toolkit serve`: it answers like `toolkit predict` and `generate`, and refuses a request with one line."""

from __future__ import annotations

import contextlib
import html
import http.client
import io
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote, urlsplit

import pytest
import test_language_modeling as lm
import test_problem_types as problems
import test_question_answering as qa
import test_token_classification as ner
import yaml
from pydantic import create_model
from rich.console import Console
from test_tables import read, write
from test_train import WORDS, recipe_file, train  # noqa: F401

from toolkit.commands.generate import generate_text
from toolkit.commands.label_file import label_file
from toolkit.commands.predict import load_run
from toolkit.commands.serve import requests, serve
from toolkit.commands.serve.app import MAX_BODY_BYTES, make_app
from toolkit.commands.serve.connections import MAX_CONNECTIONS, make_server
from toolkit.commands.serve.requests import MAX_TEXTS, Service, make_service
from toolkit.commands.serve.serve import open_socket
from toolkit.commands.serve.worker import MAX_QUEUE_LENGTH, Worker
from toolkit.finetune.finetune import finetune
from toolkit.recipe.load import load_recipe

ROOT = Path(__file__).resolve().parents[2]
JSON = {"Content-Type": "application/json"}
HANGS = 60


def make_console() -> Console:
    return Console(file=io.StringIO(), width=200)


def send_request(url: str, body: object = None, **headers: str) -> tuple[int, dict]:
    """Return the status and the JSON content of a response."""
    content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {**({} if content is None else JSON), **headers})
    try:
        with urllib.request.urlopen(request, timeout=HANGS) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@contextlib.contextmanager
def serve_run(run: Path, *options: str, ended_by: int = signal.SIGINT):
    """Start the real server in a separate process and yield its address.

    The signal `ended_by` stops it; it exits with the signal's status and prints one line.
    """
    command = [sys.executable, "-m", "toolkit", "serve", str(run), "--port", "0", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        try:
            first_line = process.stdout.readline()
            address = re.search(r"http://\S+(?=/ until Ctrl-C)", first_line)
            assert address, first_line
            yield address[0]
        finally:
            process.send_signal(ended_by)
            error = process.communicate(timeout=HANGS)[1]
        assert process.returncode == 128 + ended_by
        assert re.fullmatch(r"interrupted.*\n", error), error


# -- a run ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(recipe_file, tmp_path_factory) -> Path:  # noqa: F811
    return train(recipe_file, tmp_path_factory.mktemp("runs") / "tiny <b>", "train.max_steps=2")


@pytest.fixture(scope="module")
def url(run):
    with serve_run(run, ended_by=signal.SIGTERM) as url:
        yield url


def label_rows(run: Path, rows: list[dict], folder: Path) -> list[dict]:
    """Return the columns that `toolkit predict --input` adds to the rows."""
    target = folder / "labeled.jsonl"
    label_file(run, make_console(), write(folder / "rows.jsonl", rows), target, overwrite=True)
    predictions = [{name: value for name, value in row.items() if name not in rows[0]} for row in read(target)]
    for row in predictions:
        if "predicted_labels" in row:
            row["predicted_labels"] = json.loads(row["predicted_labels"])
    return predictions


def test_predictions_equal_those_of_toolkit_predict_to_the_last_digit(run, url, tmp_path):
    for texts in (["cat dog cow"], ["saw axe", "日本語 🙂", "a" * 90]):
        status, response = send_request(f"{url}/predict", {"text": texts if len(texts) > 1 else texts[0]})
        assert (status, response["predictions"]) == (200, label_rows(run, [{"text": text} for text in texts], tmp_path))
    assert response["notes"] == {"a text longer than 64 tokens, which was cut": [2]}


def test_the_run_is_described_without_its_path(run, url):
    assert send_request(f"{url}/health") == (200, {"status": "ok"})
    status, about = send_request(f"{url}/model")
    assert status == 200 and about["labels"] == sorted(WORDS) and about["length"] == 64
    assert about["metrics"]["test"] == json.loads((run / "metrics.json").read_text())["test"]
    assert about["run"] == "tiny <b>" and str(run.parent) not in json.dumps(about)


def test_the_page_loads_nothing_and_has_a_label_for_its_input(url):
    with urllib.request.urlopen(url) as answer:
        page, headers = answer.read().decode(), answer.headers
    assert "default-src 'none'" in page and headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert "tiny &lt;b&gt;" in page and not re.search(r"(src|href)=\"?(http|//)|@import|url\(", page)
    examples = [json.loads(html.unescape(attribute)) for attribute in re.findall(r'data-fields="([^"]*)"', page)]
    assert len(examples) == 3 and all(fields.keys() == {"text"} and fields["text"] for fields in examples)
    assert '<section id="program" hidden>' in page and page.count(">Copy</button>") == 3
    assert re.findall(r"<(?:textarea|input|select)[^>]* id=\"(\w+)\"", page) == re.findall(r'<label for="(\w+)"', page)


def test_an_answer_is_computed_before_the_address_is_printed(run, monkeypatch):
    """Then the first request does not wait until the loops of the model are compiled."""
    answered_fields = []
    service = replace(make_service(load_run(run)), answer=lambda fields, advance: answered_fields.append(fields))
    monkeypatch.setattr(serve, "make_service", lambda run: service)

    def stop_at_address(*_, **__):
        raise StopIteration

    with pytest.raises(StopIteration):
        serve.serve_run(run, SimpleNamespace(print=stop_at_address), "127.0.0.1", 0, 5.0)
    assert answered_fields == [{"text": ["the"]}]


def test_concurrent_requests_each_get_their_own_answer(url):
    texts = [" ".join(words[:2]) for words in WORDS.values()] * 4
    with ThreadPoolExecutor(len(texts)) as clients:
        concurrent_answers = list(clients.map(lambda text: send_request(f"{url}/predict", {"text": text}), texts))
    assert concurrent_answers == [send_request(f"{url}/predict", {"text": text}) for text in texts]
    assert len({json.dumps(answer) for answer in concurrent_answers}) == len(WORDS)


def test_a_port_in_use_and_an_unknown_host_are_reported_in_one_line(run, url, command_line):
    port = urlsplit(url).port
    status, _, errors = command_line("serve", run, "--port", port)
    assert (status, errors.count("\n")) == (2, 1) and errors.startswith(f"error: --port {port}: Address already in use")
    status, _, errors = command_line("serve", run, "--host", "no such host")
    assert (status, errors) == (2, "error: --host no such host: is no address of this machine\n")


# -- refused requests, with a separate service ------------------------------------------------------------------------


@contextlib.contextmanager
def serve_application(service: Service, timeout: float = HANGS):
    """Run the application on a real server in a thread and yield its address."""
    app = make_app(service, Worker(), {}, "", {"localhost", "my-box"}, timeout)
    with open_socket("127.0.0.1", 0) as listening:
        server = make_server(app, timeout)
        thread = threading.Thread(target=server.run, args=[[listening]])
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def serve_function(answer, timeout: float = HANGS):
    """Run the application in a thread with a service that does not use Paddle; yields the address."""
    fields = {name: (requests.Texts, ...) for name in ("text", "pair")}
    request = create_model("T", __base__=requests._Request, **fields)
    return serve_application(Service("/predict", ("text", "pair"), request, answer), timeout)


def echo_texts(fields, advance):
    return {"predictions": fields["text"]}


REFUSED_REQUESTS = {
    "no JSON": (b"{", 400, "Invalid JSON: "),
    "no UTF-8": (b'{"text": "\xff"}', 400, "Invalid JSON: "),
    "half a character": (b'{"text": "\\ud800", "pair": "x"}', 400, "Invalid JSON: "),
    "a list": ([], 422, "Input should be an object"),
    "nothing": ({}, 422, "text: Field required; pair: Field required"),
    "a number": ({"text": ["a", 3], "pair": ["b", "c"]}, 422, "text[1]: Input should be a valid string"),
    "a blank": ({"text": " \n", "pair": "b"}, 422, "text[0]: Input should be a text, and is blank"),
    "another field": ({"text": "a", "pair": "b", "texts": 1}, 422, "texts: Extra inputs are not permitted"),
    "one too few": ({"text": ["a", "b"], "pair": "c"}, 422, "Input has 2 of text and 1 of pair"),
    "too many": (
        {"text": ["a"] * (MAX_TEXTS + 1), "pair": "c"},
        422,
        f"text: Value should have at most {MAX_TEXTS} items",
    ),
    "too large": (b" " * 40 * MAX_BODY_BYTES, 413, f"the request is larger than {MAX_BODY_BYTES:,} bytes"),
}


def test_faulty_requests_get_one_line_of_json():
    with serve_function(echo_texts) as url:
        for body, expected_status, line in REFUSED_REQUESTS.values():
            status, answer = send_request(f"{url}/predict", body)
            assert (status, [*answer]) == (expected_status, ["error"]), answer
            assert answer["error"].startswith(line) and "\n" not in answer["error"]
        assert send_request(f"{url}/predict", {"text": ["a"] * MAX_TEXTS, "pair": ["b"] * MAX_TEXTS})[0] == 200
        assert send_request(f"{url}/nowhere")[0] == 404 and send_request(f"{url}/predict")[0] == 405


def test_requests_of_other_sites_are_refused():
    body = {"text": "a", "pair": "b"}
    with serve_function(echo_texts) as url:
        port = urlsplit(url).port
        for host in (
            "evil.test",
            f"evil.test:{port}",
            "127.0.0.1.evil.test",
            "[::1",
            "[::1].evil.test",
            "x@127.0.0.1",
            "",
        ):
            for path in ("health", "model", "", "predict"):
                status, answer = send_request(f"{url}/{path}", body if path == "predict" else None, Host=host)
                assert status == 400 and answer["error"].startswith(f"Host {host}: is no name of this server")
        for host in (f"localhost:{port}", "my-box", "192.168.7.7:80", f"[::1]:{port}"):
            assert send_request(f"{url}/predict", body, Host=host, Origin=f"http://{host}")[0] == 200
        origins = (
            "http://evil.test",
            "null",
            f"http://localhost:{port}",
            "http://[::1",
            "",
            "://",
            f"//127.0.0.1:{port}",
        )
        for origin in origins:
            status, answer = send_request(f"{url}/predict", body, Origin=origin)
            assert status == 403 and answer == {"error": "a page of another origin has sent this"}
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            assert send_request(f"{url}/predict", body, **{"Content-Type": kind})[0] == 415


def test_a_request_over_the_time_limit_is_stopped_and_the_next_is_computed():
    stopped_requests = []

    def answer(fields, advance):
        try:
            while fields["text"] == ["long"]:
                advance(0)
        except Exception:
            stopped_requests.append(fields)
            raise
        return echo_texts(fields, advance)

    with serve_function(answer, timeout=0.5) as url:
        status, response = send_request(f"{url}/predict", {"text": "long", "pair": "x"})
        assert status == 503 and response["error"].startswith("no answer within 0.5 seconds")
        assert send_request(f"{url}/predict", {"text": "short", "pair": "x"}) == (200, {"predictions": ["short"]})
        assert len(stopped_requests) == 1
        with contextlib.closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=HANGS)) as slow:
            slow.putrequest("POST", "/predict")
            for name, value in {**JSON, "Content-Length": "100"}.items():
                slow.putheader(name, value)
            slow.endheaders(b"{")  # the rest of the body is never sent
            assert slow.getresponse().status == 503


def read_to_end(client: socket.socket) -> bytes:
    """Return the bytes that the server sends until it closes the connection."""
    content = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while part := client.recv(4096):
            content += part
    return bytes(content)


#: Incomplete requests, and the bytes that are sent from time to time to continue them.
INCOMPLETE_REQUESTS = {
    "nothing": (b"", b""),
    "half a header": (b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", b"x"),
    "half a body": (
        b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 9000\r\n\r\n",
        b" ",
    ),
    "half a second header": (b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /health HTTP/1.1\r\nX: ", b"x"),
}


@pytest.mark.parametrize("kind", INCOMPLETE_REQUESTS)
def test_an_incomplete_request_is_closed_after_the_time_limit(kind):
    request_start, next_bytes = INCOMPLETE_REQUESTS[kind]
    with serve_function(echo_texts, timeout=0.5) as url:
        place = urlsplit(url)
        with socket.create_connection((place.hostname, place.port), timeout=HANGS) as client:
            client.sendall(request_start)
            is_closed = threading.Event()

            def send_more() -> None:
                with contextlib.suppress(OSError):
                    while next_bytes and not is_closed.wait(0.05):
                        client.sendall(next_bytes)

            sender = threading.Thread(target=send_more)
            sender.start()
            try:
                response = read_to_end(client)
            finally:
                is_closed.set()
                sender.join()
        answers = {"half a body": b"no answer within 0.5 seconds", "half a second header": b'{"status": "ok"}'}
        assert answers.get(kind, b"") in response and bool(response) == (kind in answers)


@pytest.mark.parametrize("kind", INCOMPLETE_REQUESTS)
def test_incomplete_requests_do_not_block_other_clients(kind):
    with serve_function(echo_texts) as url, contextlib.ExitStack() as clients:
        place = urlsplit(url)
        for _ in range(MAX_CONNECTIONS + 50):
            client = clients.enter_context(socket.create_connection((place.hostname, place.port), timeout=HANGS))
            client.sendall(INCOMPLETE_REQUESTS[kind][0])
        assert send_request(f"{url}/predict", {"text": "a", "pair": "b"}) == (200, {"predictions": ["a"]})


def test_a_connection_that_is_answered_stays_open_for_the_next_request():
    with (
        serve_function(echo_texts) as url,
        contextlib.closing(http.client.HTTPConnection(urlsplit(url).netloc)) as client,
    ):
        for _ in range(3):
            client.request("POST", "/predict", '{"text": "a", "pair": "b"}', JSON)
            assert json.load(client.getresponse()) == {"predictions": ["a"]}


@pytest.mark.parametrize(
    "request_line", [b"\x00\x01\r\n\r\n", b"GET /health HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nX" + bytes(99999)]
)
def test_bytes_that_are_not_http_get_one_line_of_json(request_line):
    with serve_function(echo_texts) as url:
        place = urlsplit(url)
        with socket.create_connection((place.hostname, place.port), timeout=HANGS) as client:
            with contextlib.suppress(ConnectionResetError):
                client.sendall(request_line)
            head, _, body = read_to_end(client).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ") and json.loads(body) == {"error": "Invalid HTTP request received."}


def test_requests_are_computed_one_after_another_and_too_many_are_refused():
    first_started, go_on, inside = threading.Event(), threading.Event(), []

    def answer(fields, advance):
        inside.append(fields)
        first_started.set()
        assert go_on.wait(HANGS) and len(inside) == 1
        inside.remove(fields)
        return echo_texts(fields, advance)

    with serve_function(answer) as url, ThreadPoolExecutor(2 * MAX_QUEUE_LENGTH) as clients:
        fields = {"text": "a", "pair": "b"}
        first = clients.submit(send_request, f"{url}/predict", fields)
        assert first_started.wait(HANGS)
        other_responses = [
            clients.submit(send_request, f"{url}/predict", fields) for _ in range(MAX_QUEUE_LENGTH)
        ]  # one does not fit into the queue
        first_refusal = next(as_completed(other_responses))
        assert first_refusal.result() == (503, {"error": "too many requests wait; ask again later"})
        assert send_request(f"{url}/health")[0] == 200
        go_on.set()
        assert sorted(response.result()[0] for response in (first, *other_responses)) == [200] * MAX_QUEUE_LENGTH + [
            503
        ]


def test_an_unexpected_error_is_logged_and_hidden_from_the_client(capfd):
    def answer(fields, advance):
        raise OSError(2, "No such file", "/secret/place")

    with serve_function(answer) as url:
        status, response = send_request(f"{url}/predict", {"text": "a", "pair": "b"})
    assert status == 500 and "secret" not in response["error"] and "/secret/place" in capfd.readouterr().err


# -- each task, and the page in a browser -----------------------------------------------------------------------------


def make_run(task: str, folder: Path, classifier: Path) -> Path:
    """Train a tiny run of a task and return its folder."""
    (folder := folder / task).mkdir()
    if task == "pairs":
        rows = "".join(f"{word},of,{label}\n" for label, words in WORDS.items() for word in words)
        (folder / "pairs.csv").write_text(f"a,b,label\n{rows}")
        files = f"data.files={{train: {folder}/pairs.csv, validation: {folder}/pairs.csv}}"
        return train(classifier, folder / "run", files, "data.text=[a, b]", "train.max_steps=1")
    if task in ("multi_label", "regression"):
        return train(problems.write_recipe(folder, task), folder / "run")
    short = ["train.max_steps=2", "train.eval_steps=2"]
    if task == "entities":
        changes = [f"train.output_dir={folder}/run", "train.max_steps=100"]
        return finetune(load_recipe(ner.write_recipe(folder), changes), "a test", make_console())
    if task == "answers":
        return finetune(load_recipe(qa.write_recipe(folder), short), "a test", make_console())
    for name, words in (("numbers", lm.NUMBERS), ("cats", lm.ANIMALS), ("dogs", lm.ANIMALS)):
        (folder / f"{name}.txt").write_text(lm.counting_text(words, 100))
    (folder / "x.yaml").write_text(yaml.safe_dump(lm.RECIPE if task == "ctrl" else lm.REFORMER))
    return finetune(
        load_recipe(folder / "x.yaml", [f"train.output_dir={folder}/run", *short]), "a test", make_console()
    )


ROWS = {
    "pairs": [{"a": "cat", "b": "<i>saw</i>"}, {"a": "fig", "b": "it's"}],
    "answers": [{"question": "Which number?", "context": "🙂 ab 4 abcd. abcde it's"}] * 2,
    "entities": [{"text": "🙂 in Rome Mr Lee"}, {"text": "so and"}],
}
FIELD_OF_COLUMN = {"a": "text", "b": "text_pair"}
GENERATE_FIELDS = {"prompt": ["one two", "two"], "length": 6, "temperature": 0.8, "seed": 3}
OPTIONS = {"length": 6, "temperature": 0.8, "top_k": None, "top_p": None, "beams": 1, "stop": None}


@pytest.mark.slow
@pytest.mark.parametrize("task", ["pairs", "multi_label", "answers", "entities"])
def test_each_task_answers_like_its_command_and_in_a_browser(task, recipe_file, tmp_path):  # noqa: F811
    run = make_run(task, tmp_path, recipe_file)
    rows = ROWS.get(task, [{"text": "cat dog"}, {"text": "saw"}])
    fields = {FIELD_OF_COLUMN.get(name, name): [row[name] for row in rows] for name in rows[0]}
    expected_predictions = label_rows(run, rows, tmp_path)
    with serve_run(run) as url:
        status, response = send_request(f"{url}/predict", fields)
        assert (status, response["predictions"]) == (200, expected_predictions)
        expected_text = expected_predictions[0].get("predicted_answer") or expected_predictions[0].get(
            "predicted_label"
        )
        look_at(url, {name: values[0] for name, values in fields.items()}, expected_text, tmp_path)


@pytest.mark.slow
def test_a_language_model_answers_like_toolkit_generate(recipe_file, tmp_path):  # noqa: F811
    run = make_run("ctrl", tmp_path, recipe_file)
    expected_texts = [
        generate_text(run, make_console(), None, prompt, seed=3 + place, **OPTIONS)
        for place, prompt in enumerate(GENERATE_FIELDS["prompt"])
    ]
    with serve_run(run) as url:
        assert send_request(f"{url}/generate", GENERATE_FIELDS) == (
            200,
            {"generated_texts": expected_texts, "notes": {}},
        )
        beams = {"error": "beams: beam search does not sample; remove temperature, top_k and top_p"}
        assert send_request(f"{url}/generate", {**GENERATE_FIELDS, "beams": 2}) == (422, beams)
        assert send_request(f"{url}/generate", {"prompt": "one", "length": 5000})[0] == 422
        assert send_request(f"{url}/generate", {"prompt": "one", "control": "None"})[0] == 422
        assert send_request(f"{url}/generate", {"control": "Animals", "length": 2})[0] == 200
        look_at(url, {**GENERATE_FIELDS, "prompt": "one two"}, expected_texts[0], tmp_path)


@pytest.mark.slow
def test_a_number_and_a_text_without_control_code(recipe_file, tmp_path):  # noqa: F811
    run = make_run("regression", tmp_path, recipe_file)
    with serve_application(make_service(load_run(run))) as url:
        assert send_request(f"{url}/predict", {"text": "cat"})[1]["predictions"] == label_rows(
            run, [{"text": "cat"}], tmp_path
        )
    service, token_counts = make_service(load_run(make_run("reformer", tmp_path, recipe_file))), []
    answer = service.answer(service.request(prompt=["one"], length=6).model_dump(), token_counts.append)
    assert len(answer["generated_texts"][0]) >= 6 and len(token_counts) > 6  # it can be interrupted at each token
    with serve_application(service) as url:
        assert send_request(f"{url}/generate", {"prompt": "one", "length": 6}) == (200, answer)
        assert send_request(f"{url}/generate", {"length": 6})[1] == {"error": "prompt: Field required"}
        assert send_request(f"{url}/generate", {"prompt": "one", "control": "Numbers"})[0] == 422


def look_at(url: str, fields: dict, expected_text: str | None, folder: Path) -> None:
    """Check the page that a browser shows; its shell command prints the same response."""
    if shutil.which("chromium") is None:
        pytest.skip("chromium is absent")
    link = "&".join(f"{name}={quote(str(value))}" for name, value in fields.items())
    switches = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    switches += [f"--user-data-dir={folder}/browser", "--enable-logging=stderr", "--virtual-time-budget=9000"]
    command = ["chromium", *switches, "--dump-dom", f"{url}/#{link}"]
    browser = subprocess.run(command, capture_output=True, text=True, timeout=2 * HANGS)
    assert browser.returncode == 0 and "CONSOLE" not in browser.stderr, browser.stderr
    blocks = re.findall(r'<pre id="(\w+)"[^>]*>(.*?)</pre>', browser.stdout, re.DOTALL)
    blocks_by_id = {name: html.unescape(text) for name, text in blocks}
    assert fields.items() <= json.loads(blocks_by_id["sent"]).items() and "<i>" not in browser.stdout
    answer = html.unescape(re.search(r'<section id="answer".*?</section>', browser.stdout, re.DOTALL)[0])
    response = json.loads(blocks_by_id["received"])
    if "generated_texts" in response or "predicted_answer" in response["predictions"][0]:
        assert expected_text and f'<mark class="">{expected_text}</mark>' in answer
    elif entities := response["predictions"][0].get("predicted_entities"):
        plain = re.sub(r"<small.*?</small>|</?mark[^>]*>", "", answer)
        assert f">{fields['text']}</div>" in plain and answer.count("<mark") == len(entities)
        assert all(
            f'<mark class="">{entity["text"]}<small class=""> {entity["label"]} ' in answer for entity in entities
        )
    else:
        assert answer.count("<tr") == len(WORDS) and f'<p class="said">{expected_text or ""}' in answer
    if shutil.which("curl"):
        shell = subprocess.run(["bash", "-c", blocks_by_id["shell"]], capture_output=True, text=True)
        assert json.loads(shell.stdout) == response, blocks_by_id["shell"]
