"""E-mails (.eml): who, when, about what, then the best text part. Attachments are named and not opened."""

from __future__ import annotations

import email
import email.policy
from email.errors import MessageError
from email.message import EmailMessage, Message
from typing import BinaryIO

from app.errors import BadInput
from app.ingest import textfile
from app.ingest.formats import webpage
from app.ingest.formats.flow import Flow
from app.ingest.formats.pages import Pages, one_line

MOST_BYTES = 100_000_000
HEADERS = ("From", "To", "Cc", "Bcc", "Reply-To", "Date", "Subject")
_ENCRYPTED = frozenset({"application/pkcs7-mime", "application/x-pkcs7-mime", "multipart/encrypted"})


def read(file: BinaryIO, name: str, out: Pages, password: str | None = None) -> None:
    data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise BadInput(f"{name} is larger than {MOST_BYTES / 1e6:g} MB.", "Save it without its attachments.")
    message = email.message_from_bytes(data, policy=email.policy.default)
    if not isinstance(message, EmailMessage) or not any(
        _header(message, header) for header in ("From", "Date", "Subject")
    ):
        raise BadInput(f"{name} is not an e-mail: it has no sender, date or subject.", "Save it from the mail program.")
    if message.get_content_type() in _ENCRYPTED and "signed-data" not in message.get("Content-Type", ""):
        raise BadInput(f"{name} is encrypted.", "Open it in your mail program and save its text.")
    flow = Flow(out, section="Message")
    subject = _header(message, "Subject")
    out.mark(subject or "Message", 0)
    lines = [f"{header}: {value}" for header in HEADERS if (value := _header(message, header))]
    attached: list[str] = []
    plain: list[str] = []
    pages: list[str] = []
    _collect(message, attached, plain, pages, out)
    if attached:
        lines.append(f"Attachments: {'; '.join(attached)}")
        count = "1 attachment was" if len(attached) == 1 else f"{len(attached)} attachments were"
        out.warn(f"{count} not opened: {one_line('; '.join(attached), 300)}.")
    flow.text("\n".join(lines))
    marks = len(out.outline)
    _body(flow, out, plain, pages, name)
    del out.outline[marks:]  # headings of a newsletter are no chapters
    flow.close()


def _body(flow: Flow, out: Pages, plain: list[str], pages: list[str], name: str) -> None:
    """Plain text, unless it is only a word about the HTML beside it."""
    text = "\n".join(plain).strip()
    if pages:
        looks = len(" ".join("".join(pages).split()))
        if not text or (len(text) < 200 and looks > 20 * len(text)):
            for page in pages:
                utf8 = page.encode("utf-8", "replace")
                webpage.Walker(flow, out).walk(webpage.tree(b"\xef\xbb\xbf" + utf8, name, out))
            return
    flow.text(text)


def _collect(part: Message, attached: list[str], plain: list[str], pages: list[str], out: Pages) -> None:
    """A stack, not recursion: parts may be nested deep. Other messages inside are attachments."""
    stack = [part]
    while stack:
        part = stack.pop()
        kind = part.get_content_type()
        name = part.get_filename()
        if part.get_content_disposition() == "attachment" or name or kind == "message/rfc822":
            attached.append(_attachment(part, kind, name))
        elif part.is_multipart():
            inner = part.get_payload()
            stack.extend(reversed([p for p in inner if isinstance(p, Message)] if isinstance(inner, list) else []))
        elif kind == "text/html":
            pages.append(_text(part, out))
        elif part.get_content_maintype() == "text":
            plain.append(_text(part, out))
        elif part.get_content_maintype() == "image":
            out.pictures += 1
        else:
            attached.append(_attachment(part, kind, name))


def _attachment(part: Message, kind: str, name: str | None) -> str:
    if kind == "message/rfc822":
        inner = part.get_payload()
        first = inner[0] if isinstance(inner, list) and inner else None
        subject = _header(first, "Subject") if isinstance(first, Message) else ""
        return f'the message "{one_line(subject)}"' if subject else "another message"
    payload = part.get_payload(decode=True)
    size = len(payload) if isinstance(payload, bytes) else 0
    shown = f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{max(1, round(size / 1000))} kB"
    return f"{one_line(str(name)) if name else kind} ({shown})"


def _text(part: Message, out: Pages) -> str:
    data = part.get_payload(decode=True)
    if not isinstance(data, bytes):
        return ""
    charset = part.get_content_charset()
    if charset:
        try:
            return textfile.declared(data, charset)
        except (LookupError, UnicodeError):
            pass  # what is declared is not what is there
    try:
        text, warning = textfile.decode(data) if data else ("", "")
    except textfile.NotText:
        out.warn("A text part that is no text was left out.")
        return ""
    if warning:
        out.warn(warning)
    return text


def _header(message: Message, name: str) -> str:
    try:
        return one_line(str(message.get(name, "")), 2_000)
    except (MessageError, ValueError, LookupError, IndexError, AttributeError, TypeError):
        # the standard library fails on some broken headers: their raw text then
        raw = next((value for key, value in message.raw_items() if key.lower() == name.lower()), "")
        return one_line(str(raw), 2_000)
