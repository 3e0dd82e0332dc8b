#!/bin/sh -e
# make_pgdata.sh TAR: a PostgreSQL data directory with pgbench's tables at scale 4, as an archive that any user can
# unpack; PostgreSQL refuses root and wants to own its data. Nothing is synced: the data live for one run.
[ -s "$1" ] && exit
as=
directory=$(mktemp -d)
if [ "$(id -u)" = 0 ]; then
    as="setpriv --reuid=postgres --regid=$(id -g postgres) --clear-groups"
    chown postgres "$directory"
fi
trap 'rm -rf "$directory"' EXIT
cd "$directory"
$as initdb -D data -U bench -A trust --wal-segsize=1 -N > initdb.log
cat >> data/postgresql.conf <<END
fsync = off
synchronous_commit = off
full_page_writes = off
autovacuum = off
max_wal_size = 256MB
checkpoint_timeout = 1h
END
$as pg_ctl -D data -o "-k $directory -h '' -c min_wal_size=2MB -c max_wal_size=4MB" -l server.log -w -s start
$as createdb -h "$directory" -U bench bench
$as pgbench -h "$directory" -U bench -i -q -s 4 bench 2> pgbench.log
$as psql -h "$directory" -U bench -q -c checkpoint bench
$as pg_ctl -D data -w -s -m fast stop
tar cf "$1.new" data
mv "$1.new" "$1"
