"""A real server in a thread, for tests with real clients."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

_PATIENCE = 300
"""Seconds in which even a stalled machine shuts a server down."""


@contextmanager
def running(app, *, must_end: bool = True):
    """The URL of a server that runs during the block and then shuts down in order.

    Args:
        app: The application.
        must_end: Fail if the server does not end by itself. Otherwise it is forced to: the end of a test session is no
            test of the shutdown.
    """
    from decoder2vec.serving.app import bind, build_server

    with bind("127.0.0.1", 0) as bound_socket:
        server = build_server(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound_socket]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.005)
        try:
            yield f"http://127.0.0.1:{bound_socket.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(timeout=_PATIENCE)
            if thread.is_alive():
                server.force_exit = True
                thread.join(timeout=30)
                assert not must_end, "the server did not shut down"
