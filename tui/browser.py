"""The driver of the app in a browser, for `rankdeck serve`."""

from textual.drivers.web_driver import WebDriver

from tui.driver import leave_at_once


class BrowserDriver(WebDriver):
    """Leaves when the connection to the browser ends, as in a terminal that closes. Textual 8.2.8 would go on without input."""

    def run_input_thread(self) -> None:
        super().run_input_thread()
        if not self.exit_event.is_set():
            leave_at_once()
