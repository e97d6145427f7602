"""Blocking calls off the event loop, in threads that can't keep the app from leaving. asyncio's own executor is waited for when the loop
ends, so one read on a file server that hangs would leave a user in front of an app that does not go away."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def off_loop(function: Callable[..., Result], *arguments: object) -> Result:
    """Waits for a function that may block, in a thread of its own. If the wait is cancelled, the result is dropped."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: Exception | None) -> None:
        if answer.cancelled():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]

    def call() -> None:
        result, problem = None, None
        try:
            result = function(*arguments)
        except Exception as error:  # noqa: BLE001  carried to whoever waits
            problem = error
        # The loop may have ended meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, problem)

    threading.Thread(target=call, name=f"off-loop {getattr(function, '__name__', '')}", daemon=True).start()
    return await answer
