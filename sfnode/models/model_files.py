"""The base model as files: where they are, whether they are safe, and the digest that names them.

Reads safetensors by their header, so that weights of any size are hashed without being loaded. This module
knows neither torch nor architectures, and it never opens a pickle.

Nodes send each other these files in pieces that a listing describes (SPEC B1, B5; `sfprotocol.model_listing`
encodes it).
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from sfnode import hub
from sfnode.errors import Code, UserError
from sfnode.manifest import is_on_hub
from sfnode.manifest.sections import BUILTIN
from sfnode.printable import first_line, size_text
from sfnode.tasks.public_files import listed
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.model_listing import Listing, Piece, encode, hash_listing, hash_piece

CACHE = Path("~/.cache")
"""Folder of caches, unless XDG_CACHE_HOME names another."""

EMBEDDED = Path(__file__).parent.parent / "embedded"
"""Folder of the models `builtin:NAME` in the installed package."""

SAFETENSORS = ".safetensors"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
GENERATION = "generation_config.json"

TOKENIZER_FILES = (
    "added_tokens.json",
    "bpe.codes",
    "chat_template.jinja",
    "dict.txt",
    "merges.txt",
    "sentencepiece.bpe.model",
    "sentencepiece.model",
    "source.spm",
    "special_tokens_map.json",
    "spiece.model",
    "spm.model",
    "target.spm",
    "tekken.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.bpe",
    "vocab.json",
    "vocab.txt",
)
"""Names of all files that may change how text becomes tokens, in any kind of tokenizer, in the order of
hashing."""

DOWNLOAD = ("model*.safetensors", INDEX, CONFIG, GENERATION, *TOKENIZER_FILES)
"""Patterns of files to download from the hub: no pickles and no code."""

ADAPTER = "adapter_config.json"
"""Name of an adapter's file. transformers would silently load the adapter on top of the weights that the
digest covers."""

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle")

OTHER_FORMS = {
    "adapter_*": (
        "is an adapter, which changes a base model and is none",
        "Merge it into its base model (in peft: `merge_and_unload`, `save_pretrained`), and name that.",
    ),
    "*.gguf": (
        "is in the form of llama.cpp (GGUF), in which a model cannot be trained",
        "Name the model that it was made from, in safetensors; --dtype int8 or nf4 saves memory there, too.",
    ),
    "*.onnx": ("is in the form of ONNX", "Name the model that it was made from, in safetensors."),
    "*.h5": ("is in the form of TensorFlow", "Name a copy of the model in safetensors."),
    "*.msgpack": ("is in the form of JAX", "Name a copy of the model in safetensors."),
}
"""Formats of models from which no run can start, keyed by a pattern of file names, with the fault and
advice."""

MAX_HEADERS = 32 << 20
"""Maximum size of the headers of all safetensors files of a model, and of their index, in bytes: enough for
200,000 tensors. In memory headers take ten times their size, and those of a hostile file twenty times."""

MAX_SETTINGS = 8 << 20
"""Maximum size of a file with settings, in bytes: five times the size of the largest known one. Such files
are parsed as JSON, not only hashed."""

SETTINGS = (CONFIG, GENERATION, "added_tokens.json", "special_tokens_map.json", "tokenizer_config.json")
"""Names of files with settings."""

MOST_BYTES = dict.fromkeys((*SETTINGS, "chat_template.jinja"), MAX_SETTINGS) | {INDEX: MAX_HEADERS}
"""Maximum size, in bytes, of files that give the weights a meaning, keyed by name. For other files the limit
is `hub.MAX_OTHER_FILE`."""

ABOUT_THE_LIBRARY = ("transformers_version", "_name_or_path")
"""Keys of config.json about the library that has saved the model."""

HASH_CHUNK = 16 << 20
"""Bytes hashed at a time, so that a file is never in memory as a whole."""


class StoredTensor(NamedTuple):
    """Location of one tensor in a file."""

    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    """Bytes from the start of the file."""
    size: int
    """Size in bytes."""


def cache() -> Path:
    """Return the folder of sfnode's caches. Caches only save time: a lost one is made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or CACHE).expanduser() / "sfnode"


def located(source: str, revision: str = "") -> Path:
    """Return the folder of the base model `source`: a path, or a name that `resolve` accepts, as this
    machine's owner gives it. Raises UserError as `resolve`."""
    if Path(source).expanduser().is_file():
        raise _no_weights(Path(source).expanduser())
    return resolve(source, revision, named_folder(source))


def named_folder(source: str) -> Path | None:
    """Return the folder that this machine's owner names as a base model; None if `source` is no folder."""
    folder = Path(source).expanduser()
    return folder.resolve() if source and folder.is_dir() else None


