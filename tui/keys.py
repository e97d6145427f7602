"""The one table of keys. Bindings, footer, help screen and command palette are all made from it.

A key in this table is bound, is explained, and can be rebound by its id; no other key does anything. zellij may take ctrl+q
and a terminal's flow control ctrl+s, so each has an alternative.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Literal, cast

from textual.binding import Binding
from textual.keys import key_to_character

Where = Literal[
    "app",
    "home",
    "profiles",
    "runs",
    "history",
    "past",
    "compare",
    "run",
    "ranks",
    "table",
    "nodes",
    "chart",
    "log",
    "stacks",
    "check",
    "cells",
    "edit",
    "choice",
    "confirm",
    "leave",
    "notice",
    "ask",
    "help",
    "script",
    "list",
]

PLACES: dict[Where, str] = {
    "app": "Everywhere",
    "list": "In lists, tables and logs",
    "home": "Home",
    "profiles": "Home: on a profile",
    "runs": "Home: on a run",
    "history": "History",
    "past": "History: on a run",
    "compare": "A comparison",
    "run": "A run",
    "ranks": "A run: on a rank",
    "table": "A run: in the table of ranks",
    "nodes": "A run: by node",
    "chart": "A run: in the chart",
    "log": "A run: in the log",
    "stacks": "A run: its stacks",
    "check": "A check of the nodes",
    "cells": "A check of the nodes: in the grid",
    "edit": "New run, edit",
    "choice": "New run, edit: on a choice",
    "confirm": "A question",
    "leave": "A question: a form with changes",
    "notice": "A notice",
    "ask": "A text field",
    "help": "Help",
    "script": "A script",
}
"""The places in the order of the help screen, with its headings."""


@dataclass(frozen=True, slots=True)
class Key:
    """One line of the table.

    `id`: its place and its name. `keys`: comma-separated, as Textual names them; the footer shows the first. `label`: a word for the
    footer. `help`: a sentence for the help screen and the palette; it names another key as `{run.back}`. `footer`: False where the footer has no room for it.
    `command`: whether the palette offers it. `pinned`: the footer always shows it, at its end.
    """

    id: str
    keys: str
    action: str
    label: str
    help: str
    _: KW_ONLY
    footer: bool = True
    command: bool = True
    pinned: bool = False

    @property
    def where(self) -> Where:
        """Its place."""
        return cast("Where", self.id.partition(".")[0])

    @property
    def shown(self) -> str:
        """The keys as a user reads them."""
        return " ".join(key_name(key) for key in self.keys.split(","))

    @property
    def first(self) -> str:
        """The key that the footer shows."""
        return self.shown.split(" ", 1)[0]


HelpOnly = partial(Key, footer=False, command=False)
"""A key that only the help screen lists."""


def key_name(key: str) -> str:
    """A key as a user reads it, from Textual's name of it."""
    if _FUNCTION_KEY.fullmatch(key):
        return key.upper()
    sign = key_to_character(key)
    is_shown = sign is not None and sign.isprintable() and not sign.isspace()
    return _NAMES.get(key) or (sign if sign and is_shown else key.replace("ctrl+", "^"))


_FUNCTION_KEY = re.compile(r"f\d+")
_NAMED = re.compile(r"\{([a-z_.]+)\}")
_NAMES = {
    "slash": "/", "plus": "+", "minus": "-", "escape": "esc", "delete": "del", "pageup": "pgup", "pagedown": "pgdn", "upper_g": "G", "upper_n": "N", "upper_j": "J", "upper_k": "K",
}  # fmt: skip

