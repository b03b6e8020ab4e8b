"""Pure decisions: values in, values out. Nothing here touches a file, a clock, a process, a GPU or SQL."""
