"""The page's components and which event calls what. `ui.screen` fills them, `ui.chat` does the work."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import gradio as gr

from ui.chat import Chat
from ui.parts import build_panel, list_from_file
from ui.screen import Updates
from ui.strings import text
from ui.viewer import look

PARTS = (
    "conversation", "follow", "action", "side", "top", "history", "live", "notice", "tray", "scans",
    "question", "reading", "pages", "send", "stop", "status", "many", "listed", "plan",
)  # fmt: skip


def _markup(elem_id: str) -> gr.Markdown:
    """A place for our own markup: sanitised, no LaTeX, see ui.render.html."""
    return gr.Markdown("", elem_id=elem_id, elem_classes="ub-markup", sanitize_html=True, latex_delimiters=[])


def build_page(chat: Chat) -> gr.Blocks:
    with gr.Blocks(title=text("app.name"), analytics_enabled=False, fill_width=True, fill_height=True) as page:
        parts: dict[str, Any] = {"conversation": gr.State(""), "follow": gr.State(0)}
        parts["action"] = gr.Textbox(
            elem_id="ub-action", visible="hidden", show_label=False, container=False, max_lines=1
        )
        edits = gr.Textbox(elem_id="ub-edits", visible="hidden", max_lines=1)
        with gr.Row(elem_id="ub-shell"):
            with gr.Column(elem_id="ub-side", scale=0, min_width=0):
                gr.Markdown(f"<div class='ub-brand'>{text('app.name')}</div>", elem_classes="ub-markup")
                new = gr.Button(text("side.new"), elem_id="ub-new")
                search = gr.Textbox(
                    label=text("side.search"), placeholder=text("side.search"), show_label=False, container=False,
                    elem_id="ub-search", max_lines=1,
                )  # fmt: skip
                parts["side"] = _markup("ub-conversations")
                theme = gr.Button(text("side.theme"), elem_id="ub-theme")
            with gr.Column(elem_id="ub-main", scale=1, min_width=0):
                parts["top"] = _markup("ub-top")
                with gr.Column(elem_id="ub-scroll"):
                    parts["history"] = _markup("ub-history")
                    parts["live"] = _markup("ub-live")
                with gr.Column(elem_id="ub-dock"):
                    parts["notice"] = _markup("ub-notice")
                    parts["tray"] = _markup("ub-tray")
                    parts["scans"] = _markup("ub-scans")
                    chooser = _markup("ub-choosing")
                    parts["plan"] = _markup("ub-plan")
                    panel = build_panel(parts)
                    attach, many = _composer(parts)
                    parts["status"] = _markup("ub-status")
            with gr.Column(elem_id="ub-viewer", scale=0, min_width=0):
                viewer = _markup("ub-view-place")
        leads = _wire(page, chat, parts, new, search, attach, edits)
        _wire_many(chat, parts, search, many, panel, leads)
        looks = gr.Textbox(elem_id="ub-look", visible="hidden", max_lines=1)
        looks.submit(
            lambda message: look(chat.backend, message)["viewer"], looks, viewer, trigger_mode="always_last",
            queue=False, show_progress="hidden", api_visibility="private",
        )  # fmt: skip
        _wire_chooser(chat, parts, chooser)
        del theme  # app.js acts on it
    return page


def _composer(parts: dict[str, Any]) -> tuple[gr.UploadButton, gr.Button]:
    with gr.Column(elem_id="ub-composer"):
        parts["question"] = gr.Textbox(
            label=text("ask.label"), placeholder=text("ask.placeholder"), show_label=False, container=False,
            lines=1, max_lines=8, elem_id="ub-question", autofocus=True,
        )  # fmt: skip
        with gr.Row(elem_id="ub-controls"):
            attach = gr.UploadButton(text("doc.attach"), file_count="multiple", elem_id="ub-attach", scale=0)
            parts["reading"] = gr.Radio(
                [(text(f"ask.{name}"), name) for name in ("passages", "whole", "parts")], value="passages",
                label=text("ask.reading"), show_label=False, container=False, elem_id="ub-reading",
            )  # fmt: skip
            parts["pages"] = gr.Textbox(
                label=text("ask.pages"), placeholder=text("ask.pages_placeholder"), show_label=False, container=False,
                max_lines=1, visible=False, elem_id="ub-pages",
            )  # fmt: skip
            many = gr.Button(text("many.open"), elem_id="ub-many-open", scale=0)
            parts["send"] = gr.Button(text("ask.send"), elem_id="ub-send", variant="primary", scale=0)
            parts["stop"] = gr.Button(text("ask.stop"), elem_id="ub-stop", visible=False, scale=0)
    return attach, many


def _wire(
    page: gr.Blocks,
    chat: Chat,
    parts: dict[str, Any],
    new: gr.Button,
    search: gr.Textbox,
    attach: gr.UploadButton,
    edits: gr.Textbox,
) -> tuple[Callable[..., Callable[..., dict[Any, Any]]], dict[str, Any]]:
    everything = [parts[name] for name in PARTS]
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    conversation = parts["conversation"]

    def update(updates: Updates) -> dict[Any, Any]:
        """Gradio wants components as keys, and takes an empty answer for "clear everything"."""
        return {parts["follow"]: gr.skip()} | {parts[name]: value for name, value in updates.items()}

    def named(function: Callable[..., Updates]) -> Callable[..., dict[Any, Any]]:
        return lambda *values: update(function(*values))

    async def watch(conversation_id: str, search_text: str) -> AsyncIterator[dict[Any, Any]]:
        yield update({})
        async for updates in chat.watch(conversation_id, search_text):
            yield update(updates)

    def load(request: gr.Request) -> dict[Any, Any]:
        return update(chat.load(request))

    watching = parts["follow"].change(
        watch, [conversation, search], everything, concurrency_limit=None, trigger_mode="multiple", **quiet
    )
    # Opening, asking and acting end the watching of before; their answer starts it anew.
    leads: dict[str, Any] = {**quiet, "outputs": everything, "cancels": [watching], "concurrency_limit": None}
    page.load(load, None, **{**leads, "cancels": None})
    new.click(named(lambda found: chat.open("", found)), [search], **leads)
    gr.on(
        [parts["question"].submit, parts["send"].click],
        named(chat.ask),
        [conversation, parts["question"], parts["reading"], parts["pages"], search],
        trigger_mode="once",
        **leads,
    )
    attach.upload(named(chat.add_files), [conversation, attach, search], trigger_mode="multiple", **leads)
    parts["action"].submit(
        named(chat.act), [parts["action"], conversation, parts["reading"], search], trigger_mode="multiple", **leads
    )
    listing: dict[str, Any] = {**quiet, "outputs": [parts[name] for name in ("follow", "side", "top", "notice")]}
    search.change(named(chat.search), [conversation, search], trigger_mode="always_last", **listing)
    edits.submit(named(chat.edit), [edits, conversation, search], trigger_mode="multiple", **listing)
    parts["stop"].click(chat.stop, [conversation], None, queue=False, **quiet)
    parts["reading"].change(
        lambda reading: gr.update(visible=reading != "passages"), parts["reading"], parts["pages"], queue=False, **quiet
    )
    return named, leads


def _wire_chooser(chat: Chat, parts: dict[str, Any], chooser: gr.Markdown) -> None:
    """Boxes and buttons of the chooser; a running answer goes on being shown."""
    box = gr.Textbox(elem_id="ub-choose", visible="hidden", max_lines=1)
    outputs = [chooser, *(parts[name] for name in ("plan", "tray", "status"))]
    box.submit(
        chat.choose, [box, parts["conversation"]], outputs, trigger_mode="multiple", concurrency_limit=None,
        show_progress="hidden", api_visibility="private",
    )  # fmt: skip


def _wire_many(
    chat: Chat,
    parts: dict[str, Any],
    search: gr.Textbox,
    many: gr.Button,
    panel: tuple[gr.UploadButton, gr.Button, gr.Button],
    wiring: tuple[Callable[..., Callable[..., dict[Any, Any]]], dict[str, Any]],
) -> None:
    """The panel for many questions at once."""
    named, leads = wiring
    take, send, close = panel
    quiet: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
    many.click(lambda: gr.update(visible=True), None, parts["many"], **quiet)
    close.click(lambda: gr.update(visible=False), None, parts["many"], **quiet)
    take.upload(list_from_file, take, parts["listed"], **quiet)
    send.click(
        named(chat.ask_many),
        [parts["conversation"], parts["listed"], parts["reading"], search],
        trigger_mode="once",
        **leads,
    )
