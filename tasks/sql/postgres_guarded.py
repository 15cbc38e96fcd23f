"""PostgreSQL, guarded: every episode has a database of its own, copied from a template, and a role that can only read.

The server is the user's: its address is in $PALESTRA_POSTGRES (a libpq connection string of a superuser, for example
"host=/run/postgresql user=postgres"). A database is loaded once, as a template named after its contents; each use is
`CREATE DATABASE ... TEMPLATE`. Agents connect as a role of this process that owns nothing and is member of nothing. In
the template, functions that sleep, look at files, settings or other sessions, take locks, run SQL of their own, or
change from run to run are revoked. A statement goes through the extended protocol as a cursor (so it is one, and a
SELECT), in a read-only transaction with a time limit.
"""

from __future__ import annotations

import atexit
import hashlib
import io
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from palestra.tasks.errors import DatabaseError, QueryError, QueryLimitError
from palestra.tasks.sql.backends import NULL, base_tables, bounded, columns_of, write_csv
from palestra.tasks.sql.database import Database, connect
from palestra.tasks.sql.guarded import Limits, Result
from palestra.tasks.sql.text import words

ADDRESS = "PALESTRA_POSTGRES"
_TYPES = {"integer": "BIGINT", "real": "DOUBLE PRECISION", "blob": "BYTEA", "text": "TEXT"}
_BATCH = 256
_MAX_SQL = 20_000
_TURN = 0x70616C65
"""Names the lock under which databases are made; it goes with the connection."""
_FUNCTIONS = """
    pg_sleep pg_sleep_for pg_sleep_until set_config current_setting pg_notify pg_cancel_backend pg_terminate_backend
    pg_stat_get_activity pg_stat_get_backend_activity pg_show_all_settings pg_cursor pg_prepared_statement
    pg_lock_status pg_advisory_lock pg_advisory_lock_shared pg_try_advisory_lock pg_try_advisory_lock_shared
    pg_advisory_xact_lock pg_advisory_xact_lock_shared pg_try_advisory_xact_lock pg_try_advisory_xact_lock_shared
    query_to_xml query_to_xmlschema query_to_xml_and_xmlschema cursor_to_xml cursor_to_xmlschema table_to_xml
    table_to_xmlschema table_to_xml_and_xmlschema schema_to_xml schema_to_xmlschema schema_to_xml_and_xmlschema
    database_to_xml database_to_xmlschema database_to_xml_and_xmlschema ts_stat
    lo_create lo_creat lo_open lo_get lo_put lo_from_bytea lowrite loread lo_unlink lo_import lo_export
    random setseed gen_random_uuid now clock_timestamp statement_timestamp transaction_timestamp timeofday
    txid_current pg_current_xact_id nextval currval lastval setval pg_backend_pid inet_server_addr inet_client_addr
    repeat lpad rpad pg_read_file pg_read_binary_file pg_ls_dir pg_stat_file
"""
_REVOKED = _FUNCTIONS.split()
_WORDS = frozenset(["current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"])
_VIEWS = (
    "pg_stat_activity",
    "pg_settings",
    "pg_file_settings",
    "pg_cursors",
    "pg_prepared_statements",
    "pg_locks",
)
_lock = threading.Lock()
_copies: set[str] = set()
"""Databases of this process that are not dropped yet."""
_role: tuple[str, str] | None = None
"""Name and password of this process's reading role."""