KEYS: tuple[Key, ...] = (
    # --- everywhere ---------------------------------------------------------------------------------------------------
    Key("app.help", "question_mark,f1", "app.show_help", "help", "Show every key, sign and term.", pinned=True),
    Key("app.palette", "colon,ctrl+p", "app.command_palette", "commands", "Search the commands of this screen by name.", command=False),
    HelpOnly("app.next", "tab", "app.focus_next", "next pane", "Go to the next pane or field."),
    HelpOnly("app.previous", "shift+tab", "app.focus_previous", "previous pane", "Go to the previous pane or field."),
    HelpOnly("app.hint", "ctrl+c", "app.hint", "how to leave", "Copy the selected text; without a selection, show which key leaves. Ends nothing."),
    Key("app.leave", "ctrl+q", "app.leave", "leave", "Leave rankdeck from any screen. Runs keep running.", footer=False),
    HelpOnly("app.suspend", "ctrl+z", "app.suspend_process", "to the shell", "Suspend rankdeck; fg in the shell resumes it. Runs keep running."),
    # --- lists --------------------------------------------------------------------------------------------------------
    HelpOnly("list.up", "up,k", "cursor_up", "up", "One line up."),
    HelpOnly("list.down", "down,j", "cursor_down", "down", "One line down."),
    HelpOnly("list.page_up", "pageup", "page_up", "page up", "One page up."),
    HelpOnly("list.page_down", "pagedown,space", "page_down", "page down", "One page down."),
    HelpOnly("list.half_up", "ctrl+u", "half_page_up", "half a page up", "Half a page up."),
    HelpOnly("list.half_down", "ctrl+d", "half_page_down", "half a page down", "Half a page down."),
    HelpOnly("list.first", "home,g", "first", "first", "Go to the first line."),
    HelpOnly("list.last", "end,G", "last", "last", "Go to the last line; a log is followed again."),
    # --- home ---------------------------------------------------------------------------------------------------------
    Key("profiles.launch", "enter", "screen.launch", "launch", "Launch this profile and watch it.", command=False),
    Key("runs.attach", "enter", "screen.attach", "watch", "Watch this run, or look at one that has ended.", command=False),
    Key("home.new", "n", "new_profile", "new", "Create a profile: backend, nodes, recipe."),
    Key("home.edit", "e", "edit_profile", "edit", "Edit the selected profile, or that of the selected run. One that is not valid is opened in your editor ($VISUAL, $EDITOR)."),
    Key("home.duplicate", "d", "duplicate_profile", "duplicate",
        "Start a new profile from the selected one, or from what the selected run was launched with."),
    Key("home.check", "c", "check_profile", "check", "Check every node for problems that would otherwise appear after launch; launches nothing."),
    Key("home.filter", "slash", "filter", "filter", "Show only profiles and runs that contain a text; {home.back} shows all again."),
    Key("home.history", "H", "history", "history", "Show all runs that are kept, to sort, compare, annotate and delete."),
    Key("home.import", "i", "import_command", "import", "Make a profile of a command of torchrun, mpirun, srun or others, or of an sbatch file. A command that is pasted does so without this key."),
    Key("home.change", "ctrl+r", "change_run", "change", "Launch the selected run again with a change: what it was launched with, as a form."),
    HelpOnly("home.profiles", "left,h", "list('profiles')", "profiles", "Go to the profiles."),
    HelpOnly("home.runs", "right,l", "list('runs')", "runs", "Go to the runs."),
    HelpOnly("home.scroll_up", "shift+up,K", "scroll_plan(-3)", "plan up", "Scroll the plan up."),
    HelpOnly("home.scroll_down", "shift+down,J", "scroll_plan(3)", "plan down", "Scroll the plan down."),
    Key("home.back", "escape", "clear_filter", "all", "Clear the filter.", command=False),
    Key("home.quit", "q", "app.leave", "quit", "Leave rankdeck. Runs keep running.", command=False, pinned=True),
    # --- the history --------------------------------------------------------------------------------------------------
    Key("past.watch", "enter", "screen.watch", "watch", "Watch this run, or look at one that has ended.", command=False),
    Key("past.mark", "space", "screen.mark", "mark", "Mark this run, or remove its mark."),
    Key("past.compare", "c", "screen.compare", "compare", "Compare the marked runs; a single one with the run of its profile before it."),
    Key("history.sort", "s", "sort", "sort", "Sort by the next column or metric."),
    Key("past.again", "r", "screen.launch_again", "again", "Launch this run once more, as it was."),
    Key("past.change", "ctrl+r", "screen.change_run", "change", "Launch this run with a change: what it was launched with, as a form."),
    Key("past.arguments", "A", "screen.change_arguments", "arguments", "Launch this run with other arguments."),
    Key("history.filter", "slash", "filter", "filter", "Show only runs that contain all words, and no word after a !."),
    Key("past.star", "asterisk", "screen.star", "star", "Star this run, or not; commands that remove old runs keep starred ones."),
    Key("past.note", "n", "screen.note", "note", "Write a note about this run."),
    Key("past.remove", "x,delete", "screen.remove", "delete", "Delete the marked runs, or this one, with logs and checkpoints; asks first."),
    Key("history.reverse", "S", "reverse", "reverse", "Sort the other way round.", footer=False),
    Key("history.clear", "escape", "clear", "all", "Clear the filter and all marks.", command=False),
    Key("history.close", "q", "close", "close", "Go back.", command=False, pinned=True),
    Key("compare.metric", "m,right,l", "next_metric(1)", "next metric", "Draw the curves of the next metric."),
    HelpOnly("compare.metric_back", "M,left,h", "next_metric(-1)", "previous metric", "Draw the curves of the previous metric."),
    Key("compare.choose", "p", "choose_metric", "choose metric", "Choose a metric by a part of its name."),
    Key("compare.code", "d", "code", "code", "Show how uncommitted changes of the code differ, or the table again."),
    Key("compare.whole", "z", "whole", "zoom", "Show only the curves, only the table, or both again."),
    Key("compare.close", "escape,q", "close", "close", "Go back.", command=False, pinned=True),
    # --- a run --------------------------------------------------------------------------------------------------------
    Key("ranks.log", "enter", "screen.open_log", "log",
        "Show the log of this rank on the whole screen; {run.back} shows the other panes again.", command=False),
    Key("nodes.measure", "m", "measure", "measure",
        "Choose what cell height shows: throughput, loss, steps behind the furthest rank, or GPU memory.", command=False),
    HelpOnly("nodes.left", "left,h", "sideways(-1)", "previous rank", "Go to the previous rank."),
    HelpOnly("nodes.right", "right,l", "sideways(1)", "next rank", "Go to the next rank."),
    Key("run.by_node", "v", "by_node", "nodes", "Show the ranks as cells in boxes, one box for each node; again: the table."),
    Key("run.restart", "r", "restart", "restart",
        "Dead ranks rejoin where the script supports it; otherwise all ranks start again. Shows which, and asks first."),
    Key("run.kill", "x", "kill", "kill", "Send SIGKILL to the selected rank; asks first."),
    Key("run.stop", "s", "stop", "stop", "Stop the run by its stop ladder; if it is stopping already, end it at once. Asks first."),
    Key("run.stacks", "t", "stacks", "stacks", "Show who waits for whom in collectives, and where every rank is in its Python code; ends nothing."),
    Key("run.editor", "E", "editor", "edit script", "Open the script in your editor ($VISUAL, $EDITOR), at the line where the traceback ends, or where ranks hang.", footer=False),
    Key("run.change", "ctrl+r", "change_run", "change", "Launch this run again with a change: what it was launched with, as a form.", footer=False),
    Key("run.arguments", "A", "change_arguments", "arguments", "Launch this run again with other arguments.", footer=False),
    Key("run.compare", "C", "compare", "compare", "Compare this run with the run of its profile before it.", footer=False),
    Key("run.ranks", "1", "pane('ranks')", "ranks", "Go to the rank table."),
    Key("run.bench", "6", "pane('bench')", "results",
        "Show the measured collectives as a table and as curves over size; runs of the recipe allreduce have them."),
    Key("run.curves", "c", "next_curves", "curves",
        "Draw latency, bus bandwidth or algorithm bandwidth of the results; on a narrow screen, or their table."),
    Key("run.chart", "2", "pane('chart')", "chart", "Show the curves of loss and throughput."),
    Key("run.log", "3", "pane('log')", "log", "Show the log."),
    Key("run.events", "4", "pane('events')", "events", "Show the events of the run: attempts, failures, restarts."),
    Key("run.why", "5", "pane('why')", "why", "Go to the explanation of the failure; again: show it on the whole screen."),
    Key("run.all", "a", "all_ranks", "all ranks", "Show the logs of the ranks of a node as one, of all ranks, or of the selected rank again; in the order in which lines were written."),
    Key("run.stream", "o", "other_stream", "out/err", "Show stdout only, stderr only, or both again.", footer=False),
    Key("run.search", "slash", "search", "search",
        "Search the log for a regular expression; case counts if it has capitals. In the table of ranks: show only ranks that match words, such as failed gpu01 8-15 !running."),
    Key("run.filter_log", "ampersand", "filter_log", "filter", "Show only lines of the log that match a regular expression, or hide them with a ! before it; & between several.", command=False),
    Key("run.next", "n", "next_match", "next", "Go to the next match; after the last, to the first."),
    Key("run.previous", "N", "previous_match", "previous", "Go to the previous match.", footer=False),
    Key("run.follow", "f", "follow", "follow", "Follow the end of the log, or stop following."),
    Key("table.trouble", "e", "next_trouble", "next failed", "Go to the next rank that has failed, hangs or lags.", command=False),
    Key("table.order", "O", "next_order", "order", "Sort the ranks: by rank, failed first, slowest first. A click on a heading sorts by it.", command=False),
    Key("table.window", "w", "window", "window", "Draw the small curves over the whole run, the last ten minutes or the last minute.", command=False, footer=False),
    Key("table.columns", "vertical_line", "columns", "columns", "Choose which columns the table shows.", command=False, footer=False),
    HelpOnly("table.own", "W", "own_scale", "own scale", "Draw each small curve on a scale of its own, or all on one scale."),
    HelpOnly("table.right", "greater_than_sign", "sort_column(1)", "next column", "Sort by the next column."),
    HelpOnly("table.left", "less_than_sign", "sort_column(-1)", "previous column", "Sort by the previous column."),
    HelpOnly("table.reverse", "R", "reverse", "reverse", "Reverse the order."),
    Key("run.back", "escape", "back", "back",
        "Go one step back: out of the search, then out of the full-screen pane, then to the table.", command=False),
    Key("run.detach", "q", "detach", "detach", "Leave this run; it keeps running.", pinned=True),
    Key("chart.next", "m", "metrics(1)", "metrics", "Draw the next metrics: everything that the script logs.", command=False),
    HelpOnly("chart.previous", "M", "metrics(-1)", "previous metrics", "Draw the previous metrics."),
    Key("chart.choose", "p", "choose", "choose metric", "Choose a metric by a part of its name.", command=False),
    Key("chart.panels", "P", "panels", "panels", "Draw one, two, four or six metrics at once.", command=False),
    Key("chart.log", "y", "log", "log scale", "Draw values on a logarithmic axis, or on a linear one.", command=False),
    Key("chart.time", "b", "by_time", "by time", "Draw over time, or over steps.", command=False),
    Key("chart.smooth", "u", "smooth", "smooth", "Smooth the curves: 0.6, 0.9, not at all.", command=False),
    Key("chart.zoom", "plus,equals_sign", "zoom(1)", "zoom", "Zoom in: draw half of the range.", command=False),
    HelpOnly("chart.wider", "minus", "zoom(-1)", "wider", "Zoom out: draw twice the range."),
    HelpOnly("chart.whole", "0", "zoom(0)", "whole run", "Draw the whole run."),
    HelpOnly("chart.left", "left,h", "pan(-1)", "earlier", "Move to an earlier part."),
    HelpOnly("chart.right", "right,l", "pan(1)", "later", "Move to a later part."),
    Key("chart.save", "S", "screen.save_chart", "save", "Save the first of the charts as an SVG file.", command=False),
    Key("log.errors", "e", "errors", "errors", "Go to the first error or traceback; {run.next} and {run.previous} go on from there.", command=False),
    Key("log.levels", "L", "levels", "levels", "Show only warnings and errors, only errors, or all lines.", command=False),
    Key("log.fold", "z", "screen.fold", "fold", "Show lines that several ranks have printed alike once, with how many ranks it were, or all of them.", command=False),
    Key("log.save", "S", "screen.save_log", "save", "Save what is selected, or what the filter lets through, to a file.", command=False),
    Key("log.pager", "p", "screen.log_pager", "pager", "Open what this rank has written in your pager ($PAGER, else less).", command=False),
    Key("log.editor", "P", "screen.log_editor", "editor", "Open what this rank has written in your editor ($VISUAL, $EDITOR).", command=False),
    Key("log.attempt", "left_square_bracket", "screen.attempt(-1)", "attempt before", "Show the log of the attempt before.", command=False),
    HelpOnly("log.next_attempt", "right_square_bracket", "screen.attempt(1)", "next attempt", "Show the log of the next attempt."),
    Key("log.wrap", "w", "toggle_wrap", "wrap", "Wrap long lines, or cut them.", command=False),
    Key("log.copy", "y", "copy", "copy", "Copy what is selected, or the lines in view, to the terminal's clipboard.", command=False),
    HelpOnly("log.left", "left,h", "sideways(-1)", "left", "Scroll to the left."),
    HelpOnly("log.right", "right,l", "sideways(1)", "right", "Scroll to the right."),
    Key("stacks.again", "r,t", "again", "again", "Take new stacks.", command=False),
    Key("stacks.close", "escape,q", "close", "close", "Go back to the run.", command=False, pinned=True),
    # --- a check -----------------------------------------------------------------------------------------------------
    Key("check.next", "n", "next_problem", "next problem", "Go to the next failure or warning."),
    Key("check.again", "r", "again", "again", "Run the check again.", command=False),
    Key("check.close", "escape,q", "close", "close", "Go back; checks that are still running are cancelled.", command=False, pinned=True),
    HelpOnly("cells.left", "left,h", "sideways(-1)", "previous check", "Go to the previous check."),
    HelpOnly("cells.right", "right,l", "sideways(1)", "next check", "Go to the next check."),
    # --- new run, edit ------------------------------------------------------------------------------------------------
    Key("edit.launch", "f5", "launch", "launch", "Launch the profile in the form, saved or not."),
    Key("edit.save", "ctrl+s,f3", "save", "save", "Save the profile; a shipped one is saved as your own."),
    Key("edit.save_as", "f4", "save_as", "save as", "Save the profile as another file."),
    Key("edit.plan", "f2", "plan", "plan", "Show the plan on the whole screen, or the form again."),
    Key("edit.script", "f6", "script", "script", "Read the script of the recipe.", footer=False),
    Key("edit.choose_script", "f7", "choose_script", "choose file", "Choose a script of yours: one of the Python files in the working directory and below it.", footer=False),
    Key("edit.choose_partition", "f8", "choose_partition", "partition", "Choose a partition of Slurm by what is free there. The profile then submits a job.", footer=False),
    Key("edit.back", "escape", "back", "back", "Go back; asks first if there are unsaved changes.", pinned=True),
    HelpOnly("edit.up", "up", "app.focus_previous", "line above", "Go to the line above."),
    HelpOnly("edit.down", "down,enter", "app.focus_next", "line below", "Go to the line below."),
    HelpOnly("choice.next", "right,l,space", "choose(1)", "next choice", "Choose the next one."),
    HelpOnly("choice.previous", "left,h", "choose(-1)", "previous choice", "Choose the previous one."),
    # --- a question ---------------------------------------------------------------------------------------------------
    Key("confirm.yes", "y", "answer(True)", "yes", "Do it.", command=False),
    Key("confirm.no", "n,escape,q", "answer(False)", "no", "Do nothing.", command=False),
    HelpOnly("confirm.next", "right,l", "move(1)", "next answer", "Go to the next answer; enter confirms it. The first answer changes nothing."),
    HelpOnly("confirm.previous", "left,h", "move(-1)", "previous answer", "Go to the previous answer."),
    Key("leave.save", "s", "answer(None)", "save and leave", "Save the profile, then leave the form.", command=False),
    Key("notice.close", "escape,q", "close", "close", "Go back.", command=False),
    Key("ask.close", "escape", "close", "cancel", "Go back; nothing is changed.", command=False),
    # --- help ---------------------------------------------------------------------------------------------------------
    Key("script.close", "escape,q,f6", "close", "close", "Go back.", command=False, pinned=True),
    Key("help.search", "slash", "search", "search", "Show only the lines that contain a text.", command=False),
    Key("help.close", "escape,q,question_mark,f1", "close", "close", "Go back.", command=False, pinned=True),
)  # fmt: skip


