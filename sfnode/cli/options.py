"""Declares options: each is a flag, an environment variable and a key of the configuration file.

`--data-dir` is also `SFNODE_DATA_DIR` and `data-dir` in the file. An option that few need is a key of --set
instead of a flag (`sfnode.cli.keys`). The file is flat TOML: a key applies to every command that has the
option. Order of precedence: command line, environment, file, default. Options of a node are derived from the
fields of `sfnode.settings`; this module does not know their meaning.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import click
from click.core import ParameterSource

from sfnode.cli import output
from sfnode.cli.keys import Option
from sfnode.defaults import CONFIG, DATA_DIR, FOLDERS, LOCALHOST, PROFILES, located, variable
from sfnode.errors import Code, UserError

if TYPE_CHECKING:
    from pydantic import ValidationError

F = TypeVar("F", bound=Callable[..., Any])

_FIRST = (
    *(ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT),
    *(ParameterSource.DEFAULT_MAP, ParameterSource.DEFAULT, None),
)
"""Sources of an option's value, the highest precedence first."""

MAX_LINE = 4_096
"""Maximum length, in characters, of a line that is read from standard input. A link has at most half as many
characters (`sfprotocol.invitation.MAX_LINK`)."""


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """Return `click.option`, with an environment variable that is named after the flag. The help shows the
    default unless it is empty, zero or a boolean.

    The help shows a whole number as COUNT, and a path as FILE or FOLDER, unless `metavar` is given. With
    `key="section.key"`, users give the option as `--set section.key=value` instead of a flag. The flag then
    only names its environment variable and its key in the configuration file.
    """
    flag = next(name for name in names if name.startswith("--")).partition("/")[0]
    match settings.get("type"):
        case click.IntRange():
            settings.setdefault("metavar", "COUNT")
        case click.Path(dir_okay=folder):
            settings.setdefault("metavar", "FOLDER" if folder else "FILE")
    said = settings.get("default")
    settings.setdefault("show_default", bool(said) and said is not True)
    return click.option(*names, cls=Option, envvar=variable(flag), show_envvar=True, **settings)


def _typed_link(context: click.Context, _parameter: Any, value: str | None) -> str | None:
    completing = context.resilient_parsing  # by a shell: its standard input is not ours to read
    return asked_link() if value == "-" and not completing else value


link_option = option(
    "--link", metavar="LINK|-", callback=_typed_link, help="Invitation to the run; -: ask for it."
)
"""Option --link, for commands that examine a run."""


link_argument = click.argument(
    "link", required=False, metavar="[LINK|-]", envvar=variable("--link"), callback=_typed_link
)
"""Argument for a link. The configuration file has no key for it. If the argument is `-`, the user types the
link at a terminal, or the link is read from a pipe."""


def asked_link() -> str:
    """Return the link that is typed at a terminal, or the first line of standard input. Other users can see a
    command line, but not this input."""
    if sys.stdin.isatty():
        return output.ask("Link", err=True).strip()
    line = sys.stdin.readline(MAX_LINE).strip()
    if not line:
        raise click.BadParameter("standard input has no link in its first line")
    return line


def setting(*names: str, **extra: Any) -> Callable[[F], F]:
    """Return the option for a field of `Settings`, with the field's type, default, bounds and text."""
    flag = long_name(names).partition("/")[0]
    return option(*names, **(_declared(flag.removeprefix("--").replace("-", "_")) | extra))


def _declared(name: str) -> dict[str, Any]:
    """Return the type, default, help and bounds of an option, as click takes them, from the field `name` of
    `Settings`."""
    from sfnode.settings import Settings

    field = Settings.model_fields[name]
    kinds = [kind for kind in get_args(field.annotation) or (field.annotation,) if kind is not type(None)]
    shown = {"default": field.default, "show_default": bool(field.default) and field.default is not True}
    shown["help"] = field.description and " ".join(field.description.split("\n"))
    for kind in (field.annotation, *kinds):
        if get_origin(kind) is Literal:
            return shown | {"type": click.Choice(get_args(kind))}
    if kinds == [bool]:
        return shown | {"show_default": None, "is_flag": True}
    if kinds == [int]:
        least, most = (bound(field.metadata, side) for side in ("ge", "le"))
        return shown | {"type": click.IntRange(least, most), "metavar": "COUNT"}
    if kinds == [float]:
        return shown | {"type": click.FloatRange(*(bound(field.metadata, side) for side in ("ge", "le")))}
    if kinds == [Path]:
        return shown | {"type": click.Path(path_type=Path), "metavar": "FILE"}
    if kinds == [str, ...]:
        return shown | {"multiple": True}
    return shown


