"""The jobs file: how its lines are parsed, how two readings differ, and when a change takes effect."""
