"""Effects of the transport on a program's logging: none at import, few and only once at a start."""

from __future__ import annotations

import subprocess
import sys

IMPORT = """
import logging
before = list(logging.getLogger().handlers), logging.getLogger().level
from sfnode.transport.libp2p import transport
assert (list(logging.getLogger().handlers), logging.getLogger().level) == before
assert logging.getLogger("asyncio").filters == []
assert logging.getLevelName(logging.WARNING) == "WARNING"
handlers = list(logging.getLogger("hivemind").handlers)
assert not any(isinstance(handler, transport.Demote) for handler in handlers)
transport.HivemindTransport(transport.HivemindSettings(identity_path="nowhere"))
assert logging.getLogger("hivemind").handlers == handlers
"""

START = """
for _ in range(3):
    transport._quieten_hivemind()
assert (list(logging.getLogger().handlers), logging.getLogger().level) == before
assert [type(handler).__name__ for handler in logging.getLogger("hivemind").handlers] == ["Demote"]
assert [type(one).__name__ for one in logging.getLogger("asyncio").filters] == ["AbandonedTasks"]
"""


def test_importing_the_transport_installs_nothing_and_a_start_quietens_hivemind_once() -> None:
    ran = subprocess.run([sys.executable, "-c", IMPORT + START], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
