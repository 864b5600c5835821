"""Names of arrays as those of members of a .npz file, which somebody may unpack into a folder."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

_ESCAPED = re.compile("%[0-9A-F]{2}")


def member_name(name: str) -> str:
    """Return what an array of some name is called in a file: that, if it leads to a file inside.

    Of others, such as ``../x`` and ``/x``, all but letters, digits, ``_``, ``-`` and ``~``
    becomes ``%`` and two digits for each byte, as in addresses of the web.
    """
    parts = name.split("/")
    leads_out = not all(parts) or any(set(part) <= {"."} for part in parts)
    if leads_out or set(name) & {"\\", ":"} or not name.isprintable() or _ESCAPED.search(name):
        return quote(name, safe="", errors="surrogatepass").replace(".", "%2E")
    return name


def array_name(member: str) -> str:
    """Return the name of the array that `member_name` called so; any other stands for itself."""
    name = unquote(member, errors="surrogatepass")
    return name if member_name(name) == member else member
