"""The tables of library.db as numbered migrations. A released migration never changes; a new one is added after it."""

from sqlite_utils import Database, Migrations

library_migrations = Migrations("library")


@library_migrations()
def m001_conversations(db: Database) -> None:
    db.executescript("""
        CREATE TABLE conversations (
            id TEXT PRIMARY KEY,
            title TEXT NOT NULL,
            created REAL NOT NULL,
            updated REAL NOT NULL,
            pinned INTEGER NOT NULL DEFAULT 0
        ) STRICT;
        CREATE INDEX conversations_by_update ON conversations (pinned, updated);
        CREATE TABLE frozen_values (
            conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
            key TEXT NOT NULL,
            value TEXT NOT NULL,
            PRIMARY KEY (conversation_id, key)
        ) STRICT;
        CREATE TABLE messages (
            id TEXT PRIMARY KEY,
            conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
            position INTEGER NOT NULL,
            role TEXT NOT NULL,
            text TEXT NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('complete', 'streaming', 'stopped', 'failed', 'interrupted')),
            created REAL NOT NULL,
            details TEXT NOT NULL,
            UNIQUE (conversation_id, position)
        ) STRICT;
    """)


@library_migrations()
def m002_documents(db: Database) -> None:
    db.executescript("""
        CREATE TABLE documents (
            id TEXT PRIMARY KEY,
            sha256 TEXT NOT NULL,
            extractor TEXT NOT NULL,
            name TEXT NOT NULL,
            kind TEXT NOT NULL,
            pages INTEGER NOT NULL,
            characters INTEGER NOT NULL,
            size INTEGER NOT NULL,
            added REAL NOT NULL,
            source TEXT NOT NULL,
            UNIQUE (sha256, extractor)
        ) STRICT;
        CREATE TABLE pages (
            document_id TEXT NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
            page INTEGER NOT NULL,
            label TEXT NOT NULL,
            text TEXT NOT NULL,
            flag TEXT NOT NULL,
            PRIMARY KEY (document_id, page)
        ) STRICT;
        CREATE TABLE conversation_documents (
            conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
            document_id TEXT NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
            position INTEGER NOT NULL,
            after_message INTEGER NOT NULL,
            PRIMARY KEY (conversation_id, document_id)
        ) STRICT;
        CREATE INDEX conversations_by_document ON conversation_documents (document_id);
    """)


@library_migrations()
def m003_search(db: Database) -> None:
    # passages_words finds words (and pairs of characters where a script has no spaces), passages_parts parts of words.
    # No triggers: with trusted_schema off they may not write to FTS tables; see search_index.py.
    db.executescript("""
        CREATE TABLE passages (
            id INTEGER PRIMARY KEY,
            document_id TEXT NOT NULL REFERENCES documents (id),
            page INTEGER NOT NULL,
            heading TEXT NOT NULL,
            text TEXT NOT NULL,
            pairs TEXT NOT NULL
        ) STRICT;
        CREATE INDEX passages_by_document ON passages (document_id, page);
        CREATE VIRTUAL TABLE passages_words USING fts5 (
            text, heading, pairs, content='passages', content_rowid='id',
            tokenize='porter unicode61 remove_diacritics 2'
        );
        CREATE VIRTUAL TABLE passages_parts USING fts5 (
            text, content='passages', content_rowid='id', tokenize='trigram', detail='none'
        );
    """)


@library_migrations()
def m004_before_reading(db: Database) -> None:
    db.executescript("""
        CREATE TABLE document_files (
            document_id TEXT NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
            position INTEGER NOT NULL,
            path TEXT NOT NULL,
            size INTEGER NOT NULL,
            modified INTEGER NOT NULL,
            sha256 TEXT NOT NULL,
            extractor TEXT NOT NULL,
            first_page INTEGER NOT NULL,
            pages INTEGER NOT NULL,
            skipped TEXT NOT NULL,
            PRIMARY KEY (document_id, position)
        ) STRICT;
        CREATE INDEX files_by_content ON document_files (sha256, extractor);
        CREATE TABLE document_tokens (
            document_id TEXT NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
            tokenizer TEXT NOT NULL,
            counts BLOB NOT NULL,
            PRIMARY KEY (document_id, tokenizer)
        ) STRICT;
        CREATE TABLE reading_speeds (
            model TEXT NOT NULL,
            profile TEXT NOT NULL,
            first INTEGER NOT NULL,
            last INTEGER NOT NULL,
            seconds REAL NOT NULL,
            measured REAL NOT NULL
        ) STRICT;
        CREATE INDEX speeds_by_model ON reading_speeds (model, profile);
        CREATE TABLE document_versions (
            conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
            document_id TEXT NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
            newer_id TEXT NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
            state TEXT NOT NULL CHECK (state IN ('offered', 'updated', 'replaced')),
            PRIMARY KEY (conversation_id, document_id, newer_id)
        ) STRICT;
        CREATE TABLE index_waits (
            document_id TEXT PRIMARY KEY REFERENCES documents (id) ON DELETE CASCADE,
            next_page INTEGER NOT NULL
        ) STRICT;
        CREATE TABLE choices (
            conversation_id TEXT PRIMARY KEY REFERENCES conversations (id) ON DELETE CASCADE,
            choice TEXT NOT NULL
        ) STRICT;
    """)


@library_migrations()
def m005_unread_on_pages(db: Database) -> None:
    # how many pictures and formulas a page shows that its text does not hold; ocr: its text was recognised on a picture
    for column in ("pictures", "formulas", "ocr"):
        db.execute(f"ALTER TABLE pages ADD COLUMN {column} INTEGER NOT NULL DEFAULT 0")


@library_migrations()
def m006_scanned_files(db: Database) -> None:
    # how many pages of a file inside a folder or archive are pictures without text, where it was left out for that
    db.execute("ALTER TABLE document_files ADD COLUMN scanned INTEGER NOT NULL DEFAULT 0")


@library_migrations()
def m007_recognised_words(db: Database) -> None:
    # words of a page that was recognised on a picture, with their places on it
    db.execute("ALTER TABLE pages ADD COLUMN words TEXT NOT NULL DEFAULT ''")