def bound(metadata: Iterable[Any], side: str) -> Any:
    """Return the bound of a field on one `side` (`ge` or `le`); None if there is no such bound."""
    return next((getattr(item, side) for item in metadata if hasattr(item, side)), None)


def out_option(metavar: str, text: str, *, required: bool = True) -> Callable[[F], F]:
    """Return --out, the folder or file that a command writes."""
    return option("--out", type=click.Path(path_type=Path), metavar=metavar, required=required, help=text)


def require_new_file(out: Path, *ends: str) -> None:
    """Raise UserError BAD_OPTION unless `out` can be made as a new file and, if `ends` are given, ends with
    one of them."""
    if out.exists():
        raise UserError(Code.BAD_OPTION, f"{out} exists already", "Name another file.")
    if (ends and out.suffix not in ends) or not out.absolute().parent.is_dir():
        form = f" that ends in {' or '.join(ends)}," if ends else ""
        raise UserError(
            Code.BAD_OPTION,
            f"--out: {out} is no new file{form} in a folder that is there",
            "Name another file.",
        )


def epoch_argument(name: str, **extra: Any) -> Callable[[F], F]:
    """Return the argument for a sealed epoch."""
    from sfprotocol.run_state import MAX_EPOCHS

    return click.argument(name, type=click.IntRange(0, MAX_EPOCHS - 1), metavar=name.upper(), **extra)


def data_dir_option(function: F) -> F:
    """Add --data-dir and --profile. `Settings` is not imported, because some commands with these options must
    start at once."""
    function = option(
        "--profile",
        metavar="NAME",
        expose_value=False,
        is_eager=True,
        callback=_parse_profile,
        help="A folder by name instead, one for each run.",
    )(function)
    return option(
        "--data-dir",
        type=click.Path(path_type=Path),
        default=DATA_DIR,
        callback=_folder,
        help="The node's folder; one node each.",
    )(function)


def _parse_profile(context: click.Context, _parameter: Any, value: str | None) -> None:
    """Store the name of a profile, which `_folder` reads."""
    if value is not None and not PROFILE.fullmatch(value):
        raise click.BadParameter("take letters, digits, dots, dashes and underscores for a name")
    context.meta["profile"] = value


def _folder(context: click.Context, _parameter: Any, value: Path) -> Path:
    """Return the data folder: the one of --profile, unless a source of higher precedence gives --data-dir."""
    name = context.meta["profile"]
    if name is None:
        return located(value)
    folder, profile = (_FIRST.index(context.get_parameter_source(of)) for of in ("data_dir", "profile"))
    if folder == profile == 0:
        raise click.BadParameter("name a folder or a --profile, not both")
    return located(value) if folder < profile else profile_folder(name)


as_of_now_option = option(
    "--as-of-now",
    is_flag=True,
    help="Organised run: all that is here, also what does not count yet.  [default: what counts]",
)


def model_option(function: F) -> F:
    """Add --model, a folder with the run's base model, to a command."""
    return setting("--model", metavar="FOLDER")(function)


def device_option(function: F, key: str = "") -> F:
    """Add --device to a command that computes on one device. If the configuration file names several devices
    for nodes, the command uses the first."""
    return setting(
        "--device",
        key=key,
        metavar="NAME",
        callback=_first,
        help="Device that computes: cpu, cuda, cuda:1, mps.",
    )(function)


def _first(_context: Any, _parameter: Any, value: str) -> str:
    return value.partition(",")[0]


def devices_option(function: F) -> F:
    """Add --device to a command that computes on one or several devices."""
    return setting(
        "--device", metavar="NAMES", callback=_parse_devices, help="cpu, cuda, mps; several: cuda:0,cuda:1."
    )(function)


def _parse_devices(_context: Any, _parameter: Any, value: str) -> str:
    from pydantic import ValidationError

    from sfnode.settings import Settings

    try:
        return Settings(device=value).device
    except ValidationError as error:
        raise UserError(
            Code.DEVICE,
            f"--device: {reason(error)}",
            "Name each device once, separated by commas: cuda:0,cuda:1.",
        ) from error


def reason(error: ValidationError) -> str:
    """Return the reason why a value is invalid: the text of pydantic or of our validator."""
    return error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")


def dtype_option(function: F, key: str = "") -> F:
    """Add --dtype, for commands that run a model."""
    return setting("--dtype", key=key, metavar="FORMAT", show_default=False)(function)


