"""A model of an attempt, and an exhaustive search of its states.

The search covers every interleaving of the scheduler's loop, two runners, the command, the commands `cancel`
and `preempt`, which run rounds themselves while nobody else does, another program that claims the GPU, and
the faults of a scenario.

    make model                                    scenarios, negative controls and limits
    python -m tests.protocol big                  the large scenarios
    python -m tests.protocol limits chain         the limits whose name contains `chain`, with traces

`state` has the fields and `stops` the requests to stop an attempt; `loop` (with `requests`, `observation`
and `commits`), `runner`, `command`, `adopted`, `users`, `sweep`, `gpu` and `faults` have the steps;
`invariants` has the conditions that must hold; `rules` has a switch for each rule; `scenarios` lists the
searches. The program's own code decides: `core.scheduling.reconcile_attempt` how an attempt is handled
(`decisions`), `core.scheduling.requests` what a `preempt` changes (`stops`), `reconcile_attempt`
also whether an adopted process is watched again (`adopted`), and `runner.termination` how a runner ends its
command (`termination`). The model adds its environment: files, locks, processes, signals and scans.

`turns` is a small model of its own: programs that wait for GPUs and take turns. `redis_claims` is another:
boxes that take items from one queue on Redis.

To change the protocol, change the model first: the steps; the rule, with a switch; a control that fails
without the rule; a new fault, with a scenario. Run all of it. Then change the code. Remove fields and steps
that are no longer needed: each multiplies the number of states.

One step is one atomic operation: a commit, a link, a rename, a signal, one observation. A counterexample is
printed as the shortest trace that leads to it. Progress means that a good state can be reached from every
state without further faults. Limits are faults that no rule prevents: each has an excuse in `rules`, and a
control shows how it happens.
"""
