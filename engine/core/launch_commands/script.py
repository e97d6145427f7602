"""A command line or a batch file, read from its first command to its last. Modules, environments and `source` become `launch.setup`,
variables become `[env]`, `cd` becomes `launch.workdir`, and one command is the program. All other commands are reported, because no shell
runs them."""

import posixpath
import re
import shlex

from engine.core.errors import UsageError
from engine.core.launch_commands.command import (
    MPIRUN,
    is_program,
    program_of,
    read_words,
    runs_in_environment,
    starts_ranks,
)
from engine.core.launch_commands.draft import NEEDS_SHELL, RELATIVE, SET_BY_RANKDECK, Draft, Word, as_written
from engine.core.launch_commands.options import read_options, reasons
from engine.core.launch_commands.shell import OF_NODE, Statement, statements, words_of
from engine.core.launch_commands.slurm import Job, joined

_SETUP = "module ml source . conda mamba micromamba spack eval ulimit unset umask".split()
_NO_MATTER = "set echo printf date hostname pwd true : exit wait shift do then else done fi esac } {".split()
"""Commands that change nothing for a program."""
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_DIRECTIVE = re.compile(r"#SBATCH[ \t]+(.*)")


def batch_file(words: list[Word]) -> tuple[str, list[Word]] | None:
    """The file and the options of a command of sbatch; None: it is another command. Raises UsageError."""
    if not words or program_of(words[0].text) != "sbatch":
        return None
    rest = read_options(joined(words[1:]), "sbatch")[1]
    if not rest:
        raise UsageError("sbatch is given no file", hint="rankdeck import FILE")
    if rest[1:]:
        hint = "write it into the file, in place of $1"
        fact = f"{rest[1].place}: {rest[1].text} is an argument of {rest[0].text}, which is not read"
        raise UsageError(fact, hint=hint)
    return rest[0].text, words[1 : len(words) - len(rest)]


def read_script(text: str, file: str = "", options: list[Word] | None = None) -> tuple[Draft, str]:
    """Reads a command line or a batch file. `file`: its name; empty: a command line. `options`: options of sbatch, which win over those in
    the file; None: it is not a batch file. Returns what it says, and the name of its job; empty: it has none. Raises UsageError: it starts
    nothing that rankdeck knows, or several programs; or an option is unknown."""
    reader = _Reader(file)
    reader.take_directives(text)
    if options is not None:
        reader.take_options(options)
    for statement in statements(text, file):
        reader.take(statement)
    return reader.finish(), reader.job.name


