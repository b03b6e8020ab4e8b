PRAGMA application_id = 1196446576;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE allocation (                            -- part of each GPU that is allocated to an attempt, and its use
    attempt_id     INTEGER NOT NULL REFERENCES attempt (id),
    ordinal        INTEGER NOT NULL,                 -- 0, 1, … in the order of the attempt's GPUs
    gpu            TEXT NOT NULL,
    share          INTEGER NOT NULL,                 -- thousandths of the GPU; 0: no share
    vram           INTEGER,                          -- MiB; NULL: not declared
    whole          INTEGER NOT NULL,                 -- 1: no other job may use the GPU
    budget_mib     INTEGER,                          -- memory declared or learned; NULL: none, or the GPU's size is unknown
    baseline_mib   INTEGER,                          -- unattributed memory when the attempt started
    peak_mib       INTEGER,
    load_sum       REAL NOT NULL DEFAULT 0,          -- sum of load_samples samples, in percent
    load_samples   INTEGER NOT NULL DEFAULT 0,
    overuse_logged INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (attempt_id, ordinal)
) WITHOUT ROWID;
INSERT INTO "allocation" VALUES(1,0,'U0',500,NULL,0,12288,NULL,NULL,0.0,0,0);
INSERT INTO "allocation" VALUES(2,0,'U1',0,9000,0,9000,100,9500,80.0,1,1);
INSERT INTO "allocation" VALUES(2,1,'U0',0,9000,0,9000,NULL,NULL,20.0,1,0);
CREATE TABLE attempt (
    id                   INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id               INTEGER NOT NULL REFERENCES job (id),
    number               INTEGER NOT NULL,           -- 1, 2, … within its job
    token                TEXT NOT NULL UNIQUE,
    boot_id              TEXT NOT NULL,
    state                TEXT NOT NULL,              -- AttemptState
    executor             TEXT NOT NULL,              -- name of the executor that launches the attempt
    learned              INTEGER NOT NULL DEFAULT 0, -- 1: its vram was learned from its workload class
    assumed              INTEGER NOT NULL DEFAULT 0, -- 1: its share and vram are defaults; none were declared
    launch_count         INTEGER NOT NULL DEFAULT 1,
    launch_deadline_boot REAL NOT NULL,
    launch_error         TEXT,
    runner_pid           INTEGER,                    -- pid of the runner, known once its claim was observed
    runner_start_ticks   INTEGER,                    -- start of the runner, in kernel ticks since boot
    stopping_boot        REAL,
    signalled_boot       REAL,
    swept_boot           REAL,
    runner_died_boot     REAL,
    released_boot        REAL,
    measured_boot        REAL,                       -- time of the newest sample in its allocations
    outcome              TEXT,                       -- NULL while the attempt is open
    exit_code            INTEGER,
    signal               INTEGER,
    reason               TEXT,                       -- StateReason as JSON
    survivors            TEXT NOT NULL DEFAULT '[]', -- JSON list of pids
    log                  TEXT,
    session              TEXT,
    window_closed        INTEGER NOT NULL DEFAULT 0, -- 1: the closing of its Screen window was reported
    created_at           REAL NOT NULL,
    started_at           REAL,
    ended_at             REAL,
    UNIQUE (job_id, number)
);
INSERT INTO "attempt" VALUES(1,1,1,'a34ab33c48e6321199e67abaee4a203d','boot','closed','direct',0,0,1,1010.0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1000.0,NULL,'failed',3,NULL,'{"kind": "command_failed"}','[]',NULL,NULL,0,1700000000.0,NULL,1700000000.0);
INSERT INTO "attempt" VALUES(2,2,1,'d6c757f56f61d8428305085a30412e63','boot','running','direct',0,0,1,1010.0,NULL,4711,99,NULL,NULL,NULL,NULL,NULL,1000.0,NULL,NULL,NULL,NULL,'[]',NULL,NULL,0,1700000000.0,1700000000.0,NULL);
CREATE TABLE event (                                 -- a job's change to a new state, or another event
    id     INTEGER PRIMARY KEY,
    job_id INTEGER NOT NULL,                         -- 0: the event is not about a job
    at     REAL NOT NULL,
    kind   TEXT NOT NULL,
    reason TEXT,                                     -- StateReason as JSON if kind is a state of a job
    data   TEXT NOT NULL DEFAULT '{}'                -- EventDetails as JSON
);
INSERT INTO "event" VALUES(1,1,1700000000.0,'queued',NULL,'{}');
INSERT INTO "event" VALUES(2,2,1700000000.0,'queued',NULL,'{}');
INSERT INTO "event" VALUES(3,3,1700000000.0,'queued',NULL,'{}');
INSERT INTO "event" VALUES(4,1,1700000000.0,'starting',NULL,'{"attempt": 1, "gpus": [0], "share": 500, "vram": null, "exclusive": false, "learned": false, "assumed": false}');
INSERT INTO "event" VALUES(5,1,1700000000.0,'finished','{"kind": "command_failed"}','{"attempt": 1, "outcome": "failed", "exit_code": 3, "signal": null, "seconds": null, "gpus": [0], "peaks": [null], "declared": null, "budgets": [12288], "share": 500, "load": null, "log": null, "survivors": [], "learned": false, "min_vram": null}');
INSERT INTO "event" VALUES(6,2,1700000000.0,'starting',NULL,'{"attempt": 1, "gpus": [1, 0], "share": 0, "vram": 9000, "exclusive": false, "learned": false, "assumed": false}');
INSERT INTO "event" VALUES(7,2,1700000000.0,'running',NULL,'{}');
INSERT INTO "event" VALUES(8,2,1700000000.0,'exceeded',NULL,'{"attempt": 1, "gpu": 1, "observed": 9500, "declared": 9000, "share": null}');
INSERT INTO "event" VALUES(9,2,1700000000.0,'misplaced_process',NULL,'{"attempt": 1, "gpu": -1, "pid": 78, "allocated": [1, 0]}');
INSERT INTO "event" VALUES(10,0,1700000000.0,'paused',NULL,'{"gpus": [0], "cause": "state_file_edited"}');
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
    processes         TEXT,                          -- JSON list of [pid, MiB, graphics only]; NULL: not available
    loads             TEXT NOT NULL DEFAULT '[]',    -- JSON list of the last loads in percent, newest last
    foreign_peaks     TEXT NOT NULL DEFAULT '[]',    -- JSON list of [pid, start, peak MiB] of foreign processes
    foreign_loads     TEXT NOT NULL DEFAULT '[]',    -- JSON list of the last foreign loads, in percent or null
    foreign_load_boot REAL                           -- time of the newest sample in foreign_loads
) WITHOUT ROWID;
INSERT INTO "gpu" VALUES('U0',0,'card',24576,1,1,600,50.0,NULL,1700000000.0,'[[77, 500, false]]','[50.0]','[]','[]',NULL);
INSERT INTO "gpu" VALUES('U1',1,'card',24576,1,0,600,50.0,NULL,1700000000.0,'[[77, 500, false]]','[50.0]','[]','[]',NULL);
CREATE TABLE job (
    id                  INTEGER PRIMARY KEY AUTOINCREMENT,
    source              TEXT NOT NULL,              -- 'file:PATH' or the name of the front end
    kind                TEXT NOT NULL,
    identity            TEXT NOT NULL,
    name                TEXT,
    text                TEXT NOT NULL,
    spec                TEXT NOT NULL,              -- JobSpec as JSON
    spec_key            TEXT NOT NULL,              -- ResourceSpec.key(); jobs with the same key wait for the same thing
    priority            INTEGER NOT NULL,
    position            INTEGER NOT NULL,           -- rank in the queue among the jobs with the same priority
    state               TEXT NOT NULL,
    outcome             TEXT,
    exit_code           INTEGER,
    signal              INTEGER,
    reason              TEXT,                       -- StateReason as JSON
    held_by             TEXT,                       -- 'user', 'line', or the outcome that caused the hold
    cancel_cause        TEXT,                       -- cause of a pending cancellation
    cancel_grace_s      REAL,
    launch_failures     INTEGER NOT NULL DEFAULT 0,
    not_before_boot     REAL,
    boot_id             TEXT,                       -- boot in which not_before_boot applies
    source_missing      INTEGER NOT NULL DEFAULT 0, -- 1: the state of its line keeps the job from starting
    line_wait           TEXT,                       -- why source_missing is set; WaitReason as JSON
    bypassed_at         REAL,                       -- when a job behind it was first started before it
    min_vram_mib        INTEGER,                    -- memory that it needs, raised after an OOM
    oom_retries_used    INTEGER NOT NULL DEFAULT 0,
    fail_retries_used   INTEGER NOT NULL DEFAULT 0,
    created_at          REAL NOT NULL,
    finished_at         REAL
);
INSERT INTO "job" VALUES(1,'cli','command','8343d9dd9069b2736d48849db1c5b95c',NULL,'exit 3','{"kind": "command", "text": "exit 3", "cwd": "/", "command": "exit 3"}','[null, null, null, true, null]',200,1,'finished','failed',3,NULL,'{"kind": "command_failed"}',NULL,NULL,NULL,0,NULL,'boot',0,NULL,NULL,NULL,0,0,1700000000.0,1700000000.0);
INSERT INTO "job" VALUES(2,'cli','command','9711e5a1b3f27d55e37afe71f7d8b450','bert','python a.py','{"kind": "command", "text": "python a.py", "cwd": "/", "command": "python a.py", "name": "bert", "vram": 9000}','[null, null, null, true, null, 9000, false, null]',200,2,'running',NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,0,NULL,NULL,NULL,0,0,1700000000.0,NULL);
INSERT INTO "job" VALUES(3,'cli','command','dfa52aa3ca40002b638aee5eb8efdd04',NULL,'true','{"kind": "command", "text": "true", "cwd": "/", "command": "true"}','[null, null, null, true, null]',200,3,'queued',NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,0,NULL,NULL,NULL,0,0,1700000000.0,NULL);
CREATE TABLE job_count (                            -- number of jobs in each state
    state TEXT PRIMARY KEY,
    jobs  INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO "job_count" VALUES('finished',1);
INSERT INTO "job_count" VALUES('queued',1);
INSERT INTO "job_count" VALUES('running',1);
INSERT INTO "job_count" VALUES('starting',0);
CREATE TABLE jobs_file (
    path     TEXT PRIMARY KEY,
    cwd      TEXT NOT NULL,                          -- working directory of its lines, set when the file was first read
    problem  TEXT                                    -- why the file cannot be read now; NULL if it can
) WITHOUT ROWID;
CREATE TABLE line (                                  -- lines in the last reading of each jobs file
    path          TEXT NOT NULL REFERENCES jobs_file (path),
    position      INTEGER NOT NULL,                  -- order of the lines; there are gaps between positions
    number        INTEGER NOT NULL,                  -- line number in the file
    identity      TEXT,
    kind          TEXT,
    text          TEXT NOT NULL,
    raw           TEXT NOT NULL DEFAULT '',
    attributes    TEXT NOT NULL DEFAULT '{}',
    job_id        INTEGER,
    problem       TEXT,                              -- why the line is malformed; NULL if it is not
    accepted_form TEXT,                              -- a form of the line that would be accepted
    is_typo       INTEGER NOT NULL DEFAULT 0,        -- 1: a malformed line that replaced a good one, whose job is kept
    PRIMARY KEY (path, position)
) WITHOUT ROWID;
CREATE TABLE measurement (                           -- one row for each measured attempt
    id             INTEGER PRIMARY KEY,
    workload_class TEXT NOT NULL,                    -- [program, llm] as JSON, from needs.workload_class_of
    at             REAL NOT NULL,
    gpu_count      INTEGER NOT NULL,
    peak_mib       INTEGER NOT NULL,                 -- highest peak on any of the attempt's GPUs
    declared_mib   INTEGER,
    seconds        REAL,
    outcome        TEXT NOT NULL
);
CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE misplaced_process (                     -- reported processes outside their attempt's allocation
    attempt_id INTEGER NOT NULL REFERENCES attempt (id),
    gpu        TEXT NOT NULL,
    pid        INTEGER NOT NULL,
    PRIMARY KEY (attempt_id, gpu)
) WITHOUT ROWID;
INSERT INTO "misplaced_process" VALUES(2,'U2',78);
CREATE TABLE pending_group (                         -- why the queued jobs with the same spec_key wait
    spec_key TEXT PRIMARY KEY,
    reason   TEXT NOT NULL                           -- WaitReason as JSON
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
INSERT INTO "request" VALUES(1,'cancel','2','{"grace_s": 5.0}','cli',1.79538197067796516416e+09,NULL,NULL);
CREATE INDEX job_queue ON job (spec_key, source_missing, priority, position, id) WHERE state = 'queued';
CREATE INDEX job_open ON job (state, priority, position, id) WHERE state <> 'finished';
CREATE INDEX job_identity ON job (identity, id);
CREATE INDEX job_finished ON job (finished_at) WHERE state = 'finished';
CREATE INDEX job_source_missing ON job (id) WHERE source_missing;
CREATE INDEX job_retry ON job (not_before_boot) WHERE state = 'queued' AND not_before_boot IS NOT NULL;
CREATE INDEX job_unsuccessful ON job (outcome) WHERE state = 'finished' AND outcome <> 'completed';
CREATE INDEX attempt_active ON attempt (job_id) WHERE state <> 'closed';
CREATE INDEX request_open ON request (id) WHERE answered_at IS NULL;
CREATE INDEX line_job ON line (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX line_malformed ON line (path, position) WHERE problem IS NOT NULL;
CREATE INDEX event_job ON event (job_id);
CREATE INDEX measurement_class ON measurement (workload_class, id);
CREATE TRIGGER job_inserted AFTER INSERT ON job BEGIN
    INSERT INTO job_count VALUES (new.state, 1) ON CONFLICT (state) DO UPDATE SET jobs = jobs + 1;
    INSERT INTO event (job_id, at, kind, reason) VALUES (new.id, new.created_at, new.state, new.reason);
END;
CREATE TRIGGER job_moved AFTER UPDATE OF state ON job WHEN new.state <> old.state BEGIN
    UPDATE job_count SET jobs = jobs - 1 WHERE state = old.state;
    INSERT INTO job_count VALUES (new.state, 1) ON CONFLICT (state) DO UPDATE SET jobs = jobs + 1;
END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('job',3);
INSERT INTO "sqlite_sequence" VALUES('attempt',2);
INSERT INTO "sqlite_sequence" VALUES('request',1);
COMMIT;
