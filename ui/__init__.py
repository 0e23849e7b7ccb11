"""The page in the browser: screens and events only. `launch` serves it for an open App.

Main path: `ui.chat -> app.assistant.ask`. No torch and no SQL here; whatever the page needs of the app goes through
`ui.backend.Backend`.
"""

from ui.server import RunningUI, launch, serve

__all__ = ["RunningUI", "launch", "serve"]
