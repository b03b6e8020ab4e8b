"""The rounds: observe, plan, record and perform. A scheduler runs them, or a command while there is none."""
