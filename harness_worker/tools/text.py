"""Decodes a part of a UTF-8 text without cutting a character; used by the tools that read in
parts.
"""

from __future__ import annotations

import codecs


def decode_part(part: bytes, *, last: bool) -> tuple[str, int]:
    """Decode `part` and return the text and the number of its bytes that the text covers.

    A character that the end of the part cuts is left for the next part, unless the part is the
    `last` one or holds nothing else. Bytes that are not UTF-8 become U+FFFD.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = decoder.decode(part, final=last)
    pending = len(decoder.getstate()[0])
    if not text and pending:
        return part.decode("utf-8", errors="replace"), len(part)
    return text, len(part) - pending
