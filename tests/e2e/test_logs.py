"""What ranks print is kept byte for byte, and `rankdeck logs` gives it back."""

import hashlib

from tests.support import PATIENCE, entries, wait_until

HUGE = entries("e2e/logs", "huge")


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_half_a_million_lines_are_stored_and_given_back_byte_for_byte(rankdeck, work, launch):
    run = launch(HUGE)
    assert rankdeck("wait", run).returncode == 0
    stored = rankdeck.folder(run) / "attempt_0" / "rank_0.out"
    wanted = (work / "sha-0").read_text()
    assert sha(stored.read_bytes()) == wanted
    assert sha(rankdeck.raw("logs", run, "--rank", "0", "--split").stdout) == wanted
    stored.unlink()  # pytest keeps the folders of three sessions


ODD = (
    b"",
    b"\n",
    b"\n\n\n",
    b"no line feed",
    b"a\r\nb\r\n",
    b"\xff\xfe\n\x00\n",
    b"\r10%\r20%\r",
    b"\x1b[31mred\x1b[0m\n",
)


def test_split_logs_of_one_rank_are_its_bytes(rankdeck, launch):
    say = f"import os; data = {ODD!r}[int(os.environ['RANK'])]; os.write(1, data); os.write(2, data)"
    run = launch(say, ranks=len(ODD))
    rankdeck("wait", run)
    for rank, data in enumerate(ODD):
        done = rankdeck.raw("logs", run, "--rank", str(rank), "--split")
        assert (done.returncode, done.stdout, done.stderr) == (0, data, data)


def test_a_bar_that_has_ended_is_one_line(rankdeck, launch):
    bar = (
        "import sys\nfor n in range(2000): sys.stderr.write(f'\\r{n} of 2000')\nprint('\\nError: no', file=sys.stderr)"
    )
    run = launch(bar)
    rankdeck("wait", run)
    done = rankdeck("logs", run)
    assert (done.stdout, done.stderr) == ("[r0 localhost] 1999 of 2000\n[r0 localhost] Error: no\n", "")


def test_logs_of_all_ranks_say_whose_line_it_is(rankdeck, launch):
    run = launch("import os\nfor n in range(3): print(os.environ['RANK'], n)", ranks=3)
    rankdeck("wait", run)
    lines = rankdeck("logs", run).stdout.splitlines()
    assert sorted(lines) == [f"[r{rank} localhost] {rank} {n}" for rank in range(3) for n in range(3)]


def test_logs_of_a_run_that_goes_on_print_what_there_is_and_return(rankdeck, launch):
    run = launch("import signal; print('up', flush=True)\nwhile True: signal.pause()", says=b"up\n")
    assert rankdeck("logs", run).stdout == "[r0 localhost] up\n"


def test_follow_goes_on_until_the_run_has_ended(rankdeck, work, launch):
    run = launch("import os, time\nprint('first')\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('last')")
    with rankdeck.start("logs", run, "--rank", "0", "--follow") as following:
        assert following.stdout.readline() == "first\n"
        (work / "go").touch()
        assert following.stdout.readline() == "last\n"
        assert following.stdout.read() == ""
        assert following.wait(timeout=PATIENCE) == 0


def test_follow_of_a_run_that_has_ended_returns_at_once(rankdeck, launch):
    run = launch("print('said')")
    rankdeck("wait", run)
    assert rankdeck("logs", run, "--rank", "0", "--follow").stdout == "said\n"


def test_a_rank_or_attempt_that_does_not_exist_is_a_usage_error(rankdeck, launch):
    run = launch("print('said')", ranks=2)
    rankdeck("wait", run)
    for words in (("--rank", "2"), ("--rank", "-1"), ("--attempt", "1"), ("--attempt", "x")):
        done = rankdeck("logs", run, *words)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), words


def test_logs_into_a_pipe_that_closes_end_quietly(rankdeck, launch):
    run = launch("for n in range(200000): print(n)")
    rankdeck("wait", run)
    with rankdeck.start("logs", run, "--rank", "0") as reader:
        assert reader.stdout.readline() == "0\n"
        reader.stdout.close()
        assert reader.wait(timeout=PATIENCE) == 0
        assert reader.stderr.read() == ""


def test_the_newest_line_of_a_rank_that_never_ends_its_line_is_shown(rankdeck, launch):
    """A progress bar writes carriage returns only; its state is what a user wants to see."""
    run = launch("import signal\nfor n in range(50): print(f'\\r{n} of 50', end='')\nsignal.pause()")
    wait_until(lambda: b"49 of 50" in rankdeck.log(run, 0))
    rankdeck("stop", run, "--now")
    rankdeck("wait", run)
    assert rankdeck.raw("logs", run, "--rank", "0").stdout.endswith(b"49 of 50\n")


INTERLEAVED = entries("e2e/logs", "interleaved")


def test_both_streams_come_in_the_order_in_which_they_were_written(rankdeck, launch):
    run = launch(INTERLEAVED)
    rankdeck("wait", run)
    both = rankdeck("logs", run)
    assert [line.split()[2] for line in both.stdout.splitlines()] == ["0", "1", "2", "3", "4", "5"]
    assert both.stderr == ""
    assert rankdeck("logs", run, "--grep", "^[45] s").stdout == "[r0 localhost] 4 step\n[r0 localhost] 5 step\n"
    warned = rankdeck("logs", run, "--level", "warning")
    assert (warned.stdout, warned.stderr) == ("[r0 localhost] 3 WARNING: odd\n", "")
    warned = rankdeck("logs", run, "--level", "warning", "--split")
    assert (warned.stdout, warned.stderr) == ("", "[r0 localhost] 3 WARNING: odd\n")
    assert rankdeck("logs", run, "--since", "1h", "-r", "0", "--split").stdout == "0 step\n2 step\n4 step\n"
    assert rankdeck("logs", run, "--since", "2099-01-01", "-r", "0").stdout == ""
    wrong = rankdeck("logs", run, "--since", "soon")
    assert (wrong.returncode, "is not a time" in wrong.stderr) == (2, True)
