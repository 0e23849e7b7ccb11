"""Natural questions on real PDFs through the command line: right page among the first passages, right answer?

    python tests/measure/questions.py --folder DIR_WITH_PDFS [--whole] [--set questions.toml] [--keep replies.jsonl]

Prints one line a question and the totals. An answer is right when it matches the question's expression; look at the
printed answers too, an expression can be fooled. A page counts as cited when any of the answer's citations names it;
"cited first" counts only the first one, and the last total says how many of all citations name a right page.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--set", type=Path, default=Path(__file__).with_name("questions.toml"))
    parser.add_argument(
        "--whole", action="store_true", help="ask about the whole document; those that do not fit are counted as such"
    )
    parser.add_argument("--parts", action="store_true", help="ask each part of the document in turn")
    parser.add_argument("--model", default=None)
    parser.add_argument("--keep", type=Path, help="write each reply with its question to this file, one JSON a line")
    args = parser.parse_args()
    total = hits = right = cited = first = refused = 0
    citations = good_citations = 0
    kept: list[str] = []
    with tempfile.TemporaryDirectory() as data:
        for document in tomllib.loads(args.set.read_text())["document"]:
            questions = document["question"]
            command = [
                sys.executable,
                "-m",
                "app.cli",
                "--data-dir",
                data,
                "ask",
                str(args.folder / document["file"]),
                "--json",
            ]
            command += ["--model", args.model] if args.model else []
            command += ["--whole"] if args.whole else ["--parts"] if args.parts else []
            for question in questions:
                command += ["-q", question["text"]]
            done = subprocess.run(command, capture_output=True, text=True)
            total += len(questions)
            if done.returncode == 3:
                refused += len(questions)
                print(f"-- {document['file']}: does not fit: {done.stderr.strip()}")
                continue
            if done.returncode:
                raise SystemExit(done.stderr)
            for question, line in zip(questions, done.stdout.strip().splitlines(), strict=True):
                reply = json.loads(line)
                pages = [passage["page"] for passage in reply["passages"][:3]]
                hit = bool(set(pages) & set(question["pages"]))
                good = bool(re.search(question["answer"], reply["answer"], re.IGNORECASE | re.DOTALL))
                named = [citation["page"] in question["pages"] for citation in reply["citations"]]
                source = any(named)
                hits, right, cited, first = hits + hit, right + good, cited + source, first + any(named[:1])
                citations, good_citations = citations + len(named), good_citations + sum(named)
                kept.append(json.dumps({"file": document["file"], "wanted": question["pages"]} | reply))
                marks = f"{'page' if hit else '----'} {'right' if good else '-----'} {'cited' if source else '-----'}"
                print(
                    f"{marks} | {question['text']} | want {question['pages']} got {pages}"
                    f" cited {[citation['page'] for citation in reply['citations']]}",
                    flush=True,
                )
                print(f"      {reply['answer'].strip()[:200]!r}", flush=True)
    print(f"right page in the first three passages {hits}/{total}; answer right {right}/{total}")
    print(f"right page cited {cited}/{total}, cited first {first}/{total}; refused {refused}")
    print(f"citations that name a right page {good_citations}/{citations}")
    if args.keep:
        args.keep.write_text("".join(f"{line}\n" for line in kept))


if __name__ == "__main__":
    main()
