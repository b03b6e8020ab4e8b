"""A model of an attempt, searched exhaustively: every interleaving of the scheduler's loop, two runners, the
command, `cancel` without a scheduler, and the faults of a scenario.

    make model                                    the scenarios, the negative controls, the limits
    python -m tests.protocol big                  two large scenarios
    python -m tests.protocol limits chain         some of them, with their traces

`state` has the fields; `loop`, `runner`, `people` and `faults` have the steps; `invariants` says what must
hold; `rules` has a switch for each rule; `scenarios` lists what is searched. The scheduler's own code,
`core.settle`, decides what is done about an attempt (`decisions`). The model adds the world around it: files,
locks, processes, signals and scans.

To change the protocol, change the model first: the steps; the rule, with a switch; a control that fails
without the rule; a new fault, with a scenario. Run it whole. Then change the code. Remove what is not needed
any more: every field and every step multiplies the states.

One step is one atomic act: a commit, a link, a rename, a signal, one look. A counterexample is printed as the
shortest trace that leads to it. Progress means that a good state can be reached from every state without
further faults. Limits are what no rule prevents: each has an excuse in `rules`, and a control shows how it
comes about.
"""
