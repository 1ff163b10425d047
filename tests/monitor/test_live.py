"""The page of a run in progress: it shows a kill and goes on, and nothing that a client does reaches the run."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import latecomer as lc
from browser import Tab, needs_chromium
from latecomer.cli.main import main
from latecomer.monitor import Live
from latecomer.monitor import server as serving
from latecomer.monitor.live import _Rows
from latecomer.monitor.page import document
from latecomer.monitor.server import Feed, PageServer
from latecomer.testing import KillAt
from processes import ended

TASK = """
import os
import pathlib
import latecomer as lc

class Marked(lc.problems.TwoCentres):
    def batch(self, sample, group):
        pathlib.Path(__file__).with_name(f"pid-{os.getpid()}").touch()
        return super().batch(sample, group)

task = Marked()
"""


@contextlib.contextmanager
def served(host: str = "127.0.0.1", feed: Feed | None = None) -> Iterator[tuple[PageServer, int]]:
    server = PageServer(document(None, live=True), feed or Feed(), host, 0)
    try:
        yield server, int(re.findall(r":(\d+)/", server.url)[0])
    finally:
        server.close()


def asked(port: int, path: str = "/", host: str | None = None, method: str = "GET") -> tuple[int, str]:
    """Return status and text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, headers={"Host": f"127.0.0.1:{port}" if host is None else host})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