class GuardedPostgres:
    """See `backends.Guarded`. Use from one thread at a time."""

    def __init__(self, database: Database, limits: Limits) -> None:
        """Copy the template. Raises DatabaseError where there is no server, or the data does not go in."""
        self._limits = limits
        self._tables = {name.lower() for name in database.tables}
        self._name = f"palestra_e_{secrets.token_hex(8)}"
        role, password = _reader()
        with _lock, _admin() as admin:
            admin.execute("SELECT pg_advisory_lock(%s)", (_TURN,))  # other processes make templates too
            template = _template(admin, database)
            admin.execute(f'CREATE DATABASE "{self._name}" TEMPLATE "{template}"')
            _copies.add(self._name)
        self._connection: Any = _connect(dbname=self._name, user=role, password=password)

    def query(self, sql: str) -> Result:
        """See `backends.Guarded`."""
        psycopg = _psycopg()
        if len(sql) > _MAX_SQL:
            raise QueryLimitError(
                f"the statement is too long ({len(sql)} characters, {_MAX_SQL} are allowed)"
            )
        if "\x00" in sql:
            raise QueryError("the statement has a null character")
        for word in words(sql):
            if word in _WORDS and word not in self._tables:
                raise QueryError(f"{word} is not allowed")
        connection = self._connection
        try:
            connection.execute("BEGIN READ ONLY")
            connection.execute(f"SET LOCAL statement_timeout = {max(1, int(self._limits.time_s * 1000))}")
            text = f"DECLARE answer NO SCROLL CURSOR FOR {sql.rstrip('; ')}".encode()
            found = connection.pgconn.exec_params(text, None)
            if found.status != psycopg.pq.ExecStatus.COMMAND_OK:
                raise psycopg.errors.lookup(_sqlstate(found))(found.error_message.decode("utf-8", "replace"))
            return self._fetch(connection)
        except (psycopg.Error, UnicodeEncodeError, ValueError) as error:
            raise self._explained(error) from error
        finally:
            if not connection.closed:
                connection.execute("ROLLBACK")

    def close(self) -> None:
        """See `backends.Guarded`."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            with _admin() as admin:
                admin.execute(f'DROP DATABASE IF EXISTS "{self._name}" WITH (FORCE)')
            _copies.discard(self._name)

    def _fetch(self, connection: Any) -> Result:
        first = connection.execute(f"FETCH {_BATCH} FROM answer")
        columns = [column.name for column in first.description]

        def rows() -> Iterator[Any]:
            batch = first.fetchall()
            while batch:
                yield from batch
                batch = connection.execute(f"FETCH {_BATCH} FROM answer").fetchall()

        return bounded(columns, rows(), self._limits)

    def _explained(self, error: Exception) -> QueryError:
        if isinstance(error, _psycopg().errors.QueryCanceled):
            return QueryLimitError(f"the query took too long (it may take {self._limits.time_s:g} s)")
        text = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        return QueryError(text.removeprefix("ERROR:").strip())


def _sqlstate(found: Any) -> str:
    raw = found.error_field(_psycopg().pq.DiagnosticField.SQLSTATE)
    return raw.decode() if raw else "XX000"


def _template(admin: Any, database: Database) -> str:
    """The name of the template with the data of `database`, made if it is not there."""
    name = f"palestra_t_{hashlib.sha256(database.image).hexdigest()[:24]}"
    if (
        admin.execute("SELECT 1 FROM pg_database WHERE datname = %s AND datistemplate", (name,)).fetchone()
        is None
    ):
        admin.execute(f'DROP DATABASE IF EXISTS "{name}"')
        admin.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
        psycopg = _psycopg()
        try:
            with _connect(dbname=name) as fresh:
                _fill(fresh, database)
                _revoke(fresh)
        except psycopg.Error as error:
            raise DatabaseError(f"the database cannot be loaded into PostgreSQL: {error}") from error
        admin.execute(f'ALTER DATABASE "{name}" WITH IS_TEMPLATE true')
    return name


def _fill(fresh: Any, database: Database) -> None:
    with closing(connect(database.image)) as source:
        for table in base_tables(database):
            columns = ", ".join(f"{_name(n)} {_TYPES[kind]}" for n, kind in columns_of(source, table))
            fresh.execute(f"CREATE TABLE {_name(table.name)} ({columns})")
            with fresh.cursor().copy(
                f"COPY {_name(table.name)} FROM STDIN (FORMAT csv, NULL '{NULL}')"
            ) as copy:
                rows = io.StringIO()
                write_csv(source, table, rows, lambda value: "\\x" + value.hex())
                copy.write(rows.getvalue())
            fresh.execute(f"GRANT SELECT ON {_name(table.name)} TO PUBLIC")


def _revoke(fresh: Any) -> None:
    """Take from everybody but superusers what an agent must not call or see."""
    found = fresh.execute(
        "SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace "
        "WHERE n.nspname = 'pg_catalog' AND p.prokind = 'f' AND p.proname = ANY(%s)",
        (_REVOKED,),
    ).fetchall()
    for (signature,) in found:
        fresh.execute(f"REVOKE ALL ON FUNCTION {signature} FROM PUBLIC")
    for view in _VIEWS:
        fresh.execute(f"REVOKE ALL ON pg_catalog.{view} FROM PUBLIC")
    fresh.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
    fresh.execute("GRANT USAGE ON SCHEMA public TO PUBLIC")
    fresh.execute(f'REVOKE TEMPORARY ON DATABASE "{fresh.info.dbname}" FROM PUBLIC')


def _reader() -> tuple[str, str]:
    """Name and password of the reading role of this process, which goes when the process ends."""
    global _role
    with _lock:
        if _role is None:
            name, password = f"palestra_r_{os.getpid()}_{secrets.token_hex(4)}", secrets.token_hex(16)
            with _admin() as admin:
                rights = "LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION"
                admin.execute(f"CREATE ROLE \"{name}\" {rights} PASSWORD '{password}'")
                for setting in (
                    "default_transaction_read_only = on",
                    "work_mem = '64MB'",
                    "temp_file_limit = '256MB'",
                ):
                    admin.execute(f'ALTER ROLE "{name}" SET {setting}')
            atexit.register(_drop_role, name)
            _role = name, password
        return _role


def _drop_role(name: str) -> None:
    try:
        with _admin() as admin:
            for copy in _copies:
                admin.execute(f'DROP DATABASE IF EXISTS "{copy}" WITH (FORCE)')
            admin.execute(f'DROP ROLE IF EXISTS "{name}"')
    except DatabaseError:
        return  # the server is gone, and the role's password with this process


def _admin() -> Any:
    return _connect()


def _connect(**others: str) -> Any:
    """A connection in autocommit. Raises DatabaseError where there is no server, or no address."""
    psycopg = _psycopg()
    address = os.environ.get(ADDRESS)
    if not address:
        raise DatabaseError(
            f"there is no PostgreSQL server: set {ADDRESS} to a superuser's connection string, for example "
            "'host=/run/postgresql user=postgres'"
        )
    try:
        return psycopg.connect(psycopg.conninfo.make_conninfo(address, **others), autocommit=True)
    except psycopg.Error as error:
        raise DatabaseError(f"PostgreSQL at {address!r} cannot be reached: {error}") from error


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise DatabaseError(f"psycopg is not installed: pip install 'palestra[sql]' ({error})") from error
    return psycopg
