"""Names are bytes. How they are shown to people, without passing control characters to a terminal.

Inside mirrord a name is a `str` decoded from bytes (`os.fsdecode` in UTF-8): a byte XX that is not
UTF-8 is the lone surrogate U+DCXX. It is the same in JSON, so that nothing is lost.
"""

from __future__ import annotations

import codecs
import unicodedata

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
#: For `errors=` of a text stream: characters that its encoding lacks are written as `\xNN`.
ESCAPING = "mirrord.escaping"


def escaped(name: str) -> str:
    r"""A name or path for a terminal or a log: a byte that is not printable is `\xNN` (or `\n`,
    `\r`, `\t`), and a backslash is doubled. Two names are never shown alike.
    """
    return harmless(name.replace("\\", "\\\\"))


def harmless(text: str) -> str:
    """A message for a terminal or a log, in one line: as `escaped`, but backslashes are kept, since
    the names in it may be escaped already.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _shown(letter) for letter in text)


def can_name(name: str) -> bool:
    """Whether mirrord may use that name: it is not a path, and has nothing to be escaped."""
    return name not in ("", ".", "..") and "/" not in name and name.isprintable()


def is_plain(text: str) -> bool:
    """Whether a text file can have it as it is: no control characters, and UTF-8."""
    return not any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text)


def _shown(letter: str) -> str:
    errors = "surrogateescape" if "\udc80" <= letter <= "\udcff" else "surrogatepass"
    return _SHORT.get(letter) or "".join(f"\\x{byte:02x}" for byte in letter.encode(errors=errors))


def _escape(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(_shown, error.object[error.start : error.end])), error.end


codecs.register_error(ESCAPING, _escape)
