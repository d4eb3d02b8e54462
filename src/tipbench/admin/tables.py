"""The tables of people: users, sessions, tokens, failed sign-ins, the audit, who judges blind now."""

TABLES = """
CREATE TABLE IF NOT EXISTS users (
    name TEXT PRIMARY KEY, role TEXT NOT NULL CHECK (role IN ('admin', 'judge', 'viewer')),
    password TEXT NOT NULL, created_ms INTEGER NOT NULL, disabled INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS sessions (
    hash TEXT PRIMARY KEY, user TEXT NOT NULL REFERENCES users (name), expires_ms INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS tokens (
    id TEXT PRIMARY KEY, hash TEXT NOT NULL UNIQUE, user TEXT NOT NULL REFERENCES users (name),
    label TEXT NOT NULL, created_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL, revoked_ms INTEGER
);
CREATE TABLE IF NOT EXISTS failures (key TEXT NOT NULL, at_ms INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS failures_key ON failures (key, at_ms);
CREATE TABLE IF NOT EXISTS audit (
    number INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL,
    subject TEXT NOT NULL, detail TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS blind (
    user TEXT NOT NULL, experiment TEXT NOT NULL, sitting TEXT NOT NULL, expires_ms INTEGER NOT NULL,
    PRIMARY KEY (user, experiment)
);
"""
