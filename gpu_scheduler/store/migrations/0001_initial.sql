-- The store. Times: *_at wall seconds since 1970; *_boot seconds since boot of the row's boot_id.
-- GPUs are named by UUID. Lists of samples and processes are JSON; no query looks into them.
-- Rows of job, attempt and allocation are changed by the scheduler's loop alone; front ends insert jobs and requests.

PRAGMA application_id = 1196446576;             -- 'GPS0': every released schema has it

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE job (
    id                  INTEGER PRIMARY KEY AUTOINCREMENT,
    source              TEXT NOT NULL,              -- 'file:PATH' or the front end's name
    kind                TEXT NOT NULL,
    identity            TEXT NOT NULL,
    name                TEXT,
    text                TEXT NOT NULL,
    spec                TEXT NOT NULL,              -- JobSpec as JSON
    spec_key            TEXT NOT NULL,              -- ResourceSpec.key(): jobs with the same one wait for the same thing
    priority            INTEGER NOT NULL,
    position            INTEGER NOT NULL,           -- in the queue, among jobs of its priority
    state               TEXT NOT NULL,
    outcome             TEXT,
    exit_code           INTEGER,
    signal              INTEGER,
    reason              TEXT,                       -- StateReason as JSON
    held_by             TEXT,                       -- 'user', 'line', or the outcome that holds it
    cancel_cause        TEXT,                       -- a pending cancel or preempt
    cancel_grace_s      REAL,
    launch_failures     INTEGER NOT NULL DEFAULT 0,
    not_before_boot     REAL,
    boot_id             TEXT,                       -- of not_before_boot
    source_missing      INTEGER NOT NULL DEFAULT 0, -- its line is not in the current jobs file: it does not start
    line_wait           TEXT,                       -- WaitReason as JSON, why source_missing is set
    bypassed_at         REAL,                       -- since when jobs behind it start before it
    min_vram_mib        INTEGER,                    -- its need after an OOM
    oom_retries_used    INTEGER NOT NULL DEFAULT 0,
    fail_retries_used   INTEGER NOT NULL DEFAULT 0,
    created_at          REAL NOT NULL,
    finished_at         REAL
);
-- These indexes keep the cost of a round and of `status` independent of the number of jobs.
CREATE INDEX job_queue ON job (spec_key, source_missing, priority, position, id) WHERE state = 'queued';
CREATE INDEX job_open ON job (state, priority, position, id) WHERE state <> 'finished';
CREATE INDEX job_identity ON job (identity, id);
CREATE INDEX job_finished ON job (finished_at) WHERE state = 'finished';
CREATE INDEX job_source_missing ON job (id) WHERE source_missing;
CREATE INDEX job_retry ON job (not_before_boot) WHERE state = 'queued' AND not_before_boot IS NOT NULL;
CREATE INDEX job_unsuccessful ON job (outcome) WHERE state = 'finished' AND outcome <> 'completed';