def resolve(source: str, revision: str, override: Path | None) -> Path:
    """Return the local folder of the base model that a manifest names, downloading it if necessary.

    `override` is a folder that this machine's owner has named, or that came from peers; the caller checks its
    digest. The source comes from others, so without an override it is read as a name in this package or on
    the hub, never as a path on this machine. Raises UserError MODEL_NOT_FOUND, or MODEL_UNSAFE for a folder
    whose weights are pickles only.
    """
    if override is not None:
        folder = override
    elif source.startswith(BUILTIN):
        folder = EMBEDDED / Path(source.removeprefix(BUILTIN)).name
    elif is_on_hub(source):
        folder = _download(source, revision)
    else:
        raise UserError(
            Code.MODEL_NOT_FOUND,
            f"nothing says where the base model {source} is on this machine",
            "Name its folder with --model, or join the run through a node that has it. On the hub models are "
            "named OWNER/NAME.",
        )
    _check_sizes(folder)
    weight_files(folder)
    if (folder / ADAPTER).exists():
        raise UserError(
            Code.MODEL_UNSAFE,
            f"{folder} holds an adapter ({ADAPTER}) besides the base model",
            "Give a folder with the base model alone; merge the adapter first if you want it in.",
        )
    return folder


def most_bytes(name: str) -> int:
    """Return the maximum size, in bytes, of a file with this name, other than a file with weights."""
    return MOST_BYTES.get(name, hub.MAX_OTHER_FILE)


def _check_sizes(folder: Path) -> None:
    """Raise UserError MODEL_TOO_LARGE for a file that is read as a whole and exceeds its maximum size,
    MODEL_NOT_FOUND for an unreadable one."""
    for name in (CONFIG, GENERATION, INDEX, *TOKENIZER_FILES):
        try:
            with (folder / name).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            continue
        except OSError as error:
            raise broken(folder / name, "file", error) from error
        if size > most_bytes(name):
            sizes = size_text(size), size_text(most_bytes(name))
            raise UserError(
                Code.MODEL_TOO_LARGE,
                f"{folder / name} has {sizes[0]}, where {sizes[1]} are allowed",
                "Take another copy of the model, or another model: no real one has such a file.",
            )


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files that hold the weights, as transformers would choose them.

    Raises UserError MODEL_NOT_FOUND, MODEL_UNSAFE or MODEL_UNSUPPORTED.
    """
    if (folder / CONFIG).is_file():
        if (folder / SINGLE).is_file():
            return [folder / SINGLE]
        if (folder / INDEX).is_file():
            return _shards(folder)
    raise _no_weights(folder)


def covered(folder: Path) -> list[Path]:
    """Return the files that the digest covers, and the index of the shards. Raises UserError MODEL_*."""
    weights = weight_files(folder)
    index = [] if weights == [folder / SINGLE] else [folder / INDEX]
    others = (folder / name for name in (CONFIG, *TOKENIZER_FILES))
    return [*weights, *index, *(file for file in others if file.is_file())]


def digest(folder: Path) -> str:
    """Return BLAKE2b-256, in hex, over a base model's tensors and the files that give them meaning.

    Tensors are sorted by name. Each is hashed as a JSON line `[name, dtype, shape, size]` and its raw bytes.
    The files that hold the tensors do not matter, so other shards give the same digest. Then follow
    config.json and the tokenizer's files that exist, each as a JSON line `[name, size]` and its bytes.
    """
    state = hashlib.blake2b(digest_size=32)
    tensors = stored_tensors(folder)
    for name in sorted(tensors):
        stored = tensors[name]
        state.update(_line([name, stored.dtype, list(stored.shape), stored.size]))
        _hash_numbers(state, stored)
    for file in (CONFIG, *TOKENIZER_FILES):
        if (folder / file).is_file():
            content = (folder / file).read_bytes()
            state.update(_line([file, len(content)]) + content)
    return state.hexdigest()


def check_digest(folder: Path, wanted: str) -> None:
    """Raise UserError MODEL_DIGEST unless a base model has this digest. Raises other errors as `digest` does.

    In a process the model is hashed once, and again if its files have changed.
    """
    files = ((file, file.stat()) for file in covered(folder))
    _check_digest(folder, wanted, tuple((file, stat.st_size, stat.st_mtime_ns) for file, stat in files))


@lru_cache(maxsize=16)
def _check_digest(folder: Path, wanted: str, _files: tuple[tuple[Path, int, int], ...]) -> None:
    if (actual := digest(folder)) != wanted:
        raise UserError(
            Code.MODEL_DIGEST,
            f"the base model in {folder} has digest {actual}; the run started from {wanted}",
            "Give the folder of the run's own base model, or the revision that its manifest names.",
        )


def has_weights(folder: Path) -> bool:
    """Return whether a folder has a model's weights in safetensors, beside its configuration."""
    return (folder / SINGLE).is_file() or (folder / INDEX).is_file()


