"""One queue for several machines in Redis: takes items of it as jobs, and writes back what became of them."""
