"""A control socket with prepared answers, without a node."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sfnode.limits import Limits
from sfnode.schema.results import InviteResult
from sfnode.schema.status import LinkStatus
from sfnode.store.data_folder import Layout
from tests.schema.helpers import status

STATUS = status(
    run_name="NaN",
    loss=float("nan"),
    links=[
        LinkStatus(
            peer="b", outbound=True, role="trainer", known=9, agrees=True, bytes_sent=1, bytes_received=2
        )
    ],
    limits=Limits(cpu=50),
    pauses=["asked for"],
)
INVITATION = InviteResult(
    link="sfnode:x", run_id="ab", run_name="run", protocol=1, addresses=["/a"], reach="internet"
)
FEEDS = {"total": 1, "offset": 0, "feeds": [{"origin": "cd", "incarnation": 0, "updates": 3}]}

ANSWERS: Mapping[str, str] = {
    "GET /status": STATUS.model_dump_json(),
    "POST /pause": STATUS.model_dump_json(),
    "POST /resume": STATUS.model_dump_json(),
    "GET /limits": Limits(cpu=50).model_dump_json(),
    "POST /limits": Limits(cpu=25).model_dump_json(),
    "POST /leave": "{}",
    "POST /finish": "{}",
    "GET /invitation": INVITATION.model_dump_json(),
    "GET /views/feeds?offset=0&limit=1000": json.dumps(FEEDS),
    "GET /views/feeds?offset=1&limit=1000": json.dumps(FEEDS | {"feeds": []}),
}


@contextmanager
def fake_node(folder: Path, answers: Mapping[str, str] = ANSWERS) -> Iterator[None]:
    """Answer requests to the node of this folder."""
    folder.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(Layout(folder).control_socket))
        listener.listen()
        thread = threading.Thread(target=_serve, args=(listener, answers), daemon=True)
        thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def _serve(listener: socket.socket, answers: Mapping[str, str]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            asked = re.match(r"(\w+ \S+) HTTP", connection.recv(65_536).decode())
            assert asked is not None
            body = answers[asked[1]].encode()
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