def weight_bytes(folder: Path) -> int:
    """Return the size of the files with weights, in bytes. Raises UserError MODEL_*."""
    return sum(file.stat().st_size for file in weight_files(folder))


def difference(one: Path, other: Path) -> str | None:
    """Return, in words, a difference between two base models that may change their outputs; None if there is
    none.

    Keys of config.json about the library do not count. Raises UserError MODEL_*.
    """
    tensors = [stored_tensors(folder) for folder in (one, other)]
    names = sorted({*tensors[0], *tensors[1]})
    for name in names:
        if not (name in tensors[0] and name in tensors[1]):
            return f"the tensor {name} is in one of them only"
        first, second = (_tensor_digest(tensor[name]) for tensor in tensors)
        if first != second:
            return f"the tensor {name} has other values"
    if _config(one / CONFIG) != _config(other / CONFIG):
        return f"{CONFIG} says something else"
    for file in TOKENIZER_FILES:
        if _content(one / file) != _content(other / file):
            return f"{file} is another one"
    return None


def _tensor_digest(stored: StoredTensor) -> tuple[str, tuple[int, ...], bytes]:
    state = hashlib.blake2b(digest_size=32)
    _hash_numbers(state, stored)
    return stored.dtype, stored.shape, state.digest()


def _hash_numbers(state: hashlib.blake2b, stored: StoredTensor) -> None:
    with stored.file.open("rb") as handle:
        handle.seek(stored.offset)
        for start in range(0, stored.size, HASH_CHUNK):
            state.update(handle.read(min(HASH_CHUNK, stored.size - start)))


