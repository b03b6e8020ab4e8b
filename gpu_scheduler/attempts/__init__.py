"""The scheduler's side of the attempt folder: prepare, launch, observe, stop, sweep."""
