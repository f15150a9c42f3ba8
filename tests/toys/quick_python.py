"""Python programs that start at once: in forks of a process that has imported transformers, which takes seconds."""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

_IMPORTED = ("torch", "transformers.modeling_utils", "transformers.models.auto.modeling_auto", "scipy.stats")
_MAX_REQUEST = 1 << 20


class QuickPython:
    """Runs programs as `python -c CODE ARGUMENTS` does, except that slow packages are already imported.

    This package is not one of them. Where importing is what is tested, use `subprocess`.

    Args:
        folder: For modules that transformers writes.
    """

    def __init__(self, folder: Path) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join([str(Path(__file__).parent.parent), *filter(None, sys.path)])
        # transformers and the hub read these when they are imported
        settings = {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(folder / "modules"), "OMP_NUM_THREADS": "1"}
        self._server = subprocess.Popen(
            [sys.executable, "-m", "toys.quick_python", str(other.fileno())],
            env={**os.environ, **settings, "PYTHONPATH": path},
            pass_fds=[other.fileno()],
            start_new_session=True,  # ^C is for the tests
        )
        other.close()

    def close(self) -> None:
        """End the server; programs that still run go on."""
        self._socket.close()
        self._server.wait()

    def start(
        self, code: str, *arguments: object, env: Mapping[str, str] | None = None, imported: Sequence[str] = ()
    ) -> QuickProcess:
        """Start a program.

        Args:
            code: Python code.
            arguments: The rest of `sys.argv`.
            env: Its environment; this one's by default.
            imported: More packages that have been imported when it starts.
        """
        request = {
            "code": code,
            "arguments": [str(argument) for argument in arguments],
            "env": dict(os.environ if env is None else env),
            "folder": os.getcwd(),
            "imported": list(imported),
        }
        pipes = [os.pipe() for _ in range(4)]  # stdin, stdout, stderr and the exit code
        (stdin, own_stdin), *outputs = pipes
        socket.send_fds(self._socket, [json.dumps(request).encode()], [stdin, *(writing for _, writing in outputs)])
        for descriptor in (stdin, *(writing for _, writing in outputs)):
            os.close(descriptor)
        return QuickProcess(own_stdin, *(reading for reading, _ in outputs))

    def run(self, code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        process = self.start(code, *arguments, **options)
        out, err = process.communicate()
        return subprocess.CompletedProcess(["python", "-c", *map(str, arguments)], process.returncode, out, err)


class QuickProcess:
    """A program that was started, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, stdin: int, stdout: int, stderr: int, status: int) -> None:
        self.stdin: IO[str] = os.fdopen(stdin, "w")
        self.stdout: IO[str] = os.fdopen(stdout)
        self.stderr: IO[str] = os.fdopen(stderr)
        self._status = os.fdopen(status)
        self.pid = int(self._status.readline())
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait for its end, and return its exit code: negative after a signal."""
        if self.returncode is None:
            with self._status:
                self.returncode = int(self._status.readline())
        return self.returncode

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        """All that it prints from now on to stdout and stderr, which are then closed."""
        if self.returncode is not None:
            return "", ""
        self.stdin.close()
        with self.stdout, self.stderr, ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(file.read) for file in (self.stdout, self.stderr)]
            try:
                out, err = (reader.result(timeout) for reader in readers)
            except TimeoutError:
                self.send_signal(signal.SIGKILL)
                raise
        self.wait()
        return out, err


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork a process for each request; returns the request in that process, and None at the end."""
    for name in _IMPORTED:
        importlib.import_module(name)
    waiting = []
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _MAX_REQUEST, 4)
        if not message:
            return None
        request = json.loads(message)
        for name in request["imported"]:
            importlib.import_module(name)
        if "triton" not in sys.modules:  # Triton 3.9 prints what is left of it at exit
            gc.freeze()  # a program that ends need not look for garbage in what is imported, which takes a second
        waiting = [process for process in waiting if not os.waitpid(process, os.WNOHANG)[0]]
        process = os.fork()
        if process == 0:
            requests.close()
            return _prepare(request, descriptors)
        waiting.append(process)
        for descriptor in descriptors:
            os.close(descriptor)


def _prepare(request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
    """Fork the program from a process that reports its id and exit code; returns in the program."""
    *streams, status = descriptors
    child = os.fork()
    if child:
        for stream in streams:
            os.close(stream)
        os.write(status, f"{child}\n".encode())
        os.write(status, f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n".encode())
        os._exit(0)
    os.close(status)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    sys.argv = ["-c", *request["arguments"]]
    return request


if __name__ == "__main__":
    program = _serve(socket.socket(fileno=int(sys.argv[1])))
    if program:
        exec(compile(program["code"], "<string>", "exec"), {"__name__": "__main__"})
