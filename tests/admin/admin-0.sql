BEGIN TRANSACTION;
CREATE TABLE airflow_runs (
    job TEXT PRIMARY KEY REFERENCES jobs (id), conf TEXT NOT NULL
);
CREATE TABLE audit (
    number INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL,
    subject TEXT NOT NULL, detail TEXT NOT NULL
);
INSERT INTO "audit" VALUES(1,1795007901518,'test','user.create','ada','{"role": "admin"}');
INSERT INTO "audit" VALUES(2,1795007901634,'test','token.create','061f56b4f881','{"label": "ci", "days": 366, "user": "ada"}');
CREATE TABLE blind (
    user TEXT NOT NULL, experiment TEXT NOT NULL, sitting TEXT NOT NULL, expires_ms INTEGER NOT NULL,
    PRIMARY KEY (user, experiment)
);
CREATE TABLE deliveries (
    id TEXT NOT NULL, url TEXT NOT NULL, kind TEXT NOT NULL, at_ms INTEGER NOT NULL, body TEXT NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0, next_ms INTEGER NOT NULL, done_ms INTEGER,
    problem TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (id, url)
);
CREATE TABLE failures (key TEXT NOT NULL, at_ms INTEGER NOT NULL);
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL,
    experiment TEXT NOT NULL, by TEXT NOT NULL, steps TEXT NOT NULL, step INTEGER NOT NULL DEFAULT 0,
    state TEXT NOT NULL, created_ms INTEGER NOT NULL, started_ms INTEGER, ended_ms INTEGER, cancel_ms INTEGER,
    "group" INTEGER, exit_code INTEGER, message TEXT NOT NULL DEFAULT '', repeat_key TEXT, request TEXT,
    UNIQUE (by, repeat_key)
);
INSERT INTO "jobs" VALUES(1,'job-that-waits','pipeline','e','ada','[{"name": "wait", "arguments": [], "passing": [0]}]',0,'waiting',1795007901771,NULL,NULL,NULL,NULL,NULL,'',NULL,'');
INSERT INTO "jobs" VALUES(2,'job-nobody-would-end','pipeline','e','ada','[{"name": "wait", "arguments": [], "passing": [0]}]',0,'waiting',1795007901786,NULL,NULL,1,NULL,NULL,'',NULL,'');
CREATE TABLE judging_waits (
    job TEXT PRIMARY KEY REFERENCES jobs (id), candidates INTEGER NOT NULL
);
CREATE TABLE sessions (
    hash TEXT PRIMARY KEY, user TEXT NOT NULL REFERENCES users (name), expires_ms INTEGER NOT NULL
);
CREATE TABLE tokens (
    id TEXT PRIMARY KEY, hash TEXT NOT NULL UNIQUE, user TEXT NOT NULL REFERENCES users (name),
    label TEXT NOT NULL, created_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL, revoked_ms INTEGER
);
INSERT INTO "tokens" VALUES('061f56b4f881','070564e920a0df8710e61fd7a6defb239b27fdff6c2076e5506792bcd8d26e07','ada','ci',1795007901634,32503680000000,NULL);
CREATE TABLE users (
    name TEXT PRIMARY KEY, role TEXT NOT NULL CHECK (role IN ('admin', 'judge', 'viewer')),
    password TEXT NOT NULL, created_ms INTEGER NOT NULL, disabled INTEGER NOT NULL DEFAULT 0
);
INSERT INTO "users" VALUES('ada','admin','$argon2id$v=19$m=19456,t=2,p=1$isY3nfdO729hnLMVIX+G8w$kjt8R99O+e4jl7PHA9rtjHlyGCInegMM84562zJT6ik',1795007901518,0);
CREATE INDEX jobs_alive ON jobs (state) WHERE state IN ('queued', 'running', 'waiting');
CREATE INDEX deliveries_open ON deliveries (next_ms) WHERE done_ms IS NULL;
CREATE INDEX failures_key ON failures (key, at_ms);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('audit',2);
INSERT INTO "sqlite_sequence" VALUES('jobs',2);
COMMIT;
