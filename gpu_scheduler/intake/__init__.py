"""Inserts jobs and requests into the store for every front end. It never changes an existing job."""
