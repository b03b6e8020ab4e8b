"""What could go wrong on this machine: a small function per check, each given what it looks at. They look,
ask programs with a deadline, and change nothing."""