class Reader(threading.Thread):
    """Reads the events of a page until they end."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.port, self.messages = int(re.findall(r":(\d+)/", url)[0]), list[dict[str, Any]]()
        self.start()

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/events")
        for line in connection.getresponse():
            if line.startswith(b"data: "):
                self.messages.append(json.loads(line[6:]))


class UntilSeen(lc.training.Callback):
    """Connects a reader at the first arrival, and lets the run end once the reader has seen what it waits for."""

    def __init__(self, live: Live, word: str) -> None:
        self.live, self.word, self.reader = live, word, None

    def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
        if self.reader is None:
            self.reader = Reader(self.live.url or "")
        if any(self.word in part for message in list(self.reader.messages) for part in message["parts"].values()):
            run.stop()
        time.sleep(0.001)  # so that the run does not end before the page was drawn once


def test_a_reader_sees_the_run_its_faults_and_its_end() -> None:
    live = Live(announce=None)
    seen = UntilSeen(live, "killed")
    run = lc.fit(
        lc.problems.two_centres(), lr=0.01, workers=2, engine="inline", steps=50_000, evaluate_every=100,
        callbacks=[live, KillAt((1, 40)), seen],
    )  # fmt: skip
    assert seen.reader is not None
    seen.reader.join(timeout=20)
    assert not seen.reader.is_alive()
    last = seen.reader.messages[-1]
    assert last["over"]
    assert last["state"] == f"Ended after {len(run.trace):,} contributions."
    assert last["arrivals"] == len(run.trace)
    parts: dict[str, str] = {}
    for message in seen.reader.messages:
        parts |= message["parts"]
    assert f"{len(run.trace):,} of 50,000" in parts["summary"]
    assert "<td>died</td><td>1</td>" in parts["faults"]
    assert all(f'id="{name}"' in "".join(parts.values()) for name in ("timeline", "loss", "throughput", "influence"))
    assert live.url is None
    assert run.deaths == 1


def test_what_is_drawn_in_between_is_the_trace_of_the_run() -> None:
    """Rows that were in flight when they were copied are copied again once they have arrived."""
    live = Live(announce=None)

    class Often(lc.training.Callback):
        def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
            if outcome.arrival % 7 == 0:
                live._hand_over(run)
                if outcome.arrival % 21 == 0:
                    live._view()

        def ended(self, run: Any, result: Any) -> None:
            live._hand_over(run)

    options: dict[str, Any] = {"lr": 0.01, "workers": 3, "engine": "inline", "steps": 100}
    run = lc.fit(lc.problems.two_centres(), callbacks=[live, KillAt((0, 30)), Often()], **options)
    view = live._view()
    assert view is not None
    for name, column in run.trace.columns.items():
        if name != "sample":
            np.testing.assert_array_equal(view.trace.columns[name], column, err_msg=name)
    assert view.history is not None
    assert view.history.equals(run.history)
    assert list(view.faults or ()) == list(run.faults)


def test_a_simulation_has_a_page_too(capsys: pytest.CaptureFixture[str]) -> None:
    live = Live()
    seen = UntilSeen(live, "timeline")
    trace = lc.delays.DataDependent(workers=3, slow_share=0.2).trace(steps=50_000, seed=0)
    lc.simulate(lc.problems.two_centres(), "momentum", trace, lr=0.01, callbacks=[live, seen])
    assert re.fullmatch(r"Live page: http://127\.0\.0\.1:\d+/\n", capsys.readouterr().out)


def test_an_error_in_drawing_ends_the_page_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no ink")

    live = Live(announce=None)
    monkeypatch.setattr("latecomer.monitor.live._Rows", broken)

    class Want(lc.training.Callback):
        def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
            live._wanted.set()

    with pytest.warns(UserWarning, match=r"The live page is not drawn any more \(RuntimeError: no ink\); the run goes"):
        run = lc.fit(lc.problems.quadratic(), lr=0.1, workers=2, engine="inline", steps=30, callbacks=[Want(), live])
    assert len(run.trace) == 30
    assert _Rows is not broken


def test_clients_that_hang_leave_or_send_rubbish_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_GOODBYE", 0.2)
    monkeypatch.setattr(serving, "_HEARTBEAT", 0.1)
    monkeypatch.setattr(serving._Handler, "timeout", 1.0)
    live, sockets = Live(announce=None), list[socket.socket]()

    class Trouble(lc.training.Callback):
        def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
            port = int(re.findall(r":(\d+)/", live.url or "")[0])
            if outcome.arrival > 90:
                return
            client = socket.create_connection(("127.0.0.1", port), timeout=10)
            kind = outcome.arrival % 6
            words = {
                0: b"",  # connects and says nothing
                1: b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",  # never reads
                2: b"\x16\x03\x01\x02\x00\xff\xfe rubbish \r\n\r\n",
                3: b"GET " + b"a" * 100_000,
                4: b"POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n",
                5: b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
            }[kind]
            with contextlib.suppress(OSError):
                client.sendall(words)
            if kind >= 4:  # goes away at once, without a goodbye
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                client.close()
            else:
                sockets.append(client)

    before = threading.active_count()
    callbacks = [live, Trouble()]
    run = lc.fit(lc.problems.quadratic(), lr=0.1, workers=2, engine="inline", steps=200, callbacks=callbacks)
    for client in sockets:
        client.close()
    alone = lc.fit(lc.problems.quadratic(), lr=0.1, workers=2, engine="inline", steps=200)
    assert run.trace.digest == alone.trace.digest
    assert all(np.array_equal(run.state[name], alone.state[name]) for name in run.state)
    deadline = time.monotonic() + 30
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() <= before


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:1", 200), ("localhost", 200), ("[::1]:80", 200), ("10.1.2.3", 200),
        ("evil.example", 403), ("127.0.0.1.evil.example", 403), ("", 403), ("localhost@evil.example", 403),
        ("[::1", 403), ("127.1.evil", 403),
    ],
)  # fmt: skip
def test_a_name_that_is_not_this_machines_is_refused(host: str, status: int) -> None:
    with served() as (server, port):
        assert server.token == ""
        assert asked(port, host=host)[0] == status
        if status == 403:
            assert asked(port, "/events", host=host)[0] == 403


def test_another_host_needs_the_token() -> None:
    with served("0.0.0.0") as (server, port):
        query = server.url.partition("?")[2]
        assert re.fullmatch(r"token=[\w-]{32}", query)
        assert asked(port, f"/?{query}")[0] == 200
        for wrong in ("", "?token=", "?token=x", f"?{query}x", "?token=%ff", f"?TOKEN={server.token}"):
            for path in ("/", "/events", "/nothing"):
                assert asked(port, path + wrong)[0] == 403
        assert asked(port, f"/?{query}", host="evil.example")[0] == 403
    with served("0.0.0.0") as (other, _):
        assert other.token != server.token


def test_only_reading_and_only_one_page() -> None:
    with served() as (_, port):
        assert asked(port, "/etc/passwd")[0] == asked(port, "/../x")[0] == asked(port, "/events/")[0] == 404
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert asked(port, method=method)[0] == 501
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/")
        head = connection.getresponse().headers
        assert "script-src 'sha256-" in head["Content-Security-Policy"]
        assert "default-src 'none'" in head["Content-Security-Policy"]
        assert head["Access-Control-Allow-Origin"] is None
        assert "Python" not in head["Server"]


def test_too_many_pages_are_refused_and_places_become_free() -> None:
    feed = Feed()
    with served(feed=feed) as (_, port):
        taken = [feed.enter() for _ in range(serving._STREAMS)]
        assert all(taken)
        assert asked(port, "/events")[0] == 503
        feed.leave()
        feed.publish({"a": "1"}, over=True, state="done")
        status, text = asked(port, "/events")
        assert status == 200
        assert json.loads(text.removeprefix("data: "))["parts"] == {"a": "1"}
        assert feed.readers == serving._STREAMS - 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--live", "--live-port", "70000"], "Invalid port value: 70000 (expected port <= 65535)"),
        (["--live", "--live-port", "{taken}"], "The live page cannot be served at 127.0.0.1, port {taken}: "),
        (["--live", "--live-host", "no.such.host.invalid"], "The live page cannot be served at no.such.host.invalid"),
        (["--live-port", "8000"], "--live-host and --live-port belong to --live: add it, or leave them out"),
    ],
)
def test_an_address_that_cannot_be_had_is_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"live_task_{len(words)}_{len(words[-1])}.py"
    file.write_text("import latecomer as lc\ntask = lc.problems.quadratic()\n")
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        command = ["train", f"{file}:task", "--engine", "inline", "--steps", "5"]
        assert main([*command, *(word.format(taken=taken) for word in words)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"latecomer: {sentence.format(taken=taken)}")
    assert error.count("\n") == 1


@needs_chromium
def test_the_page_in_a_browser_while_workers_are_killed(tmp_path: Path) -> None:
    (tmp_path / "live_task_b.py").write_text(TASK)
    command = [sys.executable, "-m", "latecomer", "train", str(tmp_path / "live_task_b.py:task"), "--live"]
    command += ["--steps", "10000000", "--evaluate-every", "200", "--record", str(tmp_path / "run.parquet")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stdout is not None
    try:
        url = next(line for line in process.stdout if line.startswith("Live page: ")).split()[-1]
        with Tab(tmp_path) as tab:
            tab.open(url)
            tab.wait("document.getElementById('done').value > 50 && document.querySelectorAll('figure').length >= 5")
            assert tab.value("document.getElementById('part-faults').innerText").startswith("Faults\n\nNone.")
            for count in (1, 2):
                pids = {int(path.name[4:]) for path in tmp_path.glob("pid-*")}
                victim = next(pid for pid in pids if not ended({pid}, timeout=0))
                os.kill(victim, signal.SIGKILL)
                tab.wait(f"document.getElementById('part-faults').innerText.includes('{count} died')")
                assert "killed by SIGKILL" in tab.value("document.getElementById('part-faults').innerText")
                at = tab.value("document.getElementById('done').value")
                tab.wait(f"document.getElementById('done').value > {at + 100}")  # and it goes on
                tab.wait("document.querySelectorAll('#timeline .cross').length > 0")
            assert tab.value("document.documentElement.scrollWidth <= window.innerWidth")
            process.send_signal(signal.SIGINT)
            tab.wait("document.getElementById('state').innerText.startsWith('Stopped after')")
        _, error = process.communicate(timeout=60)
        assert process.returncode == 130
        assert error == "latecomer: interrupted\n"
        assert lc.Trace.load(tmp_path / "run.parquet").columns["ticket"].size > 100
    finally:
        process.kill()
        process.wait()
