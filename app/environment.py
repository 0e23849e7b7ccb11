"""Cleans the environment before libraries that read it are imported: nothing is shared, counted or fetched unasked."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

# Each of these can make Gradio listen, share or serve more than this app asks for.
_DANGEROUS = (
    "GRADIO_SHARE",
    "GRADIO_SHARE_SERVER_ADDRESS",
    "GRADIO_VIBE_MODE",
    "GRADIO_MCP_SERVER",
    "GRADIO_ALLOWED_PATHS",
    "GRADIO_SERVER_NAME",
    "GRADIO_SERVER_PORT",
    "GRADIO_ROOT_PATH",
    "GRADIO_NODE_SERVER_NAME",
    "GRADIO_SSR_MODE",
    "GRADIO_HOT_RELOAD",
    "GRADIO_WATCH_DIRS",
    "GRADIO_RELOAD_FUNCTION",
    "GRADIO_DEBUG",
)


def clean(environment: MutableMapping[str, str] = os.environ, *, hub: bool = False) -> None:
    """Call first. hub: this process may talk to a model hub (`models get` only); elsewhere the hub is switched off."""
    for name in _DANGEROUS:
        environment.pop(name, None)
    environment["GRADIO_ANALYTICS_ENABLED"] = "False"
    environment["HF_HUB_DISABLE_TELEMETRY"] = "1"
    environment["TOKENIZERS_PARALLELISM"] = "true"  # tokens of whole folders are counted on all cores
    if not hub:
        environment["HF_HUB_OFFLINE"] = "1"
