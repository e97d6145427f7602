"""The one table of keys. Bindings, footer, help screen and command palette are all made from it.

A key in this table is bound, is explained, and can be rebound by its id; no other key does anything. zellij may take ctrl+q
and a terminal's flow control ctrl+s, so each has an alternative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from textual.binding import Binding

Where = Literal[
    "everywhere",
    "home",
    "profiles",
    "runs",
    "run",
    "ranks",
    "nodes",
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
    "list",
]

PLACES: dict[Where, str] = {
    "everywhere": "Everywhere",
    "list": "In lists, tables and logs",
    "home": "Home",
    "profiles": "Home: on a profile",
    "runs": "Home: on a run",
    "run": "A run",
    "ranks": "A run: on a rank",
    "nodes": "A run: by node",
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
}
"""The places in the order of the help screen, with its headings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One line of the table.

    `keys`: comma-separated, as Textual names them; the footer shows the first. `label`: a word for the footer. `help`: a
    sentence for the help screen and the palette. `footer`: False where the footer has no room for it.
    `command`: whether the palette offers it. `destructive`: it ends something, and asks before it does. `pinned`: the
    footer always shows it, at its end.
    """

    id: str
    keys: str
    action: str
    label: str
    where: Where
    help: str
    footer: bool = True
    command: bool = True
    destructive: bool = False
    pinned: bool = False

    @property
    def shown(self) -> str:
        """The keys as a user reads them."""
        return " ".join(key_name(key) for key in self.keys.split(","))

    @property
    def first(self) -> str:
        """The key that the footer shows."""
        return self.shown.split(" ", 1)[0]


def key_name(key: str) -> str:
    """A key as a user reads it.

    Args:
        key: as Textual names it.
    """
    return _NAMES.get(key, key.replace("ctrl+", "^"))


_NAMES = {
    "question_mark": "?", "colon": ":", "slash": "/", "enter": "enter", "escape": "esc", "pageup": "pgup",
    "pagedown": "pgdn", "f1": "F1", "f2": "F2", "f3": "F3", "f4": "F4", "f5": "F5", "upper_g": "G", "upper_n": "N", "upper_j": "J", "upper_k": "K",
}  # fmt: skip

KEYS: tuple[Key, ...] = (
    # --- everywhere ---------------------------------------------------------------------------------------------------
    Key(id="app.help", keys="question_mark,f1", action="app.show_help", label="help", where="everywhere",
        help="Show every key, sign and term.", pinned=True),
    Key(id="app.palette", keys="colon,ctrl+p", action="app.command_palette", label="commands", where="everywhere",
        help="Search the commands of this screen by name.", command=False),
    Key(id="app.next", keys="tab", action="app.focus_next", label="next pane", where="everywhere",
        help="Go to the next pane or field.", footer=False, command=False),
    Key(id="app.previous", keys="shift+tab", action="app.focus_previous", label="previous pane", where="everywhere",
        help="Go to the previous pane or field.", footer=False, command=False),
    Key(id="app.hint", keys="ctrl+c", action="app.hint", label="how to leave", where="everywhere",
        help="Copy the selected text; without a selection, show which key leaves. Ends nothing.", footer=False, command=False),
    Key(id="app.leave", keys="ctrl+q", action="app.leave", label="leave", where="everywhere",
        help="Leave rankdeck from any screen. Runs keep running.", footer=False),
    Key(id="app.suspend", keys="ctrl+z", action="app.suspend_process", label="to the shell", where="everywhere",
        help="Suspend rankdeck; fg in the shell resumes it. Runs keep running.", footer=False, command=False),
    # --- lists --------------------------------------------------------------------------------------------------------
    Key(id="list.up", keys="up,k", action="cursor_up", label="up", where="list", help="One line up.",
        footer=False, command=False),
    Key(id="list.down", keys="down,j", action="cursor_down", label="down", where="list", help="One line down.",
        footer=False, command=False),
    Key(id="list.page_up", keys="pageup", action="page_up", label="page up", where="list",
        help="One page up.", footer=False, command=False),
    Key(id="list.page_down", keys="pagedown,space", action="page_down", label="page down", where="list",
        help="One page down.", footer=False, command=False),
    Key(id="list.half_up", keys="ctrl+u", action="half_page_up", label="half a page up", where="list",
        help="Half a page up.", footer=False, command=False),
    Key(id="list.half_down", keys="ctrl+d", action="half_page_down", label="half a page down", where="list",
        help="Half a page down.", footer=False, command=False),
    Key(id="list.first", keys="home,g", action="first", label="first", where="list", help="Go to the first line.",
        footer=False, command=False),
    Key(id="list.last", keys="end,G", action="last", label="last", where="list",
        help="Go to the last line; a log is followed again.", footer=False, command=False),
    # --- home ---------------------------------------------------------------------------------------------------------
    Key(id="profiles.launch", keys="enter", action="screen.launch", label="launch", where="profiles",
        help="Launch this profile and watch it.", command=False),
    Key(id="runs.attach", keys="enter", action="screen.attach", label="watch", where="runs",
        help="Watch this run, or look at one that has ended.", command=False),
    Key(id="home.new", keys="n", action="new_profile", label="new", where="home",
        help="Create a profile: backend, nodes, recipe."),
    Key(id="home.edit", keys="e", action="edit_profile", label="edit", where="home", help="Edit the selected profile, or that of the selected run."),
    Key(id="home.duplicate", keys="d", action="duplicate_profile", label="duplicate", where="home",
        help="Start a new profile from the selected one, or from what the selected run was launched with."),
    Key(id="home.check", keys="c", action="check_profile", label="check", where="home",
        help="Check every node for problems that would otherwise appear after launch; launches nothing."),
    Key(id="home.filter", keys="slash", action="filter", label="filter", where="home",
        help="Show only profiles and runs that contain a text; esc shows all again."),
    Key(id="home.profiles", keys="left,h", action="list('profiles')", label="profiles", where="home",
        help="Go to the profiles.", footer=False, command=False),
    Key(id="home.runs", keys="right,l", action="list('runs')", label="runs", where="home",
        help="Go to the runs.", footer=False, command=False),
    Key(id="home.scroll_up", keys="shift+up,K", action="scroll_plan(-3)", label="plan up", where="home",
        help="Scroll the plan up.", footer=False, command=False),
    Key(id="home.scroll_down", keys="shift+down,J", action="scroll_plan(3)", label="plan down", where="home",
        help="Scroll the plan down.", footer=False, command=False),
    Key(id="home.back", keys="escape", action="clear_filter", label="all", where="home", help="Clear the filter.",
        command=False),
    Key(id="home.quit", keys="q", action="app.leave", label="quit", where="home", help="Leave rankdeck. Runs keep running.",
        command=False, pinned=True),
    # --- a run --------------------------------------------------------------------------------------------------------
    Key(id="ranks.log", keys="enter", action="screen.open_log", label="log", where="ranks",
        help="Show the log of this rank on the whole screen; esc shows the other panes again.", command=False),
    Key(id="nodes.measure", keys="m", action="measure", label="measure", where="nodes", command=False,
        help="Choose what cell height shows: throughput, loss, steps behind the furthest rank, or GPU memory."),
    Key(id="nodes.left", keys="left,h", action="sideways(-1)", label="previous rank", where="nodes",
        help="Go to the previous rank.", footer=False, command=False),
    Key(id="nodes.right", keys="right,l", action="sideways(1)", label="next rank", where="nodes",
        help="Go to the next rank.", footer=False, command=False),
    Key(id="run.by_node", keys="v", action="by_node", label="nodes", where="run",
        help="Show the ranks as cells in boxes, one box for each node; again: the table."),
    Key(id="run.restart", keys="r", action="restart", label="restart", where="run", destructive=True,
        help="Dead ranks rejoin where the script supports it; otherwise all ranks start again. Shows which, and asks first."),
    Key(id="run.kill", keys="x", action="kill", label="kill", where="run", destructive=True,
        help="Send SIGKILL to the selected rank; asks first."),
    Key(id="run.stop", keys="s", action="stop", label="stop", where="run", destructive=True,
        help="Stop the run by its stop ladder; if it is stopping already, end it at once. Asks first."),
    Key(id="run.stacks", keys="t", action="stacks", label="stacks", where="run",
        help="Show who waits for whom in collectives, and where every rank is in its Python code; ends nothing."),
    Key(id="run.ranks", keys="1", action="pane('ranks')", label="ranks", where="run", help="Go to the rank table."),
    Key(id="run.bench", keys="6", action="pane('bench')", label="results", where="run",
        help="Show the measured collectives as a table and as curves over size; runs of the recipe allreduce have them."),
    Key(id="run.curves", keys="c", action="next_curves", label="curves", where="run",
        help="Draw latency, bus bandwidth or algorithm bandwidth of the results; on a narrow screen, or their table."),
    Key(id="run.chart", keys="2", action="pane('chart')", label="chart", where="run",
        help="Show the curves of loss and throughput."),
    Key(id="run.log", keys="3", action="pane('log')", label="log", where="run", help="Show the log."),
    Key(id="run.events", keys="4", action="pane('events')", label="events", where="run",
        help="Show the events of the run: attempts, failures, restarts."),
    Key(id="run.why", keys="5", action="pane('why')", label="why", where="run",
        help="Go to the explanation of the failure; again: show it on the whole screen."),
    Key(id="run.all", keys="a", action="all_ranks", label="all ranks", where="run",
        help="Show the logs of all ranks as one, or of the selected rank again."),
    Key(id="run.stream", keys="o", action="other_stream", label="out/err", where="run",
        help="Show stdout only, stderr only, or both again.", footer=False),
    Key(id="run.search", keys="slash", action="search", label="search", where="run", help="Search the log."),
    Key(id="run.next", keys="n", action="next_match", label="next", where="run", help="Go to the next match."),
    Key(id="run.previous", keys="N", action="previous_match", label="previous", where="run",
        help="Go to the previous match.", footer=False),
    Key(id="run.follow", keys="f", action="follow", label="follow", where="run",
        help="Follow the end of the log, or stop following."),
    Key(id="run.back", keys="escape", action="back", label="back", where="run",
        help="Go one step back: out of the search, then out of the full-screen pane, then to the table.", command=False),
    Key(id="run.detach", keys="q", action="detach", label="detach", where="run",
        help="Leave this run; it keeps running.", pinned=True),
    Key(id="log.wrap", keys="w", action="toggle_wrap", label="wrap", where="log",
        help="Wrap long lines, or cut them.", command=False),
    Key(id="log.copy", keys="y", action="copy", label="copy", where="log", command=False,
        help="Copy what is selected, or the lines in view, to the terminal's clipboard."),
    Key(id="log.left", keys="left,h", action="sideways(-1)", label="left", where="log",
        help="Show what is further left.", footer=False, command=False),
    Key(id="log.right", keys="right,l", action="sideways(1)", label="right", where="log",
        help="Show what is further right.", footer=False, command=False),
    Key(id="stacks.again", keys="r,t", action="again", label="again", where="stacks",
        help="Take new stacks.", command=False),
    Key(id="stacks.close", keys="escape,q", action="close", label="close", where="stacks", help="Go back to the run.",
        command=False, pinned=True),
    # --- a check -----------------------------------------------------------------------------------------------------
    Key(id="check.next", keys="n", action="next_problem", label="next problem", where="check",
        help="Go to the next failure or warning."),
    Key(id="check.again", keys="r", action="again", label="again", where="check", help="Run the check again.", command=False),
    Key(id="check.close", keys="escape,q", action="close", label="close", where="check",
        help="Go back; checks that are still running are cancelled.", command=False, pinned=True),
    Key(id="cells.left", keys="left,h", action="sideways(-1)", label="previous check", where="cells",
        help="Go to the previous check.", footer=False, command=False),
    Key(id="cells.right", keys="right,l", action="sideways(1)", label="next check", where="cells",
        help="Go to the next check.", footer=False, command=False),
    # --- new run, edit ------------------------------------------------------------------------------------------------
    Key(id="edit.launch", keys="f5", action="launch", label="launch", where="edit",
        help="Launch the profile in the form, saved or not."),
    Key(id="edit.save", keys="ctrl+s,f3", action="save", label="save", where="edit",
        help="Save the profile; a shipped one is saved as your own."),
    Key(id="edit.save_as", keys="f4", action="save_as", label="save as", where="edit",
        help="Save the profile as another file."),
    Key(id="edit.plan", keys="f2", action="plan", label="plan", where="edit",
        help="Show the plan on the whole screen, or the form again."),
    Key(id="edit.back", keys="escape", action="back", label="back", where="edit",
        help="Go back; asks first if there are unsaved changes.", pinned=True),
    Key(id="edit.up", keys="up", action="app.focus_previous", label="line above", where="edit",
        help="Go to the line above.", footer=False, command=False),
    Key(id="edit.down", keys="down,enter", action="app.focus_next", label="line below", where="edit",
        help="Go to the line below.", footer=False, command=False),
    Key(id="choice.next", keys="right,l,space", action="choose(1)", label="next choice", where="choice",
        help="Choose the next one.", footer=False, command=False),
    Key(id="choice.previous", keys="left,h", action="choose(-1)", label="previous choice", where="choice",
        help="Choose the previous one.", footer=False, command=False),
    # --- a question ---------------------------------------------------------------------------------------------------
    Key(id="confirm.yes", keys="y", action="answer(True)", label="yes", where="confirm", help="Do it.", command=False),
    Key(id="confirm.no", keys="n,escape,q", action="answer(False)", label="no", where="confirm",
        help="Do nothing.", command=False),
    Key(id="confirm.next", keys="right,l", action="move(1)", label="next answer", where="confirm",
        help="Go to the next answer; enter gives it. The first answer does nothing.", footer=False, command=False),
    Key(id="confirm.previous", keys="left,h", action="move(-1)", label="previous answer", where="confirm",
        help="Go to the previous answer.", footer=False, command=False),
    Key(id="leave.save", keys="s", action="answer(None)", label="save and leave", where="leave",
        help="Save the profile, then leave the form.", command=False),
    Key(id="notice.close", keys="escape,q", action="close", label="close", where="notice", help="Go back.",
        command=False),
    Key(id="ask.close", keys="escape", action="close", label="cancel", where="ask", help="Go back without an answer.",
        command=False),
    # --- help ---------------------------------------------------------------------------------------------------------
    Key(id="help.search", keys="slash", action="search", label="search", where="help", help="Show only the lines that contain a text.",
        command=False),
    Key(id="help.close", keys="escape,q,question_mark,f1", action="close", label="close", where="help",
        help="Go back.", command=False, pinned=True),
)  # fmt: skip


def keys_of(where: Where) -> tuple[Key, ...]:
    """The keys of one place."""
    return tuple(key for key in KEYS if key.where == where)


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
