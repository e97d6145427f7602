"""Parts of the warden."""

import os
import signal
import subprocess

from engine.node.agent.warden import forget_stop


def test_a_child_that_is_killed_while_it_is_stopped_does_not_end_the_warden() -> None:
    with subprocess.Popen(["sleep", "1000"]) as child:
        os.kill(child.pid, signal.SIGSTOP)
        assert os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        os.kill(child.pid, signal.SIGKILL)
        assert os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        forget_stop(child.pid)
    assert child.returncode == -signal.SIGKILL
