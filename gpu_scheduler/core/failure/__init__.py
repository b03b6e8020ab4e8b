"""Why a job failed: GPU out-of-memory texts, the last error in a log, an explanation."""
