"""Typed clients of a running node's control API: `Client` for an event loop, `SyncClient` without one.

This module imports no code of the node, and pydantic only to validate an answer. It implements HTTP (RFC
9112) itself, because importing an HTTP library takes longer than a short command may run.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast
from urllib.parse import urlencode

from sfnode import schema
from sfnode.errors import Code, UserError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from sfnode.limits import Limits


CHUNK = 65_536
"""Maximum number of bytes that are read from a socket at a time."""


def http_request(method: str, path: str, body: Any = None) -> bytes:
    """Return the bytes of a request with `body` as JSON. The server closes the connection after its
    answer."""
    content = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.1",
        "Host: node",
        "Connection: close",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
    )
    return "\r\n".join((*head, "", "")).encode() + content


def http_response(received: bytes) -> tuple[int, bytes]:
    """Return the status and the body of a response, given all bytes that the server sent before it closed the
    connection. Raises ValueError if `received` is not a complete HTTP response."""
    head, _, body = received.partition(b"\r\n\r\n")
    line, *fields = head.decode("latin-1").split("\r\n")
    version, _, status = line.partition(" ")
    told = (field.partition(":") for field in fields)
    lengths = [value for name, _, value in told if name.lower() == "content-length"]
    if not version.startswith("HTTP/1.") or not lengths:
        raise ValueError("the answer is not HTTP" if received else "no answer came")
    if len(body) != int(lengths[0]):
        raise ValueError("the answer is incomplete")
    return int(status[:3]), body


async def exchange(path: Path, message: bytes, deadline: float) -> bytes:
    """Send `message` to the Unix socket `path` and return the reply, within `deadline` seconds.

    Raises OSError, also (as TimeoutError) after the deadline.
    """
    import asyncio

    async with asyncio.timeout(deadline):
        reader, writer = await asyncio.open_unix_connection(str(path))
        try:
            writer.write(message)
            await writer.drain()
            return await reader.read()
        finally:
            writer.close()


async def exchange_blocking(path: Path, message: bytes, deadline: float) -> bytes:
    """Send `message` to the Unix socket `path` and return the reply, as `exchange` does, but without an event
    loop. The coroutine never suspends."""
    end = time.monotonic() + deadline
    received = bytearray()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(deadline)
        connection.connect(str(path))
        connection.sendall(message)
        while chunk := connection.recv(CHUNK):
            received += chunk
            connection.settimeout(max(end - time.monotonic(), 1e-3))
    return bytes(received)


T = TypeVar("T", bound="BaseModel")
R = TypeVar("R")
P = ParamSpec("P")

Kind = Callable[[], type[T]]
"""Function that returns the pydantic model of an answer. The call imports the model, so it is called only
when an answer is validated."""

ANSWER_DEADLINE = 10.0
"""Time limit, in seconds, for an answer that needs no forward pass of the language model."""

DECISION_DEADLINE = 60.0
"""Time limit, in seconds, for a decision to be signed and stored. The organiser signs decisions one after the
other."""

EVALUATE_DEADLINE = 3600.0
"""Time limit, in seconds, for an evaluation: a large model is slow on a CPU."""

FEEDS_PAGE = 1000
"""Number of feeds requested at a time. An answer contains no more than that
(`sfnode.schema.views.MAX_PAGE`)."""


class Client:
    """Client of the node that listens on the Unix socket `socket`, for an event loop.

    Every method raises UserError: NODE_NOT_RUNNING if there is no node, NODE_NOT_ANSWERING if no usable
    answer comes, and the errors with which the node refuses a request. With `checked=False` answers are not
    validated (`unchecked`).
    """

    def __init__(self, socket: Path, *, checked: bool = True) -> None:
        self._socket = socket
        self._checked = checked
        self._exchange = exchange

    async def status(self) -> schema.status.Status:
        return await self._ask(lambda: schema.status.Status, "/status")

    async def digest(self) -> schema.status.CoreStatus:
        return await self._ask(lambda: schema.status.CoreStatus, "/digest", deadline=EVALUATE_DEADLINE)

    async def evaluate(
        self, *, base: bool = False, calibrated: bool = False, probe: bool = False, limit: int = 0
    ) -> schema.measurements.NodeEvaluation:
        """Evaluate a model on test rows: with `base` the base model, otherwise the model of the last seal (in
        an open run, of all updates). With `base` and `calibrated`, the base model is calibrated first.

        `limit` is the number of rows. If it is 0, the manifest determines the number. With `probe`, a linear
        probe is evaluated, too, if the run trains only a head.
        """
        body = {"base": base, "calibrated": calibrated, "probe": probe, "limit": limit}
        return await self._tell(
            lambda: schema.measurements.NodeEvaluation, "/evaluate", body, EVALUATE_DEADLINE
        )

    async def invitation(self) -> schema.results.InviteResult:
        return await self._ask(lambda: schema.results.InviteResult, "/invitation")

    async def progress(self) -> schema.views.Progress:
        return await self._ask(lambda: schema.views.Progress, "/views/progress")

    async def curves(self) -> schema.views.Curves:
        return await self._ask(lambda: schema.views.Curves, "/views/curves")

    async def swarm(self) -> schema.views.Swarm:
        return await self._ask(lambda: schema.views.Swarm, "/views/swarm")

    async def feeds(self, *, offset: int = 0, limit: int = 100) -> schema.views.Feeds:
        return await self._ask(lambda: schema.views.Feeds, f"/views/feeds?offset={offset}&limit={limit}")

    async def every_feed(self) -> list[schema.views.FeedStatus]:
        """Return all feeds, which are requested page by page. A feed that begins meanwhile may be missing."""
        found: list[schema.views.FeedStatus] = []
        while page := (await self.feeds(offset=len(found), limit=FEEDS_PAGE)).feeds:
            found += page
        return found

    async def origins(self, *, offset: int = 0, limit: int = 100, find: str = "") -> schema.views.Origins:
        query = urlencode({"offset": offset, "limit": limit, "find": find})
        return await self._ask(lambda: schema.views.Origins, f"/views/origins?{query}")

    async def history(self, *, points: int = 200) -> schema.views.History:
        return await self._ask(lambda: schema.views.History, f"/views/history?points={points}")

    async def about(self) -> schema.views.About:
        return await self._ask(lambda: schema.views.About, "/views/about")

    async def standing(self) -> schema.views.OwnStanding:
        return await self._ask(lambda: schema.views.OwnStanding, "/views/own")

    async def samples(self) -> schema.views.Samples:
        return await self._ask(lambda: schema.views.Samples, "/views/samples")

    async def timeline(self, *, limit: int = 200) -> schema.views.Timeline:
        return await self._ask(lambda: schema.views.Timeline, f"/views/timeline?limit={limit}")

    async def generate(self, prompt: str, *, tokens: int = 32) -> schema.views.Generated:
        """Have the base model and the model of the last seal (in an open run, of all updates) continue
        `prompt` by at most `tokens` tokens each."""
        body = {"prompt": prompt, "tokens": tokens}
        return await self._tell(lambda: schema.views.Generated, "/generate", body, EVALUATE_DEADLINE)

    async def pause(self, seconds: float | None = None) -> schema.status.Status:
        """Pause the node for `seconds` seconds, or until `resume` if `seconds` is None."""
        return await self._tell(lambda: schema.status.Status, "/pause", {"seconds": seconds})

    async def resume(self) -> schema.status.Status:
        return await self._tell(lambda: schema.status.Status, "/resume")

    async def limits(self) -> Limits:
        return await self._ask(_limits, "/limits")

    async def limit(self, changes: Mapping[str, Any]) -> Limits:
        """Replace the limits in `changes`. If one of them is refused, no limit is replaced. The value None
        removes a limit."""
        return await self._tell(_limits, "/limits", dict(changes))

    async def organising(self) -> schema.organising.OrganiserStatus:
        return await self._ask(lambda: schema.organising.OrganiserStatus, "/organising")

    async def members(
        self, *, offset: int = 0, limit: int = 100, find: str = ""
    ) -> schema.organising.Members:
        query = urlencode({"offset": offset, "limit": limit, "find": find})
        return await self._ask(lambda: schema.organising.Members, f"/organising/members?{query}")

    async def join_requests(self) -> schema.organising.JoinRequestList:
        return await self._ask(lambda: schema.organising.JoinRequestList, "/organising/petitions")

    async def decide(self, decision: bytes, *, dry_run: bool = False) -> schema.organising.DecisionResult:
        """Have the organiser on the node sign an encoded decision. With `dry_run`, only report what the
        decision would change."""
        body = {"decision": decision.hex(), "dry_run": dry_run}
        return await self._tell(
            lambda: schema.organising.DecisionResult, "/organising/decision", body, DECISION_DEADLINE
        )

    async def propose(self, key: str, *, kept: int | None = None) -> schema.organising.SuccessionFile:
        """Return an unsigned succession in which `key` (hex) signs all decisions after the first `kept` ones
        or, if `kept` is None, after all decisions that the node stores."""
        query = urlencode({"key": key} | ({} if kept is None else {"kept": kept}))
        return await self._ask(lambda: schema.organising.SuccessionFile, f"/organising/succession?{query}")

    async def succeed(self, succession: Mapping[str, Any]) -> None:
        """Submit a succession that deputies signed."""
        await self._send("POST", "/organising/succession", dict(succession))

    async def stand_in(self) -> None:
        """Have the node offer to stand in for the organiser."""
        await self._send("POST", "/organising/stand-in")

    async def hand_over(self, key: str) -> None:
        """Have the organiser on the node hand its role over to the stand-in with this key (hex)."""
        await self._send("POST", "/organising/hand-over", {"key": key})

    async def finish(self) -> None:
        """Ask the node to complete the step in progress, hand its updates over to the neighbours, and end."""
        await self._send("POST", "/finish")

    async def leave(self) -> None:
        """Ask the node to end at once."""
        await self._send("POST", "/leave")

    async def _ask(self, kind: Kind[T], path: str, *, deadline: float | None = None) -> T:
        return self._read(kind, await self._send("GET", path, deadline=deadline))

    async def _tell(self, kind: Kind[T], path: str, body: Any = None, deadline: float | None = None) -> T:
        return self._read(kind, await self._send("POST", path, body, deadline))

    def _read(self, kind: Kind[T], text: bytes) -> T:
        try:
            return kind().model_validate_json(text) if self._checked else cast(T, unchecked(text))
        except ValueError as error:  # also pydantic's ValidationError
            raise _other_version(f"the node at {self._socket} says something else") from error

    async def _send(self, method: str, path: str, body: Any = None, deadline: float | None = None) -> bytes:
        request = http_request(method, path, body)
        try:
            received = await self._exchange(self._socket, request, deadline or ANSWER_DEADLINE)
            status, text = http_response(received)
        except (OSError, ValueError) as error:
            raise _no_answer(self._socket, error) from error
        if status != 200:
            raise _refused(text)
        return text


def waiting(
    call: Callable[Concatenate[Client, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncClient, P], R]:
    """Return the method of `SyncClient` that calls `call`, a method of `Client`, and waits for its answer."""

    @wraps(call)
    def wait(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return _finished(call(self._client, *args, **kwargs))

    return wait


class SyncClient:
    """Client with the methods of `Client`, without an event loop. Every call waits for its answer."""

    def __init__(self, socket: Path, *, checked: bool = True) -> None:
        self._client = Client(socket, checked=checked)
        self._client._exchange = exchange_blocking

    status = waiting(Client.status)
    digest = waiting(Client.digest)
    evaluate = waiting(Client.evaluate)
    invitation = waiting(Client.invitation)
    progress = waiting(Client.progress)
    curves = waiting(Client.curves)
    swarm = waiting(Client.swarm)
    feeds = waiting(Client.feeds)
    every_feed = waiting(Client.every_feed)
    origins = waiting(Client.origins)
    history = waiting(Client.history)
    about = waiting(Client.about)
    standing = waiting(Client.standing)
    samples = waiting(Client.samples)
    timeline = waiting(Client.timeline)
    generate = waiting(Client.generate)
    pause = waiting(Client.pause)
    resume = waiting(Client.resume)
    limits = waiting(Client.limits)
    limit = waiting(Client.limit)
    organising = waiting(Client.organising)
    members = waiting(Client.members)
    join_requests = waiting(Client.join_requests)
    decide = waiting(Client.decide)
    propose = waiting(Client.propose)
    succeed = waiting(Client.succeed)
    stand_in = waiting(Client.stand_in)
    hand_over = waiting(Client.hand_over)
    finish = waiting(Client.finish)
    leave = waiting(Client.leave)


def _limits() -> type[Limits]:
    from sfnode.limits import Limits

    return Limits


def if_running(question: Callable[[], R]) -> R | None:
    """Return the result of `question`, a call to a node; None if the node does not run."""
    try:
        return question()
    except UserError as error:
        if error.code is not Code.NODE_NOT_RUNNING:
            raise
        return None


def _other_version(what: str) -> UserError:
    return UserError(
        Code.NODE_NOT_ANSWERING,
        f"{what}; is it of another version of sfnode?",
        "Start the node again, with this version.",
    )


def _finished(call: Coroutine[Any, Any, R]) -> R:
    """Return the result of a coroutine that never suspends."""
    try:
        call.send(None)
    except StopIteration as end:
        return cast(R, end.value)
    raise AssertionError("a blocking call has suspended")


def _no_answer(socket: Path, error: Exception) -> UserError:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if isinstance(error, ValueError | TimeoutError | PermissionError | ConnectionResetError):
        # a process owns the socket
        return UserError(
            Code.NODE_NOT_ANSWERING,
            f"the node at {socket} does not answer: {reason}",
            "See what it logs; if it hangs, end its process and start it again: its log is on disk.",
        )
    return UserError(
        Code.NODE_NOT_RUNNING,
        f"no node answers at {socket}: {reason}",
        "It may have ended, or still be starting. If it runs elsewhere, name its folder with --data-dir.",
    )


def _refused(answer: bytes) -> UserError:
    """Return the error in the node's answer, with its number if it has one."""
    try:
        said = json.loads(answer)
        reason = str(said["error"])
        if "code" in said:
            return UserError(Code(said["code"]), f"the node refuses: {reason}", str(said["fix"]))
    except (ValueError, LookupError, TypeError):
        reason = answer.decode(errors="replace")
    return UserError(Code.BAD_OPTION, f"the node refuses: {reason}", "Ask it for something it can do.")


