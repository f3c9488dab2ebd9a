"""The organiser's signature of a `run.json`: who has the file alone can check it.

The file brings the manifest, whose hash is the run id, and the succession by which the organiser's key of
today came to be (SPEC O3, O4). The signature is the last field and is of all bytes before it, so that there
is nothing to put into a canonical form.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from typing import NamedTuple

from sfnode.errors import UserError
from sfnode.manifest import Manifest
from sfnode.peers.contacts import MAX_FILE
from sfnode.publish.run_file import RunFile, bad_run_file
from sfprotocol import wire_codec
from sfprotocol.control_feed import ControlFeed
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.messages import Authority, Succession
from sfprotocol.signing import Sign, signed_by

_DOMAIN = b"sfnode-run-file"
"""Begins what is signed, so that a signature of a file is none of anything else."""

_FIELD = b',"signature":'


class Signer(NamedTuple):
    """The organiser's key, and what shows that it is."""

    manifest: Manifest
    control: ControlFeed
    sign: Sign

    def write(self, run: RunFile) -> bytes:
        """Return the bytes of a signed file; of one that would get too large (MAX_FILE) without a
        signature."""
        last, parameters = self.control.succession, self.manifest.parameters()
        proof = {
            "manifest": b64encode(self.manifest.canonical()).decode(),
            "succession": wire_codec.encode(last, *parameters.form).hex() if last else "",
        }
        said = run.model_copy(update=proof).write().rpartition(_FIELD)[0]
        data = said + _FIELD + f'"{self.sign(_DOMAIN + said).hex()}"}}\n'.encode()
        return data if len(data) <= MAX_FILE else run.write()


class Signature(NamedTuple):
    """A signature that holds, by one of the keys that a run's deputies have named, or by its first one."""

    authority: Authority
    succession: Succession | None
    said: bytes
    """The message that is signed."""
    signature: bytes

    def holds(self, key: bytes | None) -> bool:
        """Return whether it is by this key."""
        return key is not None and signed_by(key, self.said, self.signature)


def signature_of(run: RunFile, data: bytes, source: str) -> Signature | None:
    """Return the signature of a file with these bytes; None without one. Raises UserError BAD_RUN_FILE for
    one that does not hold."""
    if run.signature is None:
        return None
    said, _, rest = data.rpartition(_FIELD)
    try:
        manifest = Manifest.from_canonical(b64decode(run.manifest, validate=True), source)
        succession = _succession(run, manifest)
    except (binascii.Error, UserError, RemoteProtocolError) as error:
        raise bad_run_file(source, "it is signed, and its manifest or succession cannot be read") from error
    authority = manifest.parameters().organised
    if authority is None or authority.run_id.hex() != run.run_id:
        raise bad_run_file(source, "it is signed, and its manifest is of another run")
    found = Signature(authority, succession, _DOMAIN + said, bytes.fromhex(run.signature))
    whole = rest.rstrip() == f'"{run.signature}"}}'.encode()
    if not whole or not found.holds(key_of(authority, [succession] if succession else [])):
        raise bad_run_file(source, "the signature in it is not its organiser's")
    return found


def key_of(authority: Authority, successions: list[Succession]) -> bytes | None:
    """Return the organiser's key after these successions; those without enough votes count for nothing."""
    control = ControlFeed(authority)
    for one in successions:
        try:
            control.succeed(one)
        except RemoteProtocolError:
            continue
    return control.key


def _succession(run: RunFile, manifest: Manifest) -> Succession | None:
    if not run.succession:
        return None
    found = wire_codec.decode(bytes.fromhex(run.succession), *manifest.parameters().form)
    if not isinstance(found, Succession):
        raise RemoteProtocolError("O4", "no succession")
    return found
