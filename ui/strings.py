"""Every sentence and label of the page, in one table. A missing key is an error."""

from __future__ import annotations

from typing import Any

TEXTS: dict[str, str] = {
    "app.name": "Unabridged",
    "guard.misdirected": "This address is not served here.",
    "guard.no_token": (
        "Unabridged is running, but this browser has not been let in yet.\n"
        "Open the full address that Unabridged printed when it started; it ends in ?token=..."
    ),
    "guard.too_large": "This upload is larger than the limit of {megabytes} MB.",
    "launch.loopback_only": "Unabridged only serves this computer, so {host} is refused.",
    "launch.loopback_hint": "Use 127.0.0.1, and reach it from elsewhere through an SSH tunnel.",
    "launch.port_taken": "Port {port} is in use by another program.",
    "launch.port_hint": "Choose another with --port, or leave it out and a free one is taken.",
    "launch.failed": "The page could not be started.",
    "launch.failed_hint": "Start again with --debug to see why.",
    # sidebar
    "side.new": "New conversation",
    "side.search": "Search conversations",
    "side.empty": "Conversations appear here.",
    "side.no_match": "No conversation matches “{search}”.",
    "side.untitled": "New conversation",
    "side.current": "(open now)",
    "side.rename": "Rename “{title}”",
    "side.delete": "Delete “{title}”",
    "side.delete_ask": "Delete this conversation? Documents that no other one uses go with it.",
    "side.delete_yes": "Delete",
    "side.delete_no": "Keep",
    "side.rename_label": "New title",
    "side.save": "Save",
    "side.cancel": "Cancel",
    "side.theme": "Light or dark",
    "side.list": "Conversations",
    "side.open_menu": "Show or hide conversations",
    "group.pinned": "Pinned",
    "group.today": "Today",
    "group.yesterday": "Yesterday",
    "group.week": "Previous 7 days",
    "group.older": "Earlier",
    # documents
    "doc.attach": "Add documents",
    "doc.pages.one": "1 page",
    "doc.pages.many": "{count} pages",
    "doc.tokens": "{count} tokens",
    "doc.waiting": "waiting",
    "doc.extracting": "reading page {done} of {total}",
    "doc.opening": "opening",
    "doc.remove": "Remove {name} from this conversation, and for good if no other one uses it",
    "doc.dismiss": "Dismiss the note about {name}",
    "doc.cancel": "Stop adding {name}",
    "doc.password": "Password for {name}",
    "doc.password_placeholder": "Password",
    "doc.unlock": "Unlock",
    "doc.tray": "Documents in this conversation",
    "doc.unread": "no usable text on {count} of {total} pages",
    "doc.in_use": "A question about this document is being answered.",
    "doc.in_use_hint": "Stop the answer first, then remove the document.",
    # composer
    "ask.placeholder": "Ask about your documents",
    "ask.label": "Question",
    "ask.send": "Send",
    "ask.stop": "Stop",
    "ask.reading": "Answer from",
    "ask.passages": "Best passages",
    "ask.whole": "Whole document",
    "ask.pages": "Pages to read, such as 1-12 (empty: all)",
    "ask.pages_placeholder": "all pages",
    "ask.busy": "An answer is still being written. Stop it, or wait for it, then send.",
    "ask.still_reading": "A document is still being read. Ask when it is ready; your question stays here.",
    # turn
    "turn.you": "You",
    "turn.app": "Unabridged",
    "turn.queued": "Waiting for the engine",
    "turn.queued_behind": "Waiting: {count} before this one",
    "turn.loading": "Loading the model",
    "turn.reading": "Reading",
    "turn.reading_count": "{done} of {total} tokens",
    "turn.eta": "about {duration} left",
    "turn.answering": "Writing",
    "turn.stopped": "Stopped. What was written so far is kept.",
    "turn.interrupted": "This answer was interrupted before it was finished.",
    "turn.thinking": "Thinking",
    "turn.cut": "The answer reached its length limit.",
    "turn.passages.one": "Best passage",
    "turn.passages.many": "{count} best passages",
    "turn.passages.more": "{count} more",
    "turn.page": "page {page}",
    "turn.page_label": "page {page} (printed {label})",
    "turn.sources": "Sources",
    "turn.attributed": "found by the app, not by the model",
    "turn.status.attributed": "matches the answer",
    "turn.status.verified": "quote found on this page",
    "turn.status.near": "similar text on this page",
    "turn.status.not_found": "quote not found",
    "turn.again": "Answer again",
    # where the model looked
    "look.title": "Where the model looked: most at {page}",
    "look.title_open": "Where the model looked",
    "look.note": "Share of its attention to the pages while it wrote. It shows where, not why.",
    "look.page": "{page}: {share} %",
    "look.run": "pages {first} to {last}: {share} %, most on page {page}",
    "look.sentence": "This sentence:",
    "turn.whole": "Answer from the whole document",
    "turn.copy": "Copy",
    "turn.image": "[image: {alt}]",
    "turn.image_plain": "[image]",
    "turn.log": "Messages",
    # errors
    "fit.pages": "Read only these pages",
    "fit.pages_placeholder": "1-12",
    "fit.read_pages": "Read these pages",
    "fit.passages": "Answer from the best passages",
    # empty state
    "empty.reading": "Your document is being read. You can write your question now.",
    "empty.ready": "Ask anything about it. Answers show the pages they come from.",
    "empty.title": "Chat with whole documents",
    "empty.lead": (
        "Drop a PDF, a text or Markdown file, or source code. Unabridged shows the passages that fit your question "
        "with their pages, then answers. Everything stays on this computer."
    ),
    "empty.sample": "Try the sample document",
    "empty.sample_lead": "A short PDF and three questions to ask it:",
    # status line
    "status.demo": "demo model: 135M, English, often wrong",
    "status.demo_name": "SmolLM2-135M-Instruct",
    "status.profile": "{profile} profile",
    "status.reused": "re-used {reused} of {total} tokens",
    "status.ttft": "first token {seconds} s",
    "status.speed": "{speed} tokens/s",
    "status.context": "Context",
    "status.context_of": "{used} of {total} tokens",
    "status.context_over": "{used} of {total} tokens: too long",
}


def text(key: str, **values: Any) -> str:
    """The entry named key with its braces filled. Values are plain text; escaping is the renderer's work."""
    return TEXTS[key].format(**values)


def count(key: str, number: int) -> str:
    """`key.one` for 1, else `key.many` with {count}."""
    return text(f"{key}.one") if number == 1 else text(f"{key}.many", count=f"{number:,}")
