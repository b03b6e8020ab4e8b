"""`service`: runs the scheduler with systemd or cron."""

from __future__ import annotations

import os
import sys
from argparse import Namespace

from gpu_scheduler.cli.program import location_of, print_done, print_message
from gpu_scheduler.cli.start import check
from gpu_scheduler.config import NOTIFY_VARIABLE, REDIS_URL_VARIABLE, STATE_FILE, VERSION
from gpu_scheduler.core.text.formatting import pid_text
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.show import unit_text as words_of
from gpu_scheduler.show.location import Location
from gpu_scheduler.system.own_process import program_words
from gpu_scheduler.unit import service as units
from gpu_scheduler.unit.unit_file import Unit, cron_line, unit_name, unit_text

_NOT_RUNNING, _NOT_INSTALLED = 3, 4
#: The options of `start` that are for one start only.
_ONCE = ("daemon", "drain", "fresh", "restore", "take_over")


def service(options: Namespace) -> int:
    """Installs, shows, restarts or removes the unit of a scheduler. Returns the exit code of the command."""
    location = location_of(options)
    state_file = os.path.realpath(location.resolve().state_file)
    if options.system and os.geteuid() != 0:
        raise UsageError("--system needs root")
    if options.system and options.cron:
        raise UsageError("--cron uses your own crontab; leave out --system")
    if options.action in ("install", "print"):
        unit, variables = _wanted(options, state_file)
        if options.action == "print":
            print_done(cron_line(unit) if options.cron else unit_text(unit).rstrip("\n"))
            return 0
        return _install(options, location, unit, variables)
    if options.action == "status":
        return _status(options, location, state_file)
    if options.action == "restart":
        before, now = units.restart(state_file, VERSION, is_system=options.system)
        print_done(f"{unit_name(state_file)} was restarted: version {before} before, {now} now; jobs go on")
        return 0
    name = unit_name(state_file)
    if not options.cron:
        units.uninstall(state_file, is_system=options.system)
    elif not units.change_cron(name, _variables_file(options, state_file), None, {}):
        raise SchedulerError(f"the crontab has no line for {state_file}")
    print_done(words_of.removed_text(name, is_cron=options.cron))
    return 0


def _variables_file(options: Namespace, state_file: str) -> str:
    path = str(units.Manager(is_system=options.system).files(unit_name(state_file))[1])
    return path.removesuffix(".env") + "-cron.env" if options.cron else path


def _wanted(options: Namespace, state_file: str) -> tuple[Unit, dict[str, str]]:
    """Returns the unit that the options ask for, and its variables. Raises UsageError for wrong options."""
    where = ("--state-file", options.state_file), ("--data-dir", options.data_dir)
    given = [f"{name}={value}" for name, value in where if value not in (None, STATE_FILE)]
    words = [*given, *options.words]
    for name in _ONCE:
        if getattr(options, name):
            raise UsageError(f"--{name.replace('_', '-')} is for one start; a unit starts whenever it has to")
    if options.system == (options.user is None):
        raise UsageError("--system needs --user NAME, the account of the scheduler, and only --system has it")
    if options.user is not None and units.account_of(options.user).pw_uid == 0 and not options.as_root:
        raise UsageError("a scheduler of root runs every job as root; name another --user, or add --as-root")
    if options.system and options.as_root and options.serve is None:  # `start` has it only with --serve
        options.as_root, words = False, [word for word in words if word != "--as-root"]
    variables = {}
    for name in options.keep_env:
        if name not in os.environ:
            raise UsageError(f"--keep-env {name}: there is no such variable here")
        if not name.isidentifier() or not name.isascii():
            raise UsageError(f"--keep-env {name}: only names of letters, digits and _ can be kept")
        variables[name] = os.environ[name]
    # URLs may contain passwords, so they are in the file of variables and not in the unit.
    redis = None if options.redis is None else [options.redis]
    both = ("--notify", NOTIFY_VARIABLE, options.notify), ("--redis", REDIS_URL_VARIABLE, redis)
    for option, name, urls in both:
        if urls is not None:
            text = " ".join(filter(None, (url or os.environ.get(name, "") for url in urls)))
            variables |= {name: text} if text else {}
            words = [*words, option]
    if not options.recover and not options.no_recover:
        words = [*words, "--recover"]
    own_words = program_words(sys.argv[0])
    if options.user is None or not units.check_as(
        options.user, [*own_words, "service", "print", *words], variables
    ):
        check(options)
    return Unit(
        state_file, os.getcwd(), own_words, tuple(words), os.environ.get("PATH", os.defpath),
        _variables_file(options, state_file), options.user, False, VERSION,
    ), variables  # fmt: skip


def _install(options: Namespace, location: Location, unit: Unit, variables: dict[str, str]) -> int:
    if options.cron:
        variables = {**variables, "PATH": unit.path}
        has_changed = units.change_cron(unit.name, unit.variables_file, cron_line(unit), variables)
        print_done(words_of.cron_text(cron_line(unit), has_changed=has_changed))
        return 0
    if not units.has_systemd():
        raise SchedulerError(words_of.no_systemd_text(cron_line(unit)))
    lock = location.resolve().folder / "lock"
    pid = units.outside_pid(lock, unit.state_file, is_system=options.system)
    if pid is not None and not options.replace:
        raise SchedulerError(
            f"a scheduler of {unit.state_file} runs already ({pid_text(pid)}); --replace stops it, and its"
            " jobs go on"
        )

    def stop_other() -> None:
        from gpu_scheduler.control.stop import stop

        if pid is not None:
            stop(location, end_jobs=False, grace_s=0)

    def may_change(old: str, new: str) -> bool:
        print_message(words_of.difference_text(old, new))
        if options.yes or not os.isatty(0):
            return bool(options.yes)
        try:
            return input("replace the installed unit? [y/N] ").strip().lower() in ("y", "yes")
        except EOFError:
            return False

    done = units.install(unit, variables, may_change=may_change, before_start=stop_other)
    if done is None:
        raise SchedulerError("another unit is installed, and nothing was changed; --yes replaces it")
    print_done(words_of.installed_text(done))
    return 0


def _status(options: Namespace, location: Location, state_file: str) -> int:
    name = unit_name(state_file)
    state = units.Manager(is_system=options.system).state(name)
    if state.unit is not None:
        print_done(words_of.state_text(state.unit, state, units.fit_problems(state.unit, VERSION)))
        return 0 if state.pid else _NOT_RUNNING
    if not units.has_cron_line(name):
        print_done("not installed; `service install` installs it")
        return _NOT_INSTALLED
    pid = units.outside_pid(location.resolve().folder / "lock", state_file, is_system=options.system)
    print_done(words_of.cron_state_text(pid))
    return _NOT_RUNNING if pid is None else 0
