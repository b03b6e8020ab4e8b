BEGIN TRANSACTION;
CREATE TABLE attempt (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id          INTEGER NOT NULL REFERENCES job (id),
    number          INTEGER NOT NULL,           -- 1, 2, … of its job
    token           TEXT NOT NULL UNIQUE,
    boot_id         TEXT NOT NULL,
    gpus            TEXT NOT NULL,              -- JSON list of UUIDs
    share           INTEGER NOT NULL,           -- thousandths of each of them
    baseline        TEXT NOT NULL,              -- JSON {UUID: MiB} that nobody accounted for at its start
    launches        INTEGER NOT NULL DEFAULT 1,
    deadline_boot   REAL NOT NULL,
    launch_error    TEXT,
    stopping_boot   REAL,
    signalled_boot  REAL,
    swept_boot      REAL,
    dead_boot       REAL,
    released_boot   REAL,                       -- NULL: it still holds its GPUs
    settled         INTEGER NOT NULL DEFAULT 0, -- 1: ended, released, and its memory is back
    outcome         TEXT,                       -- NULL: open
    exit_code       INTEGER,
    signal          INTEGER,
    reason          TEXT,
    survivors       TEXT NOT NULL DEFAULT '[]',
    log             TEXT,
    session         TEXT,
    created_at      REAL NOT NULL,
    started_at      REAL,
    ended_at        REAL, strays TEXT NOT NULL DEFAULT '[]', vram INTEGER, learned INTEGER NOT NULL DEFAULT 0, whole INTEGER NOT NULL DEFAULT 0, peaks TEXT NOT NULL DEFAULT '{}', loads TEXT NOT NULL DEFAULT '{}', measured_boot REAL, exceeded TEXT NOT NULL DEFAULT '[]', budgets TEXT NOT NULL DEFAULT '{}', window_closed INTEGER NOT NULL DEFAULT 0,
    UNIQUE (job_id, number)
);
CREATE TABLE gpu (
    uuid         TEXT PRIMARY KEY,
    idx          INTEGER NOT NULL,
    name         TEXT NOT NULL,
    total_mib    INTEGER,
    managed      INTEGER NOT NULL DEFAULT 1,
    paused       INTEGER NOT NULL DEFAULT 0,
    used_mib     INTEGER,
    load_percent REAL,
    fault        TEXT,
    sampled_at   REAL
, processes TEXT, loads TEXT NOT NULL DEFAULT '[]', held TEXT NOT NULL DEFAULT '[]', foreign_loads TEXT NOT NULL DEFAULT '[]', foreign_load_at REAL) WITHOUT ROWID;
CREATE TABLE history (
    job_id INTEGER NOT NULL,
    at     REAL NOT NULL,
    state  TEXT NOT NULL,
    reason TEXT
, data TEXT NOT NULL DEFAULT '{}');
INSERT INTO "history" VALUES(1,1.0,'held',NULL,'{}');
CREATE TABLE job (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    source          TEXT NOT NULL,              -- 'file:PATH' or the front end's name
    kind            TEXT NOT NULL,
    identity        TEXT NOT NULL,
    name            TEXT,
    text            TEXT NOT NULL,
    spec            TEXT NOT NULL,              -- JobSpec as JSON
    ask             TEXT NOT NULL,              -- Ask.key(): jobs of one ask wait for the same thing
    priority        INTEGER NOT NULL,
    place           INTEGER NOT NULL,
    state           TEXT NOT NULL,
    outcome         TEXT,
    exit_code       INTEGER,
    signal          INTEGER,
    reason          TEXT,
    held_by         TEXT,                       -- 'user', 'line', or the outcome that holds it
    cancel_cause    TEXT,                       -- an open cancel or preempt
    cancel_grace_s  REAL,
    launch_failures INTEGER NOT NULL DEFAULT 0,
    not_before_boot REAL,
    boot_id         TEXT,                       -- of not_before_boot
    gone            INTEGER NOT NULL DEFAULT 0, -- its line is not in the jobs file as it stands
    passed_at       REAL,                       -- since when jobs behind it are started before it
    created_at      REAL NOT NULL,
    finished_at     REAL
, raised_mib INTEGER, oom_used INTEGER NOT NULL DEFAULT 0, fail_used INTEGER NOT NULL DEFAULT 0, line_wait TEXT);
INSERT INTO "job" VALUES(1,'cli','command','dfa52aa3ca40002b638aee5eb8efdd04',NULL,'true','{"kind": "command", "text": "true", "cwd": "/", "command": "true"}','[null, null, null, true, null]',0,1,'held',NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,0,NULL,1.0,NULL,NULL,0,0,NULL);
CREATE TABLE jobs_file (
    path     TEXT PRIMARY KEY,
    cwd      TEXT NOT NULL,                     -- working folder of its lines, recorded when first read
    problem  TEXT                               -- why it cannot be read now
) WITHOUT ROWID;
CREATE TABLE line (
    path       TEXT NOT NULL REFERENCES jobs_file (path),
    position   INTEGER NOT NULL,                -- 0, 1, … in the last reading
    number     INTEGER NOT NULL,                -- line number in the file
    identity   TEXT,
    kind       TEXT,
    text       TEXT NOT NULL,
    raw        TEXT NOT NULL DEFAULT '',
    attributes TEXT NOT NULL DEFAULT '{}',
    job_id     INTEGER,
    problem    TEXT,                            -- why it is malformed
    accepted   TEXT,                            -- and what would be accepted
    fresh      INTEGER NOT NULL DEFAULT 0,      -- malformed since other lines went: holds their removal up
    PRIMARY KEY (path, position)
) WITHOUT ROWID;
CREATE TABLE measured (                                               -- one row per attempt that was measured
    id           INTEGER PRIMARY KEY,
    family       TEXT NOT NULL,                                       -- needs.family_of: [program, llm]
    at           REAL NOT NULL,
    gpus         INTEGER NOT NULL,
    peak_mib     INTEGER NOT NULL,                                    -- the largest of its GPUs'
    declared_mib INTEGER,
    seconds      REAL,
    outcome      TEXT NOT NULL
);
CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE tally (                            -- how many jobs are in each state
    state TEXT PRIMARY KEY,
    jobs  INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO "tally" VALUES('held',1);
CREATE TABLE waiting (
    ask        TEXT PRIMARY KEY,
    reason     TEXT NOT NULL,
    infeasible INTEGER NOT NULL
, need TEXT) WITHOUT ROWID;
CREATE TABLE wish (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    verb    TEXT NOT NULL,
    target  TEXT NOT NULL,
    args    TEXT NOT NULL DEFAULT '{}',
    by      TEXT NOT NULL,
    made_at REAL NOT NULL,
    done_at REAL,
    answer  TEXT
);
CREATE INDEX job_identity ON job (identity, id);
CREATE INDEX job_finished ON job (finished_at) WHERE state = 'finished';
CREATE INDEX attempt_unsettled ON attempt (job_id) WHERE settled = 0;
CREATE INDEX wish_open ON wish (id) WHERE done_at IS NULL;
CREATE INDEX line_job ON line (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX history_job ON history (job_id);
CREATE INDEX job_open ON job (state, priority, place, id) WHERE state <> 'finished';
CREATE INDEX job_queue ON job (ask, gone, priority, place, id) WHERE state = 'queued';
CREATE INDEX job_gone ON job (id) WHERE gone;
CREATE INDEX job_retry ON job (not_before_boot) WHERE state = 'queued' AND not_before_boot IS NOT NULL;
CREATE INDEX line_malformed ON line (path, position) WHERE problem IS NOT NULL;
CREATE TRIGGER job_moved AFTER UPDATE OF state ON job WHEN new.state <> old.state BEGIN
    UPDATE tally SET jobs = jobs - 1 WHERE state = old.state;
    INSERT INTO tally VALUES (new.state, 1) ON CONFLICT (state) DO UPDATE SET jobs = jobs + 1;
END;
CREATE INDEX measured_family ON measured (family, id);
CREATE TRIGGER job_inserted AFTER INSERT ON job BEGIN
    INSERT INTO tally VALUES (new.state, 1) ON CONFLICT (state) DO UPDATE SET jobs = jobs + 1;
    INSERT INTO history VALUES (new.id, new.created_at, new.state, new.reason, '{}');
END;
CREATE INDEX job_unsuccessful ON job (outcome) WHERE state = 'finished' AND outcome <> 'completed';
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('job',1);
COMMIT;
PRAGMA user_version = 9;
