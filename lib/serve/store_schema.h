/* store_schema.h - the tables, and how older ones become them */
#ifndef TW_SERVE_STORE_SCHEMA_H
#define TW_SERVE_STORE_SCHEMA_H

#define TW_STORE_VERSION 7

/* step[v] brings a store of version v to v + 1. Times are seconds since 1970. */
static const char *const tw_store_step[TW_STORE_VERSION] = {
    "CREATE TABLE session (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, created REAL NOT NULL,"
    " seen REAL NOT NULL, finished TEXT, detail TEXT, ended REAL, tags TEXT, user_metadata TEXT,"
    " display_name TEXT, project TEXT, sdk TEXT, idem TEXT) WITHOUT ROWID;"
    "CREATE TABLE run (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, session TEXT, created REAL NOT NULL,"
    " used REAL NOT NULL, base TEXT NOT NULL, lora TEXT, user_metadata TEXT, project TEXT, state TEXT NOT NULL,"
    " snap_seq INTEGER NOT NULL, snap TEXT, n INTEGER NOT NULL,"
    " idem TEXT) WITHOUT ROWID;"
    "CREATE TABLE checkpoint (run TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, tenant TEXT NOT NULL,"
    " created REAL NOT NULL, bytes INTEGER NOT NULL, public INTEGER NOT NULL, expires REAL,"
    " user_metadata TEXT, base TEXT NOT NULL, lora TEXT, optimizer INTEGER NOT NULL, n INTEGER NOT NULL,"
    " PRIMARY KEY (run, kind, name)) WITHOUT ROWID;"
    "CREATE TABLE sampler (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, session TEXT NOT NULL,"
    " created REAL NOT NULL, base TEXT NOT NULL, path TEXT, run TEXT, inflight INTEGER NOT NULL,"
    " clones INTEGER NOT NULL, n INTEGER NOT NULL) WITHOUT ROWID;"
    /* The journal, and the results: state 0 accepted, 1 done, 2 failed. seq -1: no number. */
    "CREATE TABLE request (n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL,"
    " kind INTEGER NOT NULL, session TEXT, target TEXT, seq INTEGER NOT NULL, dedup TEXT UNIQUE, type TEXT,"
    " body BLOB, digest TEXT, state INTEGER NOT NULL, created REAL NOT NULL, done REAL, json BLOB, proto BLOB,"
    " reply TEXT);"
    "CREATE INDEX request_open ON request (state, n);"
    "CREATE INDEX request_target ON request (target, seq);"
    "CREATE TABLE audit (n INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, tenant TEXT NOT NULL,"
    " event TEXT NOT NULL, detail TEXT);"
    "CREATE TABLE secret (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;",
    /* The curves of runs. */
    "CREATE TABLE point (run TEXT NOT NULL, name TEXT NOT NULL, step INTEGER NOT NULL, time REAL NOT NULL,"
    " value REAL NOT NULL, PRIMARY KEY (run, name, step)) WITHOUT ROWID;",
    /* What the sampler recorded: data are the tokens, then their log-probabilities. */
    "CREATE TABLE taken (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, session TEXT NOT NULL, used REAL NOT NULL,"
    " temp REAL NOT NULL, data BLOB NOT NULL) WITHOUT ROWID;"
    "CREATE INDEX taken_used ON taken (used);",
    /* Bodies apart: a row whose state changes is written again as a whole. coded: as a zstd frame. */
    "CREATE TABLE body (n INTEGER PRIMARY KEY, coded INTEGER NOT NULL, body BLOB NOT NULL);"
    "INSERT INTO body SELECT n, 0, body FROM request WHERE body NOT NULL;"
    "ALTER TABLE request DROP COLUMN body;"
    "CREATE TRIGGER request_gone AFTER DELETE ON request BEGIN DELETE FROM body WHERE n = old.n; END;",
    /* What clients of the native API set of their runs. */
    "CREATE TABLE native (run TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (run, name))"
    " WITHOUT ROWID;",
    /* coded + 2: body is a number, the length of the file journal/n, which holds it. */
    "CREATE TRIGGER body_gone AFTER DELETE ON body WHEN old.coded > 1 BEGIN SELECT body_gone(old.n); END;",
    /* Datasets and the like of the native API: the calls that made them, and where their loops are. */
    "CREATE TABLE object (n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL,"
    " session TEXT, type INTEGER NOT NULL, at TEXT, ended INTEGER NOT NULL DEFAULT 0);"
    "CREATE TABLE object_call (n INTEGER PRIMARY KEY AUTOINCREMENT, object TEXT NOT NULL, fn TEXT NOT NULL,"
    " body BLOB NOT NULL);"
    "CREATE INDEX object_calls ON object_call (object);"
};

#endif
