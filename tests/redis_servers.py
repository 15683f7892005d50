"""Redis servers for tests: real ones of our own, and local ones that misbehave."""

import shutil
import signal
import socket
import socketserver
import subprocess
import threading
import time
from contextlib import contextmanager

import pytest

REDIS = "redis://127.0.0.1:6379/13"  # on the server of this machine


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class OwnServer:
    """A ``redis-server`` process in a folder of its own, which may be killed and started again."""

    def __init__(self, folder, *options):
        self.port = free_port()
        self.options = options
        self.folder = folder
        self.process = None
        self.start()

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self):
        binary = shutil.which("redis-server")
        if binary is None:
            pytest.skip("no redis-server on this machine")
        command = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder)]
        self.process = subprocess.Popen([*command, *self.options], stdout=subprocess.DEVNULL)
        ends = time.monotonic() + 10
        while not self.listens():
            assert time.monotonic() < ends, "redis-server did not start within 10 s"
            time.sleep(0.01)

    def listens(self):
        with socket.socket() as probe:
            probe.settimeout(0.2)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self):
        self.process.kill()
        self.process.wait(5)

    def freeze(self):
        """Stop the process without ending it: connections are accepted by the system and never answered."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)


@contextmanager
def misbehaving(behave):
    """A server on a free port that hands each connection to ``behave(socket, stop)``; yields its URL."""
    stop = threading.Event()
    open_sockets = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            open_sockets.append(self.request)
            try:
                behave(self.request, stop)
            except OSError:
                return

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"redis://:canary-secret@127.0.0.1:{server.server_address[1]}/0"
        finally:
            stop.set()
            for one in open_sockets:
                one.close()
            server.shutdown()
            thread.join(5)


def hang(connection, stop):
    stop.wait(30)


def garbage(connection, stop):
    while not stop.is_set() and connection.recv(4096):
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n\xff\xfe{]")


def drip(connection, stop):
    """Answer so that every single read succeeds in time and the whole never ends."""
    connection.recv(4096)
    connection.sendall(b"$1000000\r\n")
    while not stop.wait(0.01):
        connection.sendall(b"x")


def hang_up(connection, stop):
    connection.recv(4096)


MISBEHAVIOURS = {"hangs": hang, "talks nonsense": garbage, "drips": drip, "hangs up": hang_up}
