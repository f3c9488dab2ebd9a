"""Putting a finished folder on the hub: what can be refused is refused before there is anything to upload.

The token is the library's: the environment's HF_TOKEN, or that of `hf auth login`. Knows no models.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from sfnode import hub
from sfnode.errors import Code, UserError

REFUSALS = (401, 403)
"""HTTP statuses of a hub that knows what it was asked for, and does not allow it."""


def check(name: str, *, public: bool) -> None:
    """Look whether a model may be put on the hub as `name`, OWNER/NAME: private, or `public`.

    Raises UserError BAD_OPTION for what is no such name and for a model there that everybody sees, though it
    is not to be public; UPLOAD_REFUSED without a token, or with one that does not allow it; UPLOAD_FAILED if
    the hub does not answer.
    """
    _check_name(name)
    if why := hub.unreachable():
        raise UserError(Code.UPLOAD_FAILED, f"nothing can be uploaded to the hub: {why}", "Try again later.")
    if get_token() is None:
        raise _refused(name, "there is no token for the hub on this machine")
    with _errors_of(name):
        who: Any = HfApi().whoami()
        _check_rights(name, who)
        if not public and _is_private(name) is False:
            raise UserError(
                Code.BAD_OPTION,
                f"{name} is on the hub already, where everybody sees it",
                "Add --public if the model is for everybody, or choose another name.",
            )


def push(folder: Path, name: str, *, public: bool) -> str:
    """Upload all files of a folder as the model `name`, which is made if it is not there; return its address,
    and who sees it.

    Raises UserError UPLOAD_REFUSED, UPLOAD_FAILED; the folder stays as it is.
    """
    with _errors_of(name, folder):
        api = HfApi()
        made = api.create_repo(name, private=not public, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message="Model trained with sfnode")
        return f"{made} ({'private' if _is_private(name) else 'public'})"


def _check_name(name: str) -> None:
    try:
        validate_repo_id(name)
        if name.count("/") != 1:
            raise HFValidationError("it has no owner")
    except HFValidationError as error:
        raise UserError(
            Code.BAD_OPTION,
            f"{name!r} is no name of a model on the hub: {error}",
            "Give it as OWNER/NAME, such as ann/good-reviews.",
        ) from error


def _check_rights(name: str, who: Any) -> None:
    """Compare the owner of a name with whose token this is; raise UserError UPLOAD_REFUSED."""
    owner = name.partition("/")[0]
    owners = [who.get("name"), *(one.get("name") for one in who.get("orgs", ()))]
    if owner not in owners:
        raise _refused(name, f"the token is that of {who.get('name')}, who is not {owner} and not a member")
    if who.get("auth", {}).get("accessToken", {}).get("role") == "read":
        raise _refused(name, "the token is for reading only")


def _is_private(name: str) -> bool | None:
    """Return whether a model of that name is private; None if there is none."""
    try:
        return bool(HfApi().repo_info(name).private)
    except RepositoryNotFoundError:
        return None


@contextmanager
def _errors_of(name: str, folder: Path | None = None) -> Iterator[None]:
    """Raise UserError for what the library raises in the block; of a `folder` that is there, how to go on."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # the library raises whatever its network layers raise
        if isinstance(error, HfHubHTTPError) and error.response.status_code in REFUSALS:
            raise _refused(name, _first_line(error), folder) from error
        raise UserError(
            Code.UPLOAD_FAILED,
            f"{name} was not uploaded to the hub: {_first_line(error)}",
            f"Try again.{_again(name, folder)}",
        ) from error


def _refused(name: str, why: str, folder: Path | None = None) -> UserError:
    return UserError(
        Code.UPLOAD_REFUSED,
        f"{name} cannot be uploaded to the hub: {why}",
        "Log in with `hf auth login`, or set HF_TOKEN: a token that may write, of the owner or of a member "
        f"(https://huggingface.co/settings/tokens).{_again(name, folder)}",
    )


def _again(name: str, folder: Path | None) -> str:
    return f" The export is complete: `hf upload {name} {folder}` puts it there." if folder else ""


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0]
