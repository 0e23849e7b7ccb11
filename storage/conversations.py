"""Conversations, their frozen prompt parts and their messages."""

import json
from collections.abc import Mapping
from typing import Any

from sqlite_utils import Database

from storage.base import LibraryPart, new_id, not_found, now, storable
from storage.rows import MESSAGE_STATES, Conversation, Message


class Conversations(LibraryPart):
    def create_conversation(self, title: str = "") -> Conversation:
        moment = now()
        conversation = Conversation(new_id(), storable(title), moment, moment, False)
        with self._writer.transaction() as db:
            db.execute(
                "INSERT INTO conversations (id, title, created, updated, pinned) VALUES (?, ?, ?, ?, 0)",
                (conversation.id, conversation.title, moment, moment),
            )
        return conversation

    def conversation(self, id: str) -> Conversation:
        """Raises NotFound."""
        with self._writer.use() as db:
            for row in db.query("SELECT * FROM conversations WHERE id = ?", (id,)):
                return _conversation(row)
        raise not_found("conversation", id)

    def conversations(self, search: str = "") -> list[Conversation]:
        """Pinned ones first, then the latest used; with `search`, those with all its words in title or messages."""
        words = storable(search).casefold().split()
        with self._writer.use() as db:
            query = "SELECT * FROM conversations ORDER BY pinned DESC, updated DESC, rowid DESC"
            found = [_conversation(row) for row in db.query(query)]
            if not words:
                return found
            return [conversation for conversation in found if _contains(db, conversation, words)]

    def rename_conversation(self, id: str, title: str) -> None:
        self._change_conversation(id, "title", storable(title))

    def pin_conversation(self, id: str, pinned: bool = True) -> None:
        self._change_conversation(id, "pinned", int(pinned))

    def _change_conversation(self, id: str, column: str, value: str | int) -> None:
        with self._writer.transaction() as db:
            if db.execute(f"UPDATE conversations SET {column} = ? WHERE id = ?", (value, id)).rowcount == 0:
                raise not_found("conversation", id)

    def freeze(self, id: str, key: str, value: str) -> str:
        """Stores a prompt part that must never change again; returns what is stored: the first value ever given."""
        with self._writer.transaction() as db:
            _need_conversation(db, id)
            db.execute(
                "INSERT INTO frozen_values (conversation_id, key, value) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (id, storable(key), storable(value)),
            )
            query = "SELECT value FROM frozen_values WHERE conversation_id = ? AND key = ?"
            return db.execute(query, (id, storable(key))).fetchone()[0]

    def frozen(self, id: str) -> dict[str, str]:
        with self._writer.use() as db:
            rows = db.execute("SELECT key, value FROM frozen_values WHERE conversation_id = ? ORDER BY key", (id,))
            return dict(rows.fetchall())

    def add_message(
        self, conversation_id: str, role: str, text: str, state: str = "complete", **details: Any
    ) -> Message:
        """Appends a message; it is on disk when this returns. `details` is anything that JSON can hold."""
        _need_state(state)
        message_id, moment, clean = new_id(), now(), storable(text)
        stored_details = _merged({}, details)
        with self._writer.transaction() as db:
            _need_conversation(db, conversation_id)
            query = "SELECT coalesce(max(position) + 1, 0) FROM messages WHERE conversation_id = ?"
            index = db.execute(query, (conversation_id,)).fetchone()[0]
            db.execute(
                "INSERT INTO messages (id, conversation_id, position, role, text, state, created, details)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (message_id, conversation_id, index, role, clean, state, moment, stored_details),
            )
            db.execute("UPDATE conversations SET updated = ? WHERE id = ?", (moment, conversation_id))
        return Message(message_id, conversation_id, index, role, clean, state, moment, json.loads(stored_details))

    def update_message(self, id: str, **fields: Any) -> Message:
        """Changes `text` and `state`; every other field is merged into `details` (None removes it)."""
        with self._writer.transaction() as db:
            message = _message_row(db, id)
            text = storable(fields.pop("text", message.text))
            state = _need_state(fields.pop("state", message.state))
            details = _merged(message.details, fields)
            db.execute("UPDATE messages SET text = ?, state = ?, details = ? WHERE id = ?", (text, state, details, id))
            if state != message.state:
                db.execute("UPDATE conversations SET updated = ? WHERE id = ?", (now(), message.conversation_id))
            return _message_row(db, id)

    def message(self, id: str) -> Message:
        """Raises NotFound."""
        with self._writer.use() as db:
            return _message_row(db, id)

    def messages(self, conversation_id: str) -> list[Message]:
        """In order. Raises NotFound for an unknown conversation."""
        with self._writer.use() as db:
            _need_conversation(db, conversation_id)
            query = "SELECT * FROM messages WHERE conversation_id = ? ORDER BY position"
            return [_message(row) for row in db.query(query, (conversation_id,))]


def mark_interrupted(db: Database) -> int:
    """Answers that were streaming when the app died; returns how many."""
    return db.execute("UPDATE messages SET state = 'interrupted' WHERE state = 'streaming'").rowcount


def _merged(old: Mapping[str, Any], changes: Mapping[str, Any]) -> str:
    flat = dict(changes)
    nested = flat.pop("details", {})
    if not isinstance(nested, Mapping):
        raise ValueError(f"details: got {type(nested).__name__}, need a mapping")
    merged = {**old, **nested, **flat}
    text = json.dumps({key: value for key, value in merged.items() if value is not None}, ensure_ascii=False)
    return storable(text)


def _contains(db: Database, conversation: Conversation, words: list[str]) -> bool:
    missing = [word for word in words if word not in conversation.title.casefold()]
    if missing:
        rows = db.execute("SELECT text FROM messages WHERE conversation_id = ?", (conversation.id,))
        for (text,) in rows:
            folded = text.casefold()
            missing = [word for word in missing if word not in folded]
    return not missing


def _need_state(state: str) -> str:
    if state not in MESSAGE_STATES:
        raise ValueError(f"state: got {state!r}, need one of {MESSAGE_STATES}")
    return state


def _need_conversation(db: Database, id: str) -> None:
    if db.execute("SELECT 1 FROM conversations WHERE id = ?", (id,)).fetchone() is None:
        raise not_found("conversation", id)


def _conversation(row: dict[str, Any]) -> Conversation:
    return Conversation(row["id"], row["title"], row["created"], row["updated"], bool(row["pinned"]))


def _message_row(db: Database, id: str) -> Message:
    for row in db.query("SELECT * FROM messages WHERE id = ?", (id,)):
        return _message(row)
    raise not_found("message", id)


def _message(row: dict[str, Any]) -> Message:
    return Message(
        row["id"],
        row["conversation_id"],
        row["position"],
        row["role"],
        row["text"],
        row["state"],
        row["created"],
        json.loads(row["details"]),
    )