# -- answers as plain records --------------------------------------------------------------------------

# Commands that print an answer and end do not validate it: validation needs pydantic, whose import alone
# takes as long as everything else in `sfnode status`. A record has the fields of the node's model, but not
# its methods. So a record can be used, and type-checked, in place of the model.
MAY_BE_NO_NUMBER = ("epsilon", "loss", "value", "low", "high", "norm", "distance", "kl")
"""Names of the fields whose numbers can be infinite or NaN. In JSON these values are strings."""


_WORDS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""Strings that stand for infinities and NaN in JSON, keyed by Python's text for these values."""


class UncheckedAnswer(SimpleNamespace):
    """A JSON object with its fields as attributes. Reading a missing field raises UserError
    NODE_NOT_ANSWERING."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _other_version(f"the node's answer has no field {name}")


def unchecked(text: bytes) -> Any:
    """Return the JSON in `text` with its objects as UncheckedAnswer. Raises ValueError for invalid JSON."""
    return json.loads(text, object_hook=_record)


def plain(answer: object) -> Any:
    """Return an answer as plain dicts and lists, for `json.dumps`."""
    if isinstance(answer, UncheckedAnswer):
        return {name: plain(value) for name, value in vars(answer).items()}
    if isinstance(answer, list):
        return [plain(item) for item in answer]
    return _WORDS.get(str(answer), answer) if isinstance(answer, float) else answer


def _record(fields: dict[str, Any]) -> UncheckedAnswer:
    for name in MAY_BE_NO_NUMBER:
        if name in fields:
            fields[name] = _number(fields[name])
    return UncheckedAnswer(**fields)


def _number(value: Any) -> Any:
    if isinstance(value, list):
        return [_number(item) for item in value]
    return float(value) if isinstance(value, str) else value
