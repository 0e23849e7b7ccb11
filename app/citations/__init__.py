"""Where an answer stands in the documents: quotes and named pages checked against the text, every other sentence
attributed by the words that it shares with a page.

`attribute` (a whole answer), `verify` (one quote), `recheck` (one that was not found, among more pages). The main path:
attribution -> claims (what the answer names), quotes -> near (what it quotes), support (what it says in its own words).
"""

from app.citations.attribution import attribute, recheck, verify
from app.citations.citation import Citation, Status
from app.citations.index import PageSource

__all__ = ["Citation", "PageSource", "Status", "attribute", "recheck", "verify"]
