"""A package behind HTTP: requests that come close together are computed as one batch.

    python examples/serve.py classifier --port 8000 --batch 32 --wait 2

``POST /predict`` takes a JSON object with one example for each tensor argument, without its first dimension, which is
the batch: ``{"input": [0.1, ...]}``. The answer is ``{"result": [...]}``, nested as the results are. A request that is
not in the package's contract is answered with 400 and what is wrong with it. ``GET /contract`` gives the contract,
``GET /statistics`` the numbers of requests and batches.

The package (``compile_api.package``) has to allow batches from one to ``--batch``:
``dynamic_shapes={"input": {0: (1, 32)}}``. No part of the compiler is imported here.
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import threading
import time
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch

from compile_api import load_package

#: Bytes of a request, at most.
MOST_BYTES = 64 << 20


class Batches:
    """Runs a program on requests of one example each, several at a time.

    Args:
        run: the program; the first dimension of its tensor arguments and of its results is the batch.
        most: requests in a batch, at most.
        wait: seconds that the first request of a batch waits for others.
    """

    def __init__(self, run: Any, most: int, wait: float) -> None:
        self.run, self.most, self.wait = run, most, wait
        self.requests = self.batches = 0
        self._waiting: queue.Queue[tuple[dict[str, torch.Tensor], Future[Any]]] = queue.Queue()
        threading.Thread(target=self._work, name="batches", daemon=True).start()

    def submit(self, example: dict[str, torch.Tensor]) -> Future[Any]:
        """The results of one example, when they are there.

        Args:
            example: a tensor for each argument, without the batch.
        """
        future: Future[Any] = Future()
        self._waiting.put((example, future))
        return future

    def _work(self) -> None:
        while True:
            group = [self._waiting.get()]
            until = time.monotonic() + self.wait
            while len(group) < self.most:
                try:
                    group.append(self._waiting.get(timeout=max(until - time.monotonic(), 0)))
                except queue.Empty:
                    break
            alike: dict[Any, list[Any]] = {}
            for example, future in group:  # examples of other sizes are batches of their own
                kinds = tuple((name, x.shape, x.dtype) for name, x in sorted(example.items()))
                alike.setdefault(kinds, []).append((example, future))
            for members in alike.values():
                self._run(members)

    def _run(self, members: list[Any]) -> None:
        self.requests += len(members)
        self.batches += 1
        try:
            names = members[0][0]
            results = self.run(**{name: torch.stack([example[name] for example, _ in members]) for name in names})
            for row, (_, future) in enumerate(members):
                future.set_result(_row(results, row))
        except Exception as error:
            for _, future in members:
                future.set_exception(error)


def _row(results: Any, row: int) -> Any:
    """What one request gets of a batch's results."""
    if isinstance(results, torch.Tensor):
        return results[row].tolist()
    if isinstance(results, dict):
        return {name: _row(each, row) for name, each in results.items()}
    return [_row(each, row) for each in results]


class Server(ThreadingHTTPServer):
    """A thread for each connection, of which many may come at once."""

    request_queue_size = 128
    daemon_threads = True


def handler(batches: Batches, contract: dict[str, Any]) -> type[BaseHTTPRequestHandler]:
    """The class that answers requests."""
    types = {each["name"]: getattr(torch, each["dtype"]) for each in _tensors(contract)}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            known = {"/contract": contract, "/statistics": {"requests": batches.requests, "batches": batches.batches}}
            self._answer(200, known[self.path]) if self.path in known else self._answer(404, {"error": self.path})

        def do_POST(self) -> None:
            if self.path != "/predict":
                self._answer(404, {"error": self.path})
                return
            try:
                length = int(self.headers.get("Content-Length", 0))
                if length > MOST_BYTES:
                    raise ValueError(f"a request of {length} bytes")
                given = json.loads(self.rfile.read(length))
                if not isinstance(given, dict) or given.keys() != types.keys():
                    raise ValueError(f"the arguments are {', '.join(types)}")
                example = {name: torch.tensor(value, dtype=types[name]) for name, value in given.items()}
                self._answer(200, {"result": batches.submit(example).result()})
            except (ValueError, TypeError) as error:  # what compile_api.errors.UserError is, too
                self._answer(400, {"error": str(error)})
            except Exception as error:
                self._answer(500, {"error": f"{type(error).__name__}: {error}"})

        def _answer(self, status: int, content: Any) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


def _tensors(contract: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in contract["inputs"] if each.get("dtype")]


def main() -> int:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free, which is printed")
    parser.add_argument("--batch", type=int, default=32, help="requests computed at once, at most")
    parser.add_argument("--wait", type=float, default=2.0, help="milliseconds that a request waits for others")
    given = parser.parse_args()
    contract = json.loads((given.package / "contract.json").read_text())["contract"]
    batches = Batches(load_package(given.package), given.batch, given.wait / 1000)
    server = Server((given.host, given.port), handler(batches, contract))
    print(f"serving {given.package} at http://{given.host}:{server.server_address[1]}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
