"""What reading takes, in a line above the question; the tree to choose from; what changed in folders.

The tree is nested <details> with check boxes whose `value` says what they stand for: "DOCUMENT:PAGES:TOKENS" for a
leaf, "DOCUMENT::AROUND" for a whole document. chooser.js adds them up; the server checks what comes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from app.before_reading import ReadingPlan
from app.before_reading.choice import Item, Source
from app.before_reading.estimate import Estimate
from app.changes import Changes
from app.changes.versions import MAP, UPDATE
from app.pages import PageChoice, format_pages
from app.units import format_size
from ui.render.html import button, duration, escape, hear, number, one_line, shorten
from ui.strings import count, text

MOST_ROWS = 1500
"""Rows of the tree; folders beyond that are one row each."""


def render_plan(plan: ReadingPlan | None, changes: Sequence[Changes] = ()) -> str:
    """The line with the estimate, and a notice for each folder that changed."""
    notices = "".join(map(_notice, changes))
    if plan is None:
        return one_line(notices)
    facts = [_share(plan), _estimate(plan.estimate), text("plan.memory", size=format_size(plan.estimate.memory_bytes))]
    if not plan.fits:
        facts.append(text("plan.over", count=number(plan.tokens - plan.room)))
    how = text("plan.measured") if plan.estimate.measured else text("plan.guess")
    shown = "".join(f'<span class="ub-fact">{escape(fact)}</span>' for fact in facts)
    level = "" if plan.fits else " ub-plan-over"
    return one_line(
        f'{notices}<div class="ub-plan{level}"><span class="ub-plan-facts" title="{escape(how)}">{shown}</span>'
        + button("choose-open", "", text("plan.choose"), "ub-small")
        + "</div>"
    )


def _share(plan: ReadingPlan) -> str:
    if plan.tokens == plan.all_tokens:
        return text("plan.all", count=number(plan.tokens))
    return text("plan.part", count=number(plan.tokens), total=number(plan.all_tokens))


def _estimate(estimate: Estimate) -> str:
    key = "plan.time" if estimate.measured else "plan.time_guess"
    return text(key, duration=duration(estimate.seconds))


def _notice(changes: Changes) -> str:
    buttons = []
    for way, estimate in (("append", changes.append), ("again", changes.again)):
        label = text(f"changes.{way}")
        if estimate is not None:
            label = text("changes.takes", what=label, duration=duration(estimate.seconds))
        buttons.append(button(f"changes-{way}", changes.document_id, label, "ub-quiet"))
    buttons.append(button("changes-leave", changes.document_id, text("changes.leave"), "ub-tool"))
    return (
        f'<div class="ub-changes" role="status"><p>{escape(changes.sentence())}</p>'
        f'<p class="ub-changes-what">{escape(text("changes.what"))}</p>'
        f'<div class="ub-changes-ways">{"".join(buttons)}</div></div>'
    )


@dataclass(slots=True)
class _Node:
    """A folder with `inside`, or a leaf with pages."""

    name: str
    pages: tuple[int, ...] = ()
    tokens: int = 0
    inside: dict[str, _Node] = field(default_factory=dict)
    shown: bool = False
    """Whether what is inside gets rows of its own."""


def render_chooser(plan: ReadingPlan) -> str:
    """The panel: what is chosen against what fits, proposals, the tree, and what to do with it."""
    trees = [(source, _tree(source, plan.choice)) for source in plan.sources]
    _show_within([tree for _, tree in trees], MOST_ROWS)
    documents = "".join(_document(source, tree, plan.choice) for source, tree in trees)
    head = text("choose.of", room=number(plan.room))
    return one_line(
        f'<section class="ub-chooser"><h3 class="ub-chooser-title" tabindex="-1">{escape(text("choose.title"))}</h3>'
        f'<p class="ub-chooser-sum" role="status"><b class="ub-chooser-count">{number(plan.tokens)}</b> {escape(head)}'
        f'<span class="ub-hear ub-chooser-room">{plan.room}</span>'
        f'<span class="ub-chooser-over">{escape(text("choose.over"))}</span></p>'
        f"{_proposals(plan)}"
        f'<ul class="ub-tree">{documents}</ul>'
        '<div class="ub-chooser-end">'
        + button("choose-these", "", text("choose.these"), "ub-primary")
        + button("choose-all", "", text("choose.all"), "ub-quiet")
        + button("choose-close", "", text("choose.close"), "ub-tool ub-escape")
        + "</div></section>"
    )


def _proposals(plan: ReadingPlan) -> str:
    rows = [
        f"<li><span>{escape(s.text)}</span>{button('choose-suggested', s.kind, text('choose.take'), 'ub-small')}</li>"
        for s in plan.suggestions
    ]
    mapped = {source.document.source for source in plan.sources if source.document.kind == MAP}
    for source in plan.sources:
        document = source.document
        if source.has_files and document.kind != UPDATE and document.id not in mapped:
            take = button("choose-map", document.id, text("choose.map_take"), "ub-small")
            what = text("choose.map", name=shorten(document.name, 40))
            rows.append(f"<li><span>{escape(what)}</span>{take}</li>")
    if not plan.fits:
        parts = button("choose-parts", "", text("choose.parts_take"), "ub-small")
        rows.append(f"<li><span>{escape(text('choose.parts'))}</span>{parts}</li>")
    return f'<ul class="ub-proposals">{"".join(rows)}</ul>' if rows else ""


def _tree(source: Source, choice: PageChoice | None) -> _Node:
    """Files under their folders; of a single file, and of a file that is chosen in part, the pages."""
    root = _Node(source.document.name, tokens=source.tokens - source.around)
    wanted = _wanted(source, choice)
    for item in source.items:
        place = root
        *folders, name = item.name.split("/") if source.has_files else [item.name]
        for folder in folders:
            place = place.inside.setdefault(f"{folder}/", _Node(f"{folder}/"))
            place.tokens += item.tokens
        leaf = place.inside[name] = _Node(name, item.pages, item.tokens)
        chosen = wanted.intersection(item.pages)
        if len(item.pages) > 1 and (not source.has_files or 0 < len(chosen) < len(item.pages)):
            leaf.inside = _pages_of(source, item)
    return root


def _pages_of(source: Source, item: Item) -> dict[str, _Node]:
    names = {page: text("turn.page", page=page) for page in item.pages}
    return {name: _Node(name, (page,), source.page_tokens[page - 1]) for page, name in names.items()}


def _wanted(source: Source, choice: PageChoice | None) -> set[int]:
    return set((choice or PageChoice()).pages(source.document.id, source.document.pages))


def _show_within(trees: Sequence[_Node], most: int) -> None:
    """Opens folders level by level while there is room for their rows."""
    level = list(trees)
    left = most - len(level)
    while level:
        following: list[_Node] = []
        for node in level:
            if node.inside and len(node.inside) <= left:
                node.shown = True
                left -= len(node.inside)
                following += node.inside.values()
        level = following


def _all_pages(node: _Node) -> Iterable[int]:
    if node.pages:
        yield from node.pages
    else:
        for child in node.inside.values():
            yield from _all_pages(child)


def _document(source: Source, tree: _Node, choice: PageChoice | None) -> str:
    wanted = _wanted(source, choice)
    everything = {page for item in source.items for page in item.pages}
    value = f"{source.document.id}::{source.around}"
    rows = "".join(_row(source.document.id, node, wanted) for node in tree.inside.values()) if tree.shown else ""
    if not rows:
        return f"<li>{_leaf(source.document.id, tree.name, sorted(everything), source.tokens, wanted)}</li>"
    box = _box(value, tree.name, everything <= wanted, "ub-pick-document")
    return _branch(box + _tokens(source.tokens), rows, is_open=True)


def _row(document_id: str, node: _Node, wanted: set[int]) -> str:
    pages = sorted(_all_pages(node))
    if not node.shown:
        return f"<li>{_leaf(document_id, node.name, pages, node.tokens, wanted)}</li>"
    chosen = wanted.issuperset(pages)
    part = not chosen and not wanted.isdisjoint(pages)
    rows = "".join(_row(document_id, child, wanted) for child in node.inside.values())
    return _branch(_box("", node.name, chosen, "ub-pick-branch") + _tokens(node.tokens), rows, is_open=part)


def _branch(head: str, rows: str, *, is_open: bool) -> str:
    state = " open" if is_open else ""
    return f'<li><details class="ub-branch"{state}><summary>{head}</summary><ul>{rows}</ul></details></li>'


def _leaf(document_id: str, name: str, pages: Sequence[int], tokens: int, wanted: set[int]) -> str:
    value = f"{document_id}:{format_pages(pages)}:{tokens}"
    inside = "" if not name.endswith("/") else text("choose.inside", count=count("doc.pages", len(pages)))
    return _box(value, name, wanted.issuperset(pages), "ub-pick-leaf", inside) + _tokens(tokens)


def _box(value: str, name: str, checked: bool, classes: str, more: str = "") -> str:
    note = f' <span class="ub-pick-more">{escape(more)}</span>' if more else ""
    return (
        f'<label class="ub-pick"><input type="checkbox" class="{classes}" value="{escape(value)}"'
        f'{" checked" if checked else ""}><span class="ub-pick-name" title="{escape(name)}">{escape(shorten(name, 80))}'
        f"</span>{note}</label>"
    )


def _tokens(tokens: int) -> str:
    return f'<span class="ub-pick-tokens">{number(tokens)}{hear(" " + text("choose.tokens"))}</span>'