def model_options(function: F) -> F:
    """Add --data-dir, --model, --device and --dtype, for commands that compute with the model of a run."""
    return data_dir_option(model_option(device_option(dtype_option(function))))


def verifier_option(function: F) -> F:
    """Add --verifier, which permits the command to score answers by the user's own function."""
    return setting("--verifier", metavar="MODULE:FUNCTION")(function)


def peers_option(text: str) -> Callable[[F], F]:
    """Return --peers. `text` describes the use of the peers in the command."""
    return setting("--peers", metavar="MULTIADDR", help=text)


def run_option(text: str) -> Callable[[F], F]:
    """Return --run."""
    return setting("--run", help=text)


def threads_option(text: str) -> Callable[[F], F]:
    """Return --threads; 0 means the default."""
    from sfnode.limits import MAX_THREADS

    count = click.IntRange(0, MAX_THREADS)
    return option("--threads", type=count, default=0, metavar="COUNT", help=text)


def host_maddrs_option(text: str) -> Callable[[F], F]:
    """Return --host-maddrs."""
    return setting("--host-maddrs", metavar="MULTIADDR", show_default=False, help=text)


def parse_listen_address(_context: Any, _parameter: Any, value: str | None) -> tuple[str, int] | None:
    """Return `[HOST:]PORT` as (host, port); without a host only this machine can connect."""
    if value is None:
        return None
    host, _, port = value.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535 or (":" in host and not host.startswith("[")):
        raise click.BadParameter("give it as PORT or HOST:PORT, for example 9100 or 0.0.0.0:9100")
    return host.strip("[]") or LOCALHOST, int(port)


dry_run_option = option("--dry-run", is_flag=True, help="Only say what would change.")

details_option = option(
    "--details", is_flag=True, help="Say it in precise terms, too (protocol/GLOSSARY.md)."
)
"""Option --details, for commands that otherwise print plain words."""


def _json_wanted(_context: Any, _parameter: Any, value: bool) -> bool:
    """Have errors printed as JSON, too. The position of --json on the command line does not matter."""
    output.state.as_json = output.state.as_json or value
    return value


json_option = option(
    "--json",
    "as_json",
    is_flag=True,
    is_eager=True,
    callback=_json_wanted,
    help="Print JSON for programs (docs/json.md); errors, too.",
)


def config_file(given: Path | None) -> Path:
    """Return the configuration file that is used, whether it exists or not."""
    return located(given or CONFIG)


def long_name(names: Iterable[str]) -> str:
    """Return the long flag of an option."""
    return next(name for name in names if name.startswith("--"))


PROFILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
"""Pattern of a profile's name, which is also the name of a folder."""

MAX_LISTED = 1_000
"""Maximum number of folders in the list of data folders. When the list is full, folders that no longer exist
are dropped from the list. Tests and swarms leave many such folders in it."""


def profile_folder(name: str) -> Path:
    """Return the data folder of a profile."""
    return located(PROFILES) / name


def place(folder: Path) -> tuple[str, ...]:
    """Return the options that name a data folder; empty for the default folder."""
    folder = folder.expanduser().resolve()
    if folder == located(DATA_DIR).resolve():
        return ()
    named = folder.parent == located(PROFILES).resolve() and PROFILE.fullmatch(folder.name)
    return ("--profile", folder.name) if named else ("--data-dir", str(folder))


def known_folders() -> list[Path]:
    """Return the existing data folders: the default one, the profiles' folders, and listed folders in which
    nodes ran."""
    profiles = located(PROFILES)
    named = sorted(profiles.iterdir()) if profiles.is_dir() else []
    found = dict.fromkeys([located(DATA_DIR), *named, *_listed()])
    return [folder for folder in found if folder.is_dir()]


def note(folder: Path) -> None:
    """Add a data folder to the list, unless it is listed already. The default folder and profiles' folders
    are found without the list."""
    folder = folder.expanduser().resolve()
    default, profiles = located(DATA_DIR).resolve(), located(PROFILES).resolve()
    listed = _listed()
    if folder == default or folder.parent == profiles or folder in listed:
        return
    full = len(listed) >= MAX_LISTED
    kept = [one for one in listed if one.is_dir()][1 - MAX_LISTED :] if full else []
    with suppress(OSError):  # only `sfnode list` needs it
        file = located(FOLDERS)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with file.open("w" if full else "a", encoding="utf-8") as out:  # others may append, too
            out.write("".join(f"{line}\n" for line in (*kept, folder)))


def _listed() -> list[Path]:
    try:
        lines = located(FOLDERS).read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return []
    return [Path(line) for line in lines if line]
