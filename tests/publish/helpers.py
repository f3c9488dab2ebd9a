"""Reads HTML pages: their elements, attributes and texts."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from sfnode.manifest import Manifest
from sfprotocol import invitation

PEER = "/dns4/boot.example.org/tcp/31337/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words = ""
        self._inside: list[str] = []
        self.feed(text)

    @classmethod
    def of(cls, path: Path) -> Page:
        return cls(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attributes}))
        self._inside.append(tag)
        self.words += " " if tag == "td" else ""

    def handle_data(self, data: str) -> None:
        if not self._inside or self._inside[-1] != "style":
            self.words += data

    def named(self, tag: str) -> list[dict[str, str]]:
        """Return the attributes of all elements of this name."""
        return [attributes for name, attributes in self.elements if name == tag]

    def dangers(self) -> Iterator[str]:
        """Yield the elements that may run a script or load something from elsewhere."""
        for tag, attributes in self.elements:
            if tag in {"script", "iframe", "object", "embed", "base", "form", "img", "foreignobject"}:
                yield tag
            for name, value in attributes.items():
                far = name in {"src", "href"} and not value.startswith(("run.", "model/", "data:image/svg"))
                if name.startswith("on") or name == "style" or (far and attributes.get("rel") != "canonical"):
                    yield f"{tag} {name}={value}"


def link_to(manifest: Manifest) -> str:
    """Return an invitation to the run."""
    return invitation.write(invitation.invite(manifest.protocol, manifest.run_id, [PEER]))
