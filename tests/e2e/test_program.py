"""`rankdeck run` and `rankdeck new`: a program without a profile, and a new profile of one."""

import sys

from tests.support import check_out, entries

SAY = entries("e2e/program", "say")


def test_a_script_runs_without_a_profile_and_gets_every_word_behind_it(rankdeck, write_script):
    write_script("train.py", SAY)
    done = rankdeck("run", "-n", "2", "train.py", "-n", "3", "--detach", "a b")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()[1:]) == [
        f"[r{rank} localhost] {rank} 2 ['-n', '3', '--detach', 'a b']" for rank in range(2)
    ]
    assert "train" not in rankdeck("profiles").stdout.split()
    assert rankdeck("run", "-n", "1", "--set", "launch.on_failure=stop", "train.py", "fail").returncode == 7


def test_a_script_is_launched_again_from_the_profile_that_was_saved(rankdeck, write_script, work, monkeypatch):
    write_script("train.py", SAY)
    done = rankdeck("run", "-n", "2", "--save", "mine", "--json", "--detach", "train.py", "x")
    assert done.returncode == 0, done.stderr
    rankdeck.wait_state("-", "succeeded")
    assert rankdeck("run", "--save", "mine", "train.py").stderr.startswith(
        "rankdeck: there is already a profile 'mine'"
    )
    (work / "elsewhere").mkdir()
    monkeypatch.chdir(work / "elsewhere")
    check_out(rankdeck("launch", "mine"), 0, "[r1 localhost] 1 2 ['x']")


def test_a_last_line_without_a_line_feed_is_read_at_the_end(rankdeck, write_script):
    write_script("train.py", "import sys\nsys.stdout.write('step 29/30 loss 0.5\\rstep 30/30 loss 0.25')\n")
    assert rankdeck("run", "-n", "1", "train.py").returncode == 0
    status = rankdeck.status("-")
    assert [(rank["step"], rank["loss"]) for rank in status["ranks"]] == [(30, 0.25)]


def test_a_new_profile_starts_nothing_and_is_refused_where_it_could_not_be_launched(rankdeck, write_script):
    write_script("train.py", SAY)
    check_out(rankdeck("new", "-n", "2", "train.py", "x"), 0, "next: rankdeck launch train")
    assert not list((rankdeck.home / "runs").glob("*"))
    assert "train" in rankdeck("profiles").stdout.split()
    refused = rankdeck("new", "--name", "other", "--python", "/nonexistent/python", "train.py")
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "other" not in rankdeck("profiles").stdout.split()


def test_a_script_that_is_launched_as_a_profile_is_told_the_command(rankdeck, write_script):
    write_script("train.py", SAY)
    done = rankdeck("launch", "train.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert "rankdeck run train.py" in done.stderr


BATCH = entries("e2e/program", "batch")


def test_a_command_of_another_launcher_becomes_a_profile_that_does_the_same(rankdeck, write_script, work):
    write_script(
        "train.py", SAY.replace("sys.argv[1:])", "sys.argv[1:], os.environ.get('COLOUR'), os.environ.get('SHADE'))")
    )
    done = rankdeck("import", "torchrun --standalone --nproc_per_node=2 train.py --n 'a b' '$(touch pwned)'")
    check_out(done, 0, "next: rankdeck launch train")
    launched = rankdeck("launch", "train")
    assert "[r1 localhost] 1 2 ['--n', 'a b', '$(touch pwned)'] None None" in launched.stdout
    assert not (work / "pwned").exists()
    (work / "prepare.sh").write_text("export SHADE=dark\n")
    (work / "job.sh").write_text(BATCH)
    done = rankdeck("import", "job.sh", "--name", "big", "--nodes", "localhost")
    assert done.returncode == 0, done.stderr
    assert "left out: --time" not in done.stdout
    assert "left out: > log, 2>&1: rankdeck keeps the output" in done.stdout
    launched = rankdeck("launch", "big", "--set", f"launch.python={sys.executable}")
    assert "[r1 localhost] 1 2 ['--n', 'a b', '{rank}', 'dark'] light blue dark" in launched.stdout
    wrong = rankdeck("import", "--name", "other", "torchrun --nprocs 2 train.py")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "word 2 of the command: torchrun has no option --nprocs" in wrong.stderr
    command = "torchrun --nproc_per_node 2 train.py"
    for words in (["--print", command], [command, "--print"], ["--name=other", command, "--print"]):
        assert "ranks_per_node = 2" in rankdeck("import", *words).stdout
