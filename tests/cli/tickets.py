"""A table of support tickets with typical mistakes."""

from __future__ import annotations

import csv
import io
import random
from pathlib import Path

CLASSES = {
    "Billing": ("I was charged twice for my order", "The invoice shows a wrong amount", "Where is my refund"),
    "Login": ("I cannot log in any more", "The password link does not work", "My account is locked"),
    "Delivery": (
        "My parcel has not arrived",
        "The box was damaged on the way",
        "You sent it to an old address",
    ),
    "Other": ("Do you have a shop in town", "Thank you for the kind help", "Can I speak to the manager"),
}
"""Texts, keyed by class."""

MORE = (
    "please \U0001f64f",
    '\nShe said "later", and hung up',
    "since Monday; it is urgent \U0001f621\U0001f621",
    "– my number is 0171,5",
    "",
)
ROWS = 300
NAMES = ("id", "created", "channel", "subject", "body", "category", "agent")


def rows(seed: int = 0) -> list[list[str]]:
    """Return all rows, in which every seventh has no subject and every ninth no agent."""
    draw = random.Random(seed)
    found = []
    for number in range(ROWS):
        category = draw.choice(list(CLASSES))
        said = draw.choice(CLASSES[category])
        body = f"{said}, {draw.choice(MORE)}"
        subject = "" if number % 7 == 0 else f"Order {number}: a question, once more"
        agent = "" if number % 9 == 0 else draw.choice(("Ann", "Bob Smith"))
        when = f"2026-0{1 + number % 9}-11 09:{number % 60:02}"
        channel = draw.choice(("e-mail", "phone", "chat"))  # which could be the label, too
        found.append([str(9000 + number), when, channel, subject, body, category, agent])
    for number in (40, 222):
        found[number][5] = " "
    found[7][3:5] = ["", ""]
    found[137][4] = "Où est ma commande ?"  # which is not UTF-8 in the file
    return found


def write(path: Path, *, delimiter: str = ",") -> Path:
    """Write the table, one row of it in the encoding of an old Windows."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter)
    writer.writerow(NAMES)
    writer.writerows(rows())
    path.write_bytes(text.getvalue().encode().replace("Où".encode(), "Où".encode("cp1252")))
    return path