def _config(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {key: value for key, value in found.items() if key not in ABOUT_THE_LIBRARY}
    except UNSOUND as error:
        raise broken(file, "configuration", error) from error


def _content(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None


def _line(fields: list[Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return all tensors of a base model, keyed by name. Raises UserError MODEL_* if some are missing."""
    tensors: dict[str, StoredTensor] = {}
    room = MAX_HEADERS
    for file in weight_files(folder):
        found, begin = _listed(file, room)
        room -= begin
        if twice := tensors.keys() & found:
            raise broken(file, "safetensors file", f"tensor {min(twice)} is in another shard as well")
        tensors |= found
    return tensors


UNSOUND = (OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError)
"""Errors that reading a JSON file from a stranger may raise."""


def _listed(file: Path, room: int) -> tuple[dict[str, StoredTensor], int]:
    """Return the tensors in the header of one file, keyed by name, and the position where the file's data
    begin. A header is 8 bytes of length, then JSON of at most `room` bytes."""
    try:
        with file.open("rb") as handle:
            length, total = int.from_bytes(handle.read(8), "little"), file.stat().st_size
            if length > min(room, total - 8):
                raise ValueError("the header is longer than the file, or than a model's may be")
            header, begin = json.loads(handle.read(length)), 8 + length
        header.pop("__metadata__", None)
        return {name: _stored(entry, file, begin, total) for name, entry in header.items()}, begin
    except UNSOUND as error:
        raise broken(file, "safetensors file", error) from error


def _stored(entry: dict[str, Any], file: Path, begin: int, total: int) -> StoredTensor:
    """Return the location of the tensor that an entry of a header describes. Offsets count from `begin`, and
    the file has `total` bytes."""
    start, stop = entry["data_offsets"]
    if not 0 <= start <= stop <= total - begin:
        raise ValueError("a tensor reaches past the end of the file")
    shape = tuple(int(size) for size in entry["shape"])
    return StoredTensor(str(entry["dtype"]), shape, file, begin + start, stop - start)


def _shards(folder: Path) -> list[Path]:
    try:
        names = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()
        return [_shard(folder, name) for name in sorted(set(names))]
    except UNSOUND as error:
        raise broken(folder / INDEX, "index of safetensors files", error) from error


def _shard(folder: Path, name: str) -> Path:
    """Return a file that the index names, if it is in the folder. transformers would follow a path out of the
    folder."""
    if Path(name).name != name or not name.endswith(SAFETENSORS):
        raise ValueError(f"{name} is not the name of a safetensors file beside it")
    if not (folder / name).is_file():
        raise ValueError(f"{name} is missing")
    return folder / name


def _download(source: str, revision: str) -> Path:
    """Return the folder of a model from the hub, or from its cache if the hub is unreachable.

    Raises UserError MODEL_NOT_FOUND, MODEL_TOO_LARGE or DISK_FULL.
    """
    unreachable = hub.unreachable()
    try:
        return (hub.download if unreachable is None else hub.kept)(source, revision, DOWNLOAD)
    except UserError:
        raise
    except Exception as error:  # its library also passes on other libraries' errors
        wanted = f"{source} at revision {revision}" if revision else source
        reason = unreachable or first_line(error)
        raise UserError(
            Code.MODEL_NOT_FOUND,
            f"the base model {wanted} is not available from the hub: {reason}",
            "Check its name and your connection, or give a folder that holds it.",
        ) from error


def _no_weights(folder: Path) -> UserError:
    """Return the error for a folder, or a file, that is no base model."""
    if not folder.exists():
        return UserError(
            Code.MODEL_NOT_FOUND,
            f"there is no base model at {folder}",
            "Give a folder in Hugging Face format, or the name of a model on the hub.",
        )
    names = sorted(file.name for file in folder.iterdir()) if folder.is_dir() else [folder.name]
    for pattern, (what, fix) in OTHER_FORMS.items():
        if found := fnmatch.filter(names, pattern):
            return UserError(Code.MODEL_UNSUPPORTED, f"{folder} {what} ({found[0]})", fix)
    pickles = [name for pattern in PICKLES for name in fnmatch.filter(names, pattern)]
    if pickles:
        return UserError(
            Code.MODEL_UNSAFE,
            f"{folder} holds its weights as a pickle ({pickles[0]}), which can run code when it is loaded",
            "Use a revision of the model that has safetensors, or convert it yourself if you trust it.",
        )
    weights = () if {SINGLE, INDEX} & {*names} else (f"{SINGLE} (or {INDEX})",)
    lacking = " and ".join([*({CONFIG} - {*names}), *weights])
    return UserError(
        Code.MODEL_NOT_FOUND,
        f"{folder} is not a base model: it lacks {lacking}",
        "Give a folder in Hugging Face format with safetensors weights.",
    )


def broken(file: Path, kind: str, reason: Exception | str) -> UserError:
    """Return the error for a model's file that cannot be read, or whose content is not of the `kind` that its
    name says."""
    if isinstance(reason, OSError):
        return UserError(
            Code.MODEL_NOT_FOUND,
            f"{file} cannot be read: {reason.strerror or reason}",
            "Let the user who runs sfnode read it, or name a copy of the model.",
        )
    return UserError(
        Code.MODEL_UNSUPPORTED, f"{file} is not a sound {kind}: {reason}", "Download the model again."
    )


def licence_of(base: Path) -> str | None:
    """Return the licence in the base model's card; None without one."""
    try:
        card = (base / "README.md").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    head = re.match(r"---\n(.*?)\n---", card, re.DOTALL)
    found = re.search(r"^license:[ ]*([\w.-]+)[ ]*$", head[1], re.ASCII | re.MULTILINE) if head else None
    return found[1] if found else None


SAFE = frozenset({CONFIG, INDEX, *TOKENIZER_FILES})
"""Names of the files that nodes may send each other besides safetensors: no code and no pickles."""


def list_model(folder: Path) -> bytes:
    """Return the encoded listing of the base model in a folder. This reads all of its files."""
    return encode(listed(file, file.name) for file in covered(folder))


def listing_hash(folder: Path) -> str:
    """Return the hash of a model's listing in hex, as in a manifest; "" if it cannot be listed."""
    try:
        return hash_listing(list_model(folder)).hex()
    except RemoteProtocolError:  # a shard with an odd name, or more terabytes than a listing holds
        return ""


def require_safe(listing: Listing) -> None:
    """Raise RemoteProtocolError for a listing with a file that no base model needs, or with one that is too
    large (SPEC B5)."""
    for file in listing.files:
        if file.name.endswith(SAFETENSORS):
            continue
        if file.name not in SAFE:
            raise RemoteProtocolError("B5", f"{file.name} is not a file of a base model")
        if file.size > most_bytes(file.name):
            raise RemoteProtocolError("B5", f"{file.name} is larger than that of any base model")


def read_piece(folder: Path, piece: Piece, offset: int, length: int) -> bytes:
    """Return at most `length` bytes of a piece. `offset` is the position in the piece of the first byte.
    Raises OSError."""
    with (folder / piece.name).open("rb") as file:
        return os.pread(file.fileno(), max(0, min(length, piece.size - offset)), piece.offset + offset)


def write_piece(folder: Path, piece: Piece, data: bytes) -> None:
    """Write a piece to its file, at its offset. Raises OSError."""
    descriptor = os.open(folder / piece.name, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, data, piece.offset)
    finally:
        os.close(descriptor)


def missing(folder: Path, listing: Listing) -> list[int]:
    """Return the numbers (SPEC B2) of the pieces that are missing in this folder. This reads and hashes the
    folder's files.

    There is no separate record of the pieces that were downloaded, because only the files themselves are
    certain to be right.
    """
    lacking = []
    for number, piece in enumerate(listing.pieces(), start=1):
        file = folder / piece.name
        there = file.is_file() and file.stat().st_size >= piece.offset + piece.size
        if not there or hash_piece(read_piece(folder, piece, 0, piece.size)) != piece.hash:
            lacking.append(number)
    return lacking