class _Reader:
    def __init__(self, file: str) -> None:
        self.draft, self.job = Draft(), Job()
        self._file = file
        self.is_submitted = False
        self._tested = ""  # the place of a test, whose result decides on the rest of its line
        self._folder = ""  # in which `launch.setup` is
        self._below = {"SLURM_SUBMIT_DIR"}  # variables with paths from the folder of the submission; wrong after `cd`
        self._assigned: set[str] = set()  # variables that the file sets
        self._conditions = 0  # blocks of `if` and `case` around a statement
        self._loops: list[str] = []  # the places of loops around a statement
        self._known: dict[str, str] = {}  # values of the shell's variables
        self._programs: list[tuple[Statement, list[Word]]] = []
        self._ran_once: list[Statement] = []
        """Statements whose command the file runs on the first node only, and `launch.setup` on each."""

    def take_directives(self, text: str) -> None:
        """Takes `#SBATCH` lines, which come before the first command."""
        for number, line in enumerate(text.splitlines(), 1):
            if found := _DIRECTIVE.match(line):
                words = words_of(Statement(re.sub(r"\s#.*", "", found[1]), f"{self._file}:{number}"), {})
                self.take_options([word._replace(text=as_written(word.text)) for word in words])
            elif line.startswith(("#PBS ", "#BSUB ", "#OAR ", "#COBALT ", "#PJM ", "#FLUX: ")):
                self.draft.leave_out(f"{self._file}:{number}: {line}", "rankdeck reads directives of Slurm only")
            elif line.strip() and not line.lstrip().startswith("#"):
                break

    def take_options(self, words: list[Word]) -> None:
        self.is_submitted, self.draft.slurm = True, "current"
        given, rest = read_options(joined(words), "sbatch")
        if rest:
            hint = "rankdeck submits no heterogeneous jobs"
            raise UsageError(f"{rest[0].place}: {rest[0].text} is no option of sbatch", hint=hint)
        self.job.take(self.draft, given, quietly=True)
        if not self.draft.workdir:
            self._known["SLURM_SUBMIT_DIR"] = "."
        self._known |= self.job.numbers()

    def take(self, statement: Statement) -> None:
        for default in re.findall(r"\$\{(\w+):?[-=]([^{}]*)\}", statement.text):
            if default[0] not in self._known and not OF_NODE.fullmatch(default[0]):
                why = "the file takes it from the environment: its default is written"
                self.draft.leave_out("=".join(default), why)
        if re.match(r"\((?!\()", statement.text):
            hint = "take the parentheses out, or import the command in them"
            raise UsageError(f"{statement.place}: commands in parentheses are not read", hint=hint)
        if self._file:  # which gets no arguments
            text = re.sub(r'(?<!\S)"\$@"(?!\S)|\$\{?@\}?', "", statement.text)
            statement = statement._replace(text=text)
        words = words_of(statement, self._known)
        if not words:
            return
        self._assigned |= {found[1] for word in words if (found := _ASSIGNMENT.match(word.text))}
        name = program_of(words[0].text)
        if name in ("for", "while", "until"):
            self._loops.append(statement.place)
        elif name == "done" and self._loops:
            self._loops.pop()
        elif name in ("if", "case", "fi", "esac"):
            self._conditions += 1 if name in ("if", "case") else -1
        elif name in ("do", "then", "else", "{"):
            words = words[1:] or words
            name = program_of(words[0].text)
        plain = [word for word in words if not _ASSIGNMENT.fullmatch(word.text)]
        if self._loops and (any(is_program(word.text) for word in plain[:2]) or starts_ranks(plain)):
            hint = "import one of its commands: rankdeck import 'COMMAND'"
            raise UsageError(f"{statement.place}: the loop at {self._loops[-1]} starts ranks several times", hint=hint)
        is_tested = self._tested == statement.place
        self._tested = statement.place if is_tested or name in ("[", "[[", "test") else ""
        is_setting = name in ("export", "cd", *_SETUP) or not plain
        if is_setting and (self._conditions > 0 or self._loops or is_tested):
            why = "it depends on a condition or a loop: write what applies into the profile"
            self.draft.leave_out(f"{statement.place}: {_short(statement.text)}", why)
            for word in words:
                self._known.pop(word.text.partition("=")[0], None)
        elif name == "export" or not plain:
            self._take_variables(statement, words[1:] if name == "export" else words, exported=name == "export")
        elif name in _SETUP and not runs_in_environment(plain):
            if RELATIVE.search(statement.text) and self._folder != self.draft.workdir:
                self._folder = self.draft.workdir
                self.draft.setup.append(f"cd {self._folder if self._folder[:1] == '~' else shlex.quote(self._folder)}")
            self._add_setup(statement)
            for word in words[1:] if name == "unset" else ():
                self.draft.env.pop(word.text, None)
                self._known.pop(word.text, None)
        elif name == "cd" and (folder := self._folder_after(statement)):
            self.draft.workdir = "" if folder == "." else folder
            self._known = {name: value for name, value in self._known.items() if name not in self._below}
            if self.is_submitted and not self.draft.workdir:
                self._known["SLURM_SUBMIT_DIR"] = "."
        elif (
            (name not in _NO_MATTER and any(is_program(word.text) for word in plain[:2]))
            or starts_ranks(plain)
            or runs_in_environment(plain)
            or name in ("apptainer", "singularity")
            or not self._file
        ):
            self._programs.append((statement, words))
        elif name not in _NO_MATTER:
            for word in words:  # `read NAME` gives it a value that nobody knows here
                self._known.pop(word.text, None)
            why = reasons()["trap" if name == "trap" else "shell"]
            self.draft.leave_out(f"{statement.place}: {_short(statement.text)}", why)

    def _folder_after(self, statement: Statement) -> str:
        """The folder after `cd`; empty: it is not known."""
        words = words_of(statement, {**self._known, "SLURM_SUBMIT_DIR": "."})
        if len(words) != 2 or words[1].text.startswith("-") or NEEDS_SHELL.search(words[1].text):
            return ""
        is_whole = words[1].text.startswith("~") or "SLURM_SUBMIT_DIR" in statement.text
        return posixpath.join("" if is_whole else self.draft.workdir, words[1].text)

    def _add_setup(self, statement: Statement) -> None:
        """Adds a command to `launch.setup`, after the variables of the file that it uses."""
        for used in re.findall(r"(?:\$\{?|^export\s+)([A-Za-z_]\w*)", statement.text):
            value = re.sub(r"^~(?=/|$)", "$HOME", as_written(self._known.get(used, "")))
            line = f'{used}="{value}"'
            if used in self._known and not used.startswith("SLURM_") and line not in self.draft.setup:
                self.draft.setup.append(line)
        self.draft.setup.append(statement.text)

    def _take_variables(self, statement: Statement, words: list[Word], *, exported: bool) -> None:
        found: dict[str, str] = {}
        in_setup: list[str] = []
        for word in words:
            name, equals, value = word.text.partition("=")
            value = value if equals else self._known.get(name, "")
            if not equals and not value:
                continue
            needs_shell = NEEDS_SHELL.search(value) is not None
            found[name] = f"${name}" if needs_shell and name in SET_BY_RANKDECK else value
            if exported and needs_shell and " " in value and starts_ranks([Word(one, "") for one in value.split()]):
                self.draft.leave_out(name, "it holds the command itself, which the profile has")
            elif exported and name not in SET_BY_RANKDECK and (needs_shell or f"{name}=~" in statement.text):
                in_setup.append(name)
            elif exported:
                self.draft.set_env(name, value)
        if in_setup:
            self._add_setup(statement)
            if re.search(r"\$\((?!\()|`", statement.text):
                self._ran_once.append(statement)
        if not self._below.isdisjoint(re.findall(r"\w+", statement.text)):
            self._below |= found.keys()
        self._known |= found
        for name in in_setup:
            if re.search(rf"\$\{{?{name}\b", found[name]):  # what follows adds to `PATH`, which the setup has then
                del self._known[name]

    def finish(self) -> Draft:
        """Reads the command that starts the program."""
        programs = self._programs
        if len(programs) > 1:
            programs = [
                one
                for one in programs
                if any(is_program(part) and part != "srun" for word in one[1] for part in as_written(word.text).split())
            ] or programs  # srun runs tools on nodes too
            programs = [one for one in programs if starts_ranks(one[1])] or programs
        if not programs:
            hint = "it reads torchrun, python, accelerate launch, deepspeed, mpirun and srun"
            raise UsageError(f"{self._file or 'the command'} starts no program that rankdeck knows", hint=hint)
        if len(programs) > 1:
            places = ", ".join(statement.place for statement, _ in programs)
            hint = "import one of them: rankdeck import 'COMMAND'"
            raise UsageError(f"several commands start programs: {places}", hint=hint)
        chosen, words = programs[0]
        for statement, _ in self._programs:
            if statement is not chosen:
                why = "it is not the command that starts ranks"
                self.draft.leave_out(f"{statement.place}: {_short(statement.text)}", why)
        for statement in self._ran_once if (self.job.nodes or 1) > 1 else ():
            why = "its command runs on each node, not on the first alone"
            self.draft.leave_out(f"{statement.place}: {_short(statement.text)}", why)
        for part in chosen.left_out:
            self.draft.leave_out(part, reasons()["output"])
        read_words(self.draft, words, self.job)
        exported = set(re.findall(r"(?:export |\s)(\w+)=", "\n".join(f" {line}" for line in self.draft.setup)))
        used = set(re.findall(r"(?<!\{)\{env\.(\w+)\}", " ".join(self.draft.args)))
        if name := min(used & self._assigned - exported - set(self.draft.env), default=""):
            hint = "write its value into the command"
            raise UsageError(f"{chosen.place}: {name} is set by lines that rankdeck does not run", hint=hint)
        on_all = any(program_of(word.text) in ("srun", *MPIRUN) for word in words)
        if self.draft.slurm is not None and self.draft.node_count is None:
            self.draft.node_count = self.job.nodes if on_all else 1
            if not on_all and (self.job.nodes or 1) > 1:
                self.draft.leave_out(f"--nodes={self.job.nodes}", "the command runs on the first node only")
        if self.is_submitted:
            self.draft.slurm = self.job.table(self.draft)
            for told in (self.draft.hostfile, *self.draft.nodes):
                self.draft.leave_out(told, "the job has its own nodes" if told else "")
            self.draft.hostfile, self.draft.nodes = "", []
        return self.draft


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:59] + "…"
