"""The command of an attempt: activation, environment, `--cuda`, session names."""
