"""Programs of systemd and cron, which note how they are called and fail as a test wants."""

from __future__ import annotations

from pathlib import Path

_SCRIPT = """\
#!/bin/sh
here={here}
name=${{0##*/}}
echo "$name $*" >> $here/calls
[ "$1" = --user ] && shift
verb=$1
[ $name = journalctl ] && verb=read
[ $name = crontab ] && {{ [ "$1" = -l ] && verb=list || verb=write; }}
if [ -e $here/fails-$name-$verb ]; then
  how=$(cat $here/fails-$name-$verb)
  [ "$how" = hang ] && exec sleep 100
  echo "$how" >&2
  exit 1
fi
case $name-$verb in
  systemctl-show) if [ -e $here/active ]; then echo ActiveState=active; echo MainPID=4242
    else echo ActiveState=inactive; echo MainPID=0
    echo ExecMainCode=1; echo ExecMainStatus=2; fi
    [ -e $here/enabled ] && echo UnitFileState=enabled || echo UnitFileState=disabled;;
  systemctl-enable) : > $here/enabled; [ "$2" = --now ] && : > $here/active;;
  systemctl-disable) rm -f $here/enabled; [ "$2" = --now ] && rm -f $here/active;;
  systemctl-restart) : > $here/active;;
  systemctl-stop) rm -f $here/active;;
  loginctl-enable-linger) : > $here/lingers;;
  loginctl-disable-linger) rm -f $here/lingers;;
  loginctl-show-user) echo KillUserProcesses=no; echo RemoveIPC=no
    [ -e $here/lingers ] && echo Linger=yes || echo Linger=no;;
  crontab-list) [ -e $here/table ] || {{ echo "no crontab for you" >&2; exit 1; }}; cat $here/table;;
  crontab-write) cat "$1" > $here/table;;
  journalctl-read) echo "the last line";;
esac
exit 0
"""


class FakeSystemd:
    """The programs, in `path`. A crontab is in the file `table`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        for name in ("systemctl", "loginctl", "journalctl", "crontab"):
            (path / name).write_text(_SCRIPT.format(here=path))
            (path / name).chmod(0o755)

    def fail(self, name: str, verb: str, how: str = "it is out of order") -> None:
        """Lets a call fail from now on. how: its message, or "hang"."""
        (self.path / f"fails-{name}-{verb}").write_text(how)

    def repair(self) -> None:
        """Lets all calls succeed again."""
        for path in self.path.glob("fails-*"):
            path.unlink()

    def changes(self) -> list[str]:
        """Returns the calls so far that change something, and forgets them."""
        calls = self.path / "calls"
        lines = calls.read_text().splitlines() if calls.exists() else []
        calls.unlink(missing_ok=True)
        return [line for line in lines if "show" not in line and not line.startswith("journalctl")]

    def has(self, name: str) -> bool:
        """Returns whether the unit is "active" or "enabled", or the user "lingers"."""
        return (self.path / name).exists()
