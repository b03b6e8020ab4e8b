"""Everything that the running scheduler reports: log lines, journal, status file, console."""
