"""Programs for developers of this project. They are not installed."""
