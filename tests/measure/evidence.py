"""Does the page that holds the needle draw most attention? Asked of the app: whole documents, its own page markers.

    python -m tests.measure.evidence --model FILE.gguf --text prose.txt [--set fresh] [--documents 8] [--kv-format bf16]

Each document has 10 to 14 pages of 200 to 300 tokens and six needles on pages of their own, each asked for in a
conversation of its own; the document is read once. Prints a line a question, and last the share of right answers and,
among these, how often the needle's page drew most of all pages (hits@1) and was among the three that did (hits@3), by
the whole answer and by the sentence that gives it.
"""

import argparse
import hashlib
import json
import tempfile
from pathlib import Path

from tests.measure.evidence_needles import SETS, Haystack, Needle, haystacks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--set", choices=SETS, default="fresh")
    parser.add_argument("--documents", type=int, default=8)
    parser.add_argument("--kv-format", default="bf16")
    parser.add_argument("--mode", default="exact")
    args = parser.parse_args()

    from app.settings import Settings
    from app.wiring import App

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            data_dir=Path(folder), model=args.model, max_answer_tokens=32, kv_format=args.kv_format, mode=args.mode
        )
        app = App.open(settings)
        for haystack in haystacks(args.text.read_text(), args.set, args.documents):
            document_id = add(app, haystack)
            for needle in haystack.needles:
                rows.append(ask(app, document_id, haystack, needle))
                print(json.dumps(rows[-1]), flush=True)
        app.close()
    right = [row for row in rows if row["right"]]
    hits = {f"hits@{n}": sum(row["rank"] <= n for row in right) / max(1, len(right)) for n in (1, 3)}
    hits |= {f"sentence hits@{n}": sum(row["sentence"] <= n for row in right) / max(1, len(right)) for n in (1, 3)}
    share = sum(row["share"] for row in right) / max(1, len(right))
    print(json.dumps({"prompts": len(rows), "right": len(right), **hits, "share of the needle's page": share}))


def add(app, haystack: Haystack) -> str:
    from storage import PageRow

    pages = [PageRow(number, "", text) for number, text in enumerate(haystack.pages, 1)]
    digest = hashlib.sha256("".join(haystack.pages).encode()).hexdigest()
    return app.library.add_document(digest, f"{haystack.name}.txt", "text", "measure", pages, 1).id


def ask(app, document_id: str, haystack: Haystack, needle: Needle) -> dict:
    """`rank` and `sentence`: the needle's page among all pages by share, 1 for the most; 99 where nothing was kept."""
    from app import assistant, conversations

    conversation = conversations.new(app)
    app.library.attach(conversation.id, document_id)
    state = assistant.ask(app, conversation.id, needle.question, reading="whole").wait(3600)
    if state.error is not None:
        raise SystemExit(f"{state.error.message} {state.error.hint}")
    rank, sentence, share = 99, 99, 0.0
    if state.evidence is not None:
        (look,) = state.evidence.documents
        share = look.shares[look.pages.index(needle.page)]
        rank = 1 + sum(other > share for other in look.shares)
        for found in state.evidence.sentences:
            pages = [page for _, page, _ in found.pages]
            if needle.expected in state.answer[found.start : found.end] and needle.page in pages:
                sentence = 1 + pages.index(needle.page)
    return {
        "document": haystack.name,
        "pages": len(haystack.pages),
        "page": needle.page,
        "prompt_tokens": state.stats.prompt_tokens,
        "right": needle.expected in state.answer,
        "rank": rank,
        "sentence": sentence,
        "share": round(share, 3),
        "answer": state.answer,
    }


if __name__ == "__main__":
    main()
