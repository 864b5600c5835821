"""Names of arrays as members of a .npz file, which must be safe to unpack into a folder."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

_ESCAPED = re.compile("%[0-9A-F]{2}")


def to_member_name(name: str) -> str:
    """Return the member's name for the array `name`: the same, if it is a path inside the folder.

    In other names, such as ``../x`` and ``/x``, all characters except letters, digits, ``_``, ``-``
    and ``~`` are percent-encoded, as in URLs.
    """
    parts = name.split("/")
    leads_out = not all(parts) or any(set(part) <= {"."} for part in parts)
    if leads_out or set(name) & {"\\", ":"} or not name.isprintable() or _ESCAPED.search(name):
        return quote(name, safe="", errors="surrogatepass").replace(".", "%2E")
    return name


def from_member_name(member: str) -> str:
    name = unquote(member, errors="surrogatepass")
    return name if to_member_name(name) == member else member
