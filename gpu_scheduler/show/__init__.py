"""The use cases that read: the functions that front ends, such as the command line, call.

    status.status, status.empty_status        the GPUs and jobs
    job_detail.job_detail                     everything known about one job
    why.diagnose                              why a job does not start, or why it failed
    plan.forecast_queue                       when the jobs of the queue start and end
    logs.screens                              the Screen sessions of running jobs
    events.open_events, logs.open_log         what happened, and the output of a job
    logs.attach_target                        the session to attach to
    machine_gpus.machine_gpus                 the GPUs of this machine, without a store
    calibrate.calibrate, doctor.doctor

Most functions take a `Location`. They take typed arguments and return frozen values. These may contain
secrets, which are hidden where they are shown (`core.text.formatting`). They raise the errors of
`gpu_scheduler.errors`. No function parses a command line, reads standard streams or prints.
"""
