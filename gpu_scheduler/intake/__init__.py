"""The one door into the record: every way in inserts jobs and wishes here, and changes nothing else."""