CREATE TABLE job_count (                            -- how many jobs are in each state
    state TEXT PRIMARY KEY,
    jobs  INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE attempt (
    id                   INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id               INTEGER NOT NULL REFERENCES job (id),
    number               INTEGER NOT NULL,           -- 1, 2, … of its job
    token                TEXT NOT NULL UNIQUE,
    boot_id              TEXT NOT NULL,
    state                TEXT NOT NULL,              -- AttemptState
    executor             TEXT NOT NULL,              -- name of the executor that launches it
    learned              INTEGER NOT NULL DEFAULT 0, -- its vram was learned from its workload class
    assumed              INTEGER NOT NULL DEFAULT 0, -- nothing declared its share and vram
    launch_count         INTEGER NOT NULL DEFAULT 1,
    launch_deadline_boot REAL NOT NULL,
    launch_error         TEXT,
    runner_pid           INTEGER,                    -- the runner, known once its claim was observed
    runner_start_ticks   INTEGER,                    -- its start, kernel ticks since boot
    stopping_boot        REAL,
    signalled_boot       REAL,
    swept_boot           REAL,
    runner_died_boot     REAL,
    released_boot        REAL,
    measured_boot        REAL,                       -- the newest sample in its allocations
    outcome              TEXT,                       -- NULL: open
    exit_code            INTEGER,
    signal               INTEGER,
    reason               TEXT,                       -- StateReason as JSON
    survivors            TEXT NOT NULL DEFAULT '[]', -- JSON list of pids
    log                  TEXT,
    session              TEXT,
    window_closed        INTEGER NOT NULL DEFAULT 0, -- the closing of its Screen window was reported
    created_at           REAL NOT NULL,
    started_at           REAL,
    ended_at             REAL,
    UNIQUE (job_id, number)
);
CREATE INDEX attempt_active ON attempt (job_id) WHERE state <> 'closed';

CREATE TABLE allocation (                            -- the part of each GPU that an attempt has, and its use of it
    attempt_id     INTEGER NOT NULL REFERENCES attempt (id),
    ordinal        INTEGER NOT NULL,                 -- 0, 1, … in the order of its GPUs
    gpu            TEXT NOT NULL,
    share          INTEGER NOT NULL,                 -- thousandths; 0: none
    vram           INTEGER,                          -- MiB; NULL: none
    whole          INTEGER NOT NULL,                 -- no other job shares the GPU
    budget_mib     INTEGER,                          -- declared or learned; NULL: neither, or the GPU's size is unknown
    baseline_mib   INTEGER,                          -- unattributed memory when it started
    peak_mib       INTEGER,
    load_sum       REAL NOT NULL DEFAULT 0,          -- percent, over load_samples samples
    load_samples   INTEGER NOT NULL DEFAULT 0,
    overuse_logged INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (attempt_id, ordinal)
) WITHOUT ROWID;

CREATE TABLE misplaced_process (                     -- reported processes outside the allocation of their attempt
    attempt_id INTEGER NOT NULL REFERENCES attempt (id),
    gpu        TEXT NOT NULL,
    pid        INTEGER NOT NULL,
    PRIMARY KEY (attempt_id, gpu)
) WITHOUT ROWID;

CREATE TABLE request (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    verb        TEXT NOT NULL,
    target      TEXT NOT NULL,
    args        TEXT NOT NULL DEFAULT '{}',
    by          TEXT NOT NULL,
    made_at     REAL NOT NULL,
    answered_at REAL,
    answer      TEXT                                 -- RequestAnswer as JSON
);
CREATE INDEX request_open ON request (id) WHERE answered_at IS NULL;

CREATE TABLE pending_group (                         -- why the queued jobs with one spec_key wait
    spec_key TEXT PRIMARY KEY,
    reason   TEXT NOT NULL                           -- WaitReason as JSON
) WITHOUT ROWID;

CREATE TABLE gpu (
    uuid              TEXT PRIMARY KEY,
    idx               INTEGER NOT NULL,
    name              TEXT NOT NULL,
    total_mib         INTEGER,
    managed           INTEGER NOT NULL DEFAULT 1,
    paused            INTEGER NOT NULL DEFAULT 0,
    used_mib          INTEGER,
    load_percent      REAL,
    fault             TEXT,                          -- GpuFault as JSON
    sampled_at        REAL,
    processes         TEXT,                          -- JSON list of [pid, MiB, graphics only]; NULL: not listed
    loads             TEXT NOT NULL DEFAULT '[]',    -- JSON list of the last loads, percent, the newest last
    foreign_peaks     TEXT NOT NULL DEFAULT '[]',    -- JSON list of [pid, start, peak MiB] of foreign processes
    foreign_loads     TEXT NOT NULL DEFAULT '[]',    -- JSON list of the last loads of foreign processes, percent or null
    foreign_load_boot REAL                           -- time of the newest sample in foreign_loads
) WITHOUT ROWID;

CREATE TABLE jobs_file (
    path     TEXT PRIMARY KEY,
    cwd      TEXT NOT NULL,                          -- working directory of its lines, recorded when first read
    problem  TEXT                                    -- why it cannot be read now
) WITHOUT ROWID;

CREATE TABLE line (                                  -- the last reading of each jobs file
    path          TEXT NOT NULL REFERENCES jobs_file (path),
    position      INTEGER NOT NULL,                  -- increases with the lines, with gaps
    number        INTEGER NOT NULL,                  -- line number in the file
    identity      TEXT,
    kind          TEXT,
    text          TEXT NOT NULL,
    raw           TEXT NOT NULL DEFAULT '',
    attributes    TEXT NOT NULL DEFAULT '{}',
    job_id        INTEGER,
    problem       TEXT,                              -- why it is malformed
    accepted_form TEXT,                              -- what would be accepted
    is_typo       INTEGER NOT NULL DEFAULT 0,        -- a malformed line that replaced a good one, which is kept
    PRIMARY KEY (path, position)
) WITHOUT ROWID;
CREATE INDEX line_job ON line (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX line_malformed ON line (path, position) WHERE problem IS NOT NULL;

CREATE TABLE event (                                 -- a new state of a job, or something else that happened
    id     INTEGER PRIMARY KEY,
    job_id INTEGER NOT NULL,                         -- 0: not about a job
    at     REAL NOT NULL,
    kind   TEXT NOT NULL,
    reason TEXT,                                     -- StateReason as JSON, for a state of a job
    data   TEXT NOT NULL DEFAULT '{}'                -- EventDetails as JSON
);
CREATE INDEX event_job ON event (job_id);

CREATE TABLE measurement (                           -- one row for each attempt that was measured
    id             INTEGER PRIMARY KEY,
    workload_class TEXT NOT NULL,                    -- needs.workload_class_of: [program, llm]
    at             REAL NOT NULL,
    gpu_count      INTEGER NOT NULL,
    peak_mib       INTEGER NOT NULL,                 -- of the GPU on which it was largest
    declared_mib   INTEGER,
    seconds        REAL,
    outcome        TEXT NOT NULL
);
CREATE INDEX measurement_class ON measurement (workload_class, id);

CREATE TRIGGER job_inserted AFTER INSERT ON job BEGIN
    INSERT INTO job_count VALUES (new.state, 1) ON CONFLICT (state) DO UPDATE SET jobs = jobs + 1;
    INSERT INTO event (job_id, at, kind, reason) VALUES (new.id, new.created_at, new.state, new.reason);
END;
CREATE TRIGGER job_moved AFTER UPDATE OF state ON job WHEN new.state <> old.state BEGIN
    UPDATE job_count SET jobs = jobs - 1 WHERE state = old.state;
    INSERT INTO job_count VALUES (new.state, 1) ON CONFLICT (state) DO UPDATE SET jobs = jobs + 1;
END;