FOOTER_FIRST: dict[Where, tuple[str, ...]] = {
    "table": (
        "ranks.log", "run.search", "run.why", "run.restart", "run.by_node", "run.stacks", "run.log", "run.stop", "run.bench", "run.curves", "run.kill",
        "run.chart", "run.events",
    ),
    "log": (
        "run.search", "run.filter_log", "run.next", "log.errors", "run.why", "run.restart", "run.all", "run.follow", "log.fold", "log.levels",
    ),
}  # fmt: skip
"""What the footer shows first while the keyboard is in one place; the other keys follow in the order of the table."""

CHANGING = frozenset({
    "launch", "launch_again", "change_run", "change_arguments", "restart", "kill", "stop", "editor", "save", "save_as", "remove", "star",
    "log_editor", "note", "new_profile", "import_command", "edit_profile", "duplicate_profile",
})  # fmt: skip
"""Actions that start, change or end something, or lead to that: an app that only watches has none of them."""


def changes_something(action: str) -> bool:
    """Whether an action, as a binding names it (`screen.launch`, `pane('log')`), is one of `CHANGING`."""
    return action.partition("(")[0].rpartition(".")[2] in CHANGING


def rebound(key: Key, keymap: Mapping[str, str]) -> Key:
    """A line of the table with the keys that the user has given it and those that its help names. `keymap`: keys by id."""
    named = _NAMED.sub(lambda found: first_key(found[1], keymap), key.help)
    return replace(key, keys=keymap.get(key.id, key.keys), help=named)


def first_key(id: str, keymap: Mapping[str, str]) -> str:
    """The key of one id, as a user reads it, for sentences that name a key."""
    return rebound(next(key for key in KEYS if key.id == id), keymap).first


def keys_of(where: Where, keymap: Mapping[str, str] = MappingProxyType({})) -> tuple[Key, ...]:
    """The keys of one place; see `rebound`."""
    return tuple(rebound(key, keymap) for key in KEYS if key.where == where)


def bindings(where: Where) -> list[Binding]:
    """The keys of one place, as Textual binds them."""
    return [
        Binding(
            key.keys,
            key.action,
            key.label,
            show=key.footer,
            key_display=key.first,
            tooltip=key.help,
            id=key.id,
        )
        for key in keys_of(where)
    ]
