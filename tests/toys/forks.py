"""A process that has imported everything, and runs functions in forked children, where they may fail or be killed."""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from tqdm import tqdm

_MAX_SECONDS = 300.0
"""A child that takes longer waits for something that never comes."""


class ForkServer:
    """Calls functions in children of a process that has imported all that they need.

    Args:
        folder: For its log.
        module: The module of the functions; what it does on import is done once.
        preload: A shared library that the process starts with.
    """

    def __init__(self, folder: Path, module: str, preload: Path | None = None) -> None:
        path = os.pathsep.join([str(Path(__file__).parent.parent), *filter(None, sys.path)])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        if preload:
            environment["LD_PRELOAD"] = str(preload)
        self.log = folder / "children.log"
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "toys.forks", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait()

    def call(self, function: str, *arguments: Any) -> Any:
        """Return what a function returns in a child; arguments and result are JSON."""
        answer = self._request(function, arguments, None)
        assert not answer["hung"], f"{function}{arguments} had no end in {_MAX_SECONDS:.0f} s: {self._end_of_log()}"
        assert answer["status"] == 0, f"{function}{arguments} ended with {answer['status']}: {self._end_of_log()}"
        return answer["result"]

    def kill(self, function: str, *arguments: Any, after: float | None = None) -> bool:
        """Kill the child after some seconds, or let it kill itself; returns False if it has ended before."""
        status = self._request(function, arguments, after)["status"]
        assert status in (0, -signal.SIGKILL), f"{function}{arguments} ended with {status}: {self._end_of_log()}"
        return bool(status)

    def _request(self, function: str, arguments: tuple[Any, ...], kill_after: float | None) -> dict[str, Any]:
        print(json.dumps([function, arguments, kill_after]), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, self._end_of_log()
        return json.loads(answer)

    def _end_of_log(self) -> str:
        return self.log.read_text()[-4000:]


def _serve(module: str) -> None:
    # by default children share a lock, and one that is killed never releases it; before a subclass makes its own
    tqdm.set_lock(threading.RLock())
    tqdm.monitor_interval = 0
    functions = importlib.import_module(module)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints in a child prints into the log
    for line in sys.stdin:
        name, arguments, kill_after = json.loads(line)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _run_and_exit(getattr(functions, name), arguments, writing)
        os.close(writing)
        seconds = _MAX_SECONDS if kill_after is None else kill_after
        if is_killed := not select.select([reading], [], [], seconds)[0]:
            os.kill(child, signal.SIGKILL)
        with os.fdopen(reading) as handle:
            result = handle.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        hung = is_killed and kill_after is None
        answer = {"status": status, "hung": hung, "result": json.loads(result) if status == 0 else None}
        print(json.dumps(answer), file=answers, flush=True)


def _run_and_exit(function: Any, arguments: list[Any], writing: int) -> None:
    status = 1
    try:
        with os.fdopen(writing, "w") as handle:
            json.dump(function(*arguments), handle)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve(sys.argv[1])
