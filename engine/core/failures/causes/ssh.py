"""Why no agent could be started on a node: what ssh, PAM and login shells say about it.

`detail` and `hint` continue a sentence that begins with the node's name. They may also use `{node}` and `{python}`. The causes of
kind `cause` are recognised in any log, the others only in the output of a connection that failed.
"""

from __future__ import annotations

from functools import partial

from engine.core.failures.causes.cause import Cause

_login = partial(Cause, kind="connection", speaker="login")
_ssh = partial(Cause, kind="connection", speaker="ssh")
_any_log = partial(Cause, speaker="ssh")
"""Recognised in any log, not only in the output of a connection that failed."""

_BY_HAND = "try it by hand: ssh {node} true"

CAUSES: tuple[Cause, ...] = (
    # --- PAM, or a login shell that refuses the login: any exit status
    _login(
        id="S7",
        pattern=r"^(?:Your account has expired|Account .*expired)",
        detail="your account there has expired",
        hint="ask its administrator",
    ),
    _login(
        id="S8",
        pattern=r"[Pp]assword has expired|^You are required to change your password|^Password change required",
        detail="your password there has expired",
        hint="change it by hand: ssh {node}",
    ),
    _login(
        id="S9",
        pattern=r"^This account is (?:currently )?not available",
        detail="your account there has no login shell",
        hint="choose a node where you can log in",
    ),
    _login(
        id="S10",
        pattern=r"pam_slurm|no active jobs on this node",
        detail="Slurm only allows logins of users with a job there",
        hint="use nodes of your own running job: squeue --me",
    ),
    _login(
        id="S11",
        pattern=r"^(?P<said>.*(?:[Ss]ystem is (?:going down|booting up|shutting down)|Unprivileged users are not permitted).*)",
        detail="it allows no logins now: {said}",
        hint="try again later, or choose another node",
    ),
    # --- ssh here or on a jump host; specific patterns come before general ones
    # --- ssh on this machine
    _ssh(
        id="S12",
        pattern=r"^command-line:? line \d+: (?P<said>.+)",
        detail="ssh refuses an option: {said}",
        hint="correct layout.ssh_options",
    ),
    _ssh(
        id="S13",
        pattern=r"^(?P<said>(?:unknown|illegal|invalid) option -- .+|option requires an argument -- .+|Bad (?:port|number|escape).+)",
        detail="ssh refuses an option: {said}",
        hint="correct layout.ssh_options",
    ),
    _ssh(
        id="S14",
        pattern=r"^(?P<file>[^:]+?):? line (?P<line>\d+): (?P<said>.+)\n\S+: terminating, \d+ bad configuration options",
        detail="ssh can't use {file}, line {line}: {said}",
        hint="correct that line",
    ),
    _ssh(
        id="S15",
        pattern=r"^Bad owner or permissions on (?P<file>[^'\n]+)",
        detail="ssh refuses {file}: it belongs to another user, or others can write to it",
        hint="chmod 600 '{file}', and check its owner",
    ),
    _ssh(
        id="S16",
        pattern=r"^Can't open user config file (?P<file>.+): (?P<why>[^:\n]+)",
        detail="ssh can't read {file}: {why}",
        hint="correct layout.ssh_options",
    ),
    _ssh(
        id="S17",
        pattern=r"^Cannot execute command-line and remote command",
        detail="ssh's configuration sets a RemoteCommand, so no other command can run",
        hint='set layout.ssh_options = ["-o", "RemoteCommand=none"]',
    ),
    # --- host keys
    _ssh(
        id="S18",
        pattern=r"^Offending (?:\S+ )?key (?:for IP )?in (?P<file>[^'\n]+):(?P<line>\d+)$(?s:.*)^Host key for (?P<host>[\w.:\[\]-]+) has changed",
        detail="its host key differs from {file}, line {line}: it was reinstalled, or it is another machine",
        hint="if it was reinstalled: ssh-keygen -f '{file}' -R '{host}', then ssh {node} true",
    ),
    _any_log(
        id="S2",
        pattern=r"^(?:@ {1,8}WARNING: )?REMOTE HOST IDENTIFICATION HAS CHANGED|^Host key verification failed",
        detail="its host key is not known here, or not trusted",
        hint="connect once by hand, compare the fingerprint and accept it: ssh {node} true",
        fix="ssh-keygen -R NODE; ssh NODE true",
    ),
    _ssh(
        id="S19",
        pattern=r"^Unable to negotiate with (?P<where>.+?): no matching (?P<what>[^.\n]+?) found\. Their offer: (?P<offer>.+)",
        detail="ssh and its sshd have no {what} in common; it offers {offer}",
        hint="allow one of these in ~/.ssh/config, or update its sshd",
    ),
    # --- authentication
    _ssh(
        id="S20",
        pattern=r"^Permissions \d+ for '(?P<key>[^'\n]+)' are too open(?s:.*)^\S+@\S+: Permission denied \(",
        detail="ssh ignores {key} because others can read it, and no other login works",
        hint="chmod 600 '{key}'",
    ),
    _ssh(
        id="S21",
        pattern=r"agent refused operation(?s:.*)^\S+@\S+: Permission denied \(",
        detail="the ssh agent on this machine refuses to use your key",
        hint="unlock it (ssh-add), then " + _BY_HAND,
    ),
    _ssh(
        id="S22",
        pattern=r'^Load key "(?P<key>[^"\n]+)": (?P<why>.+)$(?s:.*)^\S+@\S+: Permission denied \(',
        detail="ssh can't use {key}: {why}; no other login works",
        hint="correct IdentityFile in ~/.ssh/config, then " + _BY_HAND,
    ),
    _any_log(
        id="S1",
        pattern=r"^(?P<user>\S{1,200}@\S{1,200}): Permission denied \((?P<ways>[^)\n]{0,200}publickey[^)\n]{0,200})\)",
        detail="it refuses the login of {user} ({ways})",
        hint=_BY_HAND + ", which must not prompt: ssh-add your key, or ssh-copy-id {node}",
        fix="ssh-copy-id NODE",
    ),
    _any_log(
        id="S1",
        pattern=r"^(?P<user>\S{1,200}@\S{1,200}): Permission denied \((?P<ways>[^)\n]{0,200}gssapi[^)\n]{0,200})\)",
        detail="it refuses the login of {user} ({ways})",
        hint="get a Kerberos ticket (kinit), then " + _BY_HAND,
        fix="ssh-copy-id NODE",
    ),
    _any_log(
        id="S1",
        pattern=r"^(?P<user>\S{1,200}@\S{1,200}): Permission denied \((?P<ways>[^)\n]{0,200})\)",
        detail="it refuses the login of {user} without a prompt ({ways})",
        hint="open a shared connection by hand (ControlMaster in ~/.ssh/config), or set up a key",
        fix="ssh-copy-id NODE",
    ),
    _any_log(
        id="S5",
        pattern=r"Too many authentication failures",
        detail="ssh offered more keys than it accepts",
        hint="name one in ~/.ssh/config: IdentityFile, with IdentitiesOnly yes",
        fix="ssh -o IdentitiesOnly=yes -i KEY NODE true",
    ),
    # --- the connection
    _any_log(
        id="S3",
        pattern=r"^ssh: Could not resolve hostname (?P<host>[^\s:-][^\n:]{0,199}): Temporary failure",
        detail="no name server answered for {host}",
        hint="check the network of this machine",
        retry=True,
        fix="getent hosts {host}",
    ),
    _any_log(
        id="S3",
        pattern=r"^ssh: Could not resolve hostname (?P<host>[^\s:-][^\n:]{0,199}): (?P<why>.+)",
        detail="this machine can't resolve {host}: {why}",
        hint="correct layout.nodes, or set its HostName in ~/.ssh/config",
        fix="getent hosts {host}",
    ),
    _any_log(
        id="S4",
        pattern=r"^ssh: connect to host (?P<host>[^\s-]\S{0,199}) port (?P<port>\d+): Connection refused",
        detail="no sshd listens on {host}, port {port}",
        hint="check that it has booted, and Port in ~/.ssh/config",
        fix="nc -zv {host} {port}",
    ),
    _any_log(
        id="S4",
        pattern=r"^ssh: connect to host (?P<host>[^\s-]\S{0,199}) port (?P<port>\d+): (?:Connection|Operation) timed out",
        detail="{host} does not answer on port {port}: it is down, or a firewall blocks ssh",
        hint="check that it is up; " + _BY_HAND,
        fix="nc -zv {host} {port}",
    ),
    _any_log(
        id="S4",
        pattern=r"^ssh: connect to host (?P<host>[^\s-]\S{0,199}) port (?P<port>\d+): (?P<why>No route to host|Network is unreachable)",
        detail="{host} is unreachable: {why}",
        hint="check that it is up; if this machine can't reach its network, set ProxyJump in ~/.ssh/config",
        fix="nc -zv {host} {port}",
    ),
    _any_log(
        id="S4",
        pattern=r"^ssh: connect to host (?P<host>[^\s-]\S{0,199}) port (?P<port>\d+): (?P<why>.+)",
        detail="no connection to {host}, port {port}: {why}",
        hint=_BY_HAND,
        fix="nc -zv {host} {port}",
    ),
    _ssh(
        id="S23",
        pattern=r"^Connection timed out during banner exchange|^Connection to .+ port \d+ timed out",
        detail="it accepts the connection but sends nothing: its sshd hangs or is overloaded",
        hint="check the node; if it is only slow, set ConnectTimeout in layout.ssh_options",
    ),
    _ssh(
        id="S24",
        pattern=r"^channel \d+: open failed: (?P<why>.+)\n(?:.*\n)?stdio forwarding failed",
        detail="its jump host can't reach it: {why}",
        hint="check from the jump host that it is up",
        proxied=True,
    ),
    _ssh(
        id="S25",
        pattern=r"^channel \d+: open failed: |session request failed: Session open refused",
        detail="its sshd opens no session on this connection (MaxSessions)",
        hint='close sessions that share the connection, or set layout.ssh_options = ["-o", "ControlPath=none"]',
    ),
    _ssh(
        id="S26",
        pattern=r"^(?:exec|shell|subsystem) request failed on channel",
        detail="its sshd could not start a process for you",
        hint="check whether you have too many processes there, or its memory is full",
    ),
    _any_log(
        id="S6",
        pattern=r"^Connection (?:closed|reset) by (?!UNKNOWN)\S{1,200} port \d+|^ssh_exchange_identification: |^ssh_dispatch_run_fatal: ",
        detail="its sshd closed the connection immediately, perhaps because of too many new connections (MaxStartups)",
        hint="if it happens again, check that sshd works there and accepts this machine",
        retry=True,
        fix="ssh -v NODE true",
    ),
    _ssh(
        id="S27",
        pattern=r"^(?P<said>(?!kex_).+)\n(?:kex_exchange_identification: .*\n)?Connection (?:closed|reset) by UNKNOWN port",
        detail="the ProxyJump or ProxyCommand to it failed: {said}",
        hint=_BY_HAND,
        proxied=True,
    ),
    _ssh(
        id="S28",
        pattern=r"^Connection (?:closed|reset) by UNKNOWN port",
        detail="the ProxyJump or ProxyCommand to it ended without a connection",
        hint=_BY_HAND,
        proxied=True,
    ),
    _ssh(
        id="S29",
        pattern=r"^Connection to .+ closed by remote host|^client_loop: |^Timeout, server .+ not responding|^Read from remote host",
        detail="the connection broke before its agent had started",
        hint="check the node",
        retry=True,
    ),
    _any_log(
        id="S6",
        pattern=r"^(?P<said>kex_exchange_identification: .+)",
        detail="ssh failed: {said}",
        hint=_BY_HAND,
        fix="ssh -v NODE true",
    ),
)
