"""The organiser's signature of a `run.json`, which can be checked with the file alone.

The file proves which key is the organiser's (SPEC O3, O4, O23). The manifest in it, whose hash is the run id,
names the first key. A succession in it shows that deputies chose a later key. Elections in it show that more
than half of the stand-ins chose a still later key. The signature is the last field of the file and covers all
bytes before it, so that no canonical form is needed.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from contextlib import suppress
from typing import NamedTuple, TypeVar

from sfnode.errors import UserError
from sfnode.manifest import Manifest
from sfnode.peers.contacts import MAX_FILE
from sfnode.publish.run_file import MAX_TURNS, RunFile, bad_run_file
from sfprotocol import wire_codec
from sfprotocol.control_feed import ControlFeed
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.messages import Authority, Control, Entry, Form, Succession
from sfprotocol.signing import Sign, signed_by

T = TypeVar("T")

_DOMAIN = b"sfnode-run-file"
"""Prefix of the signed bytes, so that the signature cannot be used for anything else."""

_FIELD = b',"signature":'

Turns = tuple[tuple[bytes, int, Entry], ...]
"""Decisions that prove elections. Each item is the chain hash before a decision, the decision's position in
the control feed, and the decision."""


class Signer(NamedTuple):
    """The organiser's key, with the proof that the key is the organiser's."""

    manifest: Manifest
    control: ControlFeed
    sign: Sign

    def write(self, run: RunFile) -> bytes:
        """Return `run` as the bytes of a signed file. If that file would exceed MAX_FILE or MAX_TURNS, return
        the bytes of an unsigned file."""
        last, form, turns = self.control.succession, self.manifest.parameters().form, self.control.turns()
        if len(turns) > MAX_TURNS:
            return run.write()
        proof = {
            "manifest": b64encode(self.manifest.canonical()).decode(),
            "succession": wire_codec.encode(last, *form).hex() if last else "",
            "elections": tuple(
                (chain.hex(), wire_codec.encode(Control(place, (entry,)), *form).hex())
                for chain, place, entry in turns
            ),
        }
        said = run.model_copy(update=proof).write().rpartition(_FIELD)[0]
        data = said + _FIELD + f'"{self.sign(_DOMAIN + said).hex()}"}}\n'.encode()
        return data if len(data) <= MAX_FILE else run.write()


class Signature(NamedTuple):
    """A signature of a `run.json`, with the data that prove which key is the organiser's: the key in the
    manifest, or a key that deputies or stand-ins chose."""

    authority: Authority
    succession: Succession | None
    turns: Turns
    said: bytes
    """The message that is signed."""
    signature: bytes

    def holds(self, key: bytes | None) -> bool:
        """Return whether the signature is by this key."""
        return key is not None and signed_by(key, self.said, self.signature)

    def signer(self, successions: list[Succession]) -> tuple[int, bytes | None]:
        """Return the current term and the key that signs in it, as they follow from `successions` and the
        elections in the file. The key is None if these elections are not valid. Successions without enough
        votes are ignored."""
        control = ControlFeed(self.authority)
        for one in successions:
            with suppress(RemoteProtocolError):
                control.succeed(one)
        return control.after(self.turns)


def signature_of(run: RunFile, data: bytes, source: str) -> Signature | None:
    """Return the signature of the file `run`, whose bytes are `data`; None if the file is not signed. Raises
    UserError BAD_RUN_FILE if the signature is invalid."""
    if run.signature is None:
        return None
    said, _, rest = data.rpartition(_FIELD)
    try:
        manifest = Manifest.from_canonical(b64decode(run.manifest, validate=True), source)
        form = manifest.parameters().form
        succession = _decoded(run.succession, form, Succession) if run.succession else None
        decided = ((chain, _decoded(frame, form, Control)) for chain, frame in run.elections)
        turns = tuple(
            (bytes.fromhex(chain), one.first, entry) for chain, one in decided for entry in one.entries
        )
    except (binascii.Error, UserError, RemoteProtocolError) as error:
        raise bad_run_file(source, "it is signed, and what shows by whom cannot be read") from error
    authority = manifest.parameters().organised
    if authority is None or authority.run_id.hex() != run.run_id:
        raise bad_run_file(source, "it is signed, and its manifest is of another run")
    found = Signature(authority, succession, turns, _DOMAIN + said, bytes.fromhex(run.signature))
    whole = rest.rstrip() == f'"{run.signature}"}}'.encode()
    if not whole or not found.holds(found.signer([succession] if succession else [])[1]):
        raise bad_run_file(source, "the signature in it is not its organiser's")
    return found


def _decoded(frame: str, form: Form, kind: type[T]) -> T:
    found = wire_codec.decode(bytes.fromhex(frame), *form)
    if not isinstance(found, kind):
        raise RemoteProtocolError("O4", f"no {kind.__name__}")
    return found
