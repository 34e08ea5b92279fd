/*
 * Small files written, listed, read and removed from C: a volume beside files of the host, SQLite and
 * LMDB. scripts/small-files builds and runs it; its output is a table of files per second at the
 * median of the rounds, and the ratio to files of the host in DIR.
 *
 *     small_files FILES SIZE ROUNDS DIR [ANOTHER-DIR...]
 *
 * Each store gets the same files, in directories of 1,000, below a new directory in DIR, and the
 * stores take turns in each round; files of the host are measured in the other directories, too.
 * `durable` is 10 batches of a hundredth of the files, each made durable before the next one.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <lmdb.h>
#include <sqlite3.h>

#include "cairnfs.h"

enum { PER_DIRECTORY = 1000, MOST_ROUNDS = 100, MOST_STORES = 12, STEPS = 5, BATCHES = 10, NAME = 48, PATH = 4096 };

static const char *const steps[STEPS] = {"write", "walk", "read", "remove", "durable"};

static size_t files, size;
static unsigned char *data;
static char *names;

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "small_files: %s: %s\n", what, why);
    exit(1);
}

/* A call of the host: a negative result is a failure. */
static long host(const char *what, long result)
{
    if (result < 0)
        fail(what, strerror(errno));
    return result;
}

static void cairn(int result)
{
    if (result != 0)
        fail("cairnfs", cairnfs_message());
}

static void lmdb(int result)
{
    if (result != 0)
        fail("lmdb", mdb_strerror(result));
}

static sqlite3 *database;

static void sqlite(int result)
{
    if (result != SQLITE_OK && result != SQLITE_DONE && result != SQLITE_ROW)
        fail("sqlite", sqlite3_errmsg(database));
}

/* The path of a file, "d0/f0" and so on. */
static const char *name_of(size_t n)
{
    return names + NAME * n;
}

static const unsigned char *bytes_of(size_t n)
{
    return data + n;
}

static size_t directories(void)
{
    return (files + PER_DIRECTORY - 1) / PER_DIRECTORY;
}

/* What the steps work with: a range of files, and the bytes that were found. */
struct range {
    size_t from, to;
};

static struct range all(void)
{
    return (struct range){0, files};
}

/* Files of the host. */

static void host_prepare(void)
{
    char path[32];

    for (size_t n = 0; n < directories(); n++) {
        snprintf(path, sizeof path, "d%zu", n);
        host(path, mkdir(path, 0755));
    }
}

static void host_put(size_t n, int sync)
{
    int fd = (int)host(name_of(n), open(name_of(n), O_WRONLY | O_CREAT | O_TRUNC, 0644));

    if (host("write", write(fd, bytes_of(n), size)) != (long)size)
        fail("write", "a part only");
    if (sync)
        host("fsync", fsync(fd));
    host("close", close(fd));
}

static size_t host_write(void)
{
    for (size_t n = 0; n < files; n++)
        host_put(n, 0);
    return 0;
}

static size_t host_walk(void)
{
    size_t total = 0;
    char path[32];

    for (size_t n = 0; n < directories(); n++) {
        snprintf(path, sizeof path, "d%zu", n);
        DIR *dir = opendir(path);
        struct dirent *entry;
        struct stat stat;

        if (dir == NULL)
            fail(path, strerror(errno));
        while ((entry = readdir(dir)) != NULL) {
            if (entry->d_name[0] == '.')
                continue;
            host("fstatat", fstatat(dirfd(dir), entry->d_name, &stat, AT_SYMLINK_NOFOLLOW));
            total += (size_t)stat.st_size;
        }
        closedir(dir);
    }
    return total;
}

static size_t host_read(void)
{
    size_t total = 0;
    char *buffer = malloc(size + 1);

    for (size_t n = 0; n < files; n++) {
        int fd = (int)host(name_of(n), open(name_of(n), O_RDONLY));
        total += (size_t)host("read", read(fd, buffer, size + 1));
        close(fd);
    }
    free(buffer);
    return total;
}

static size_t host_remove(void)
{
    for (size_t n = 0; n < files; n++)
        host(name_of(n), unlink(name_of(n)));
    return 0;
}

static void host_sync_directory(size_t n)
{
    char path[32];
    int fd;

    snprintf(path, sizeof path, "d%zu", n);
    fd = (int)host(path, open(path, O_RDONLY | O_DIRECTORY));
    host("fsync", fsync(fd));
    close(fd);
}

static void host_batch(struct range batch)
{
    for (size_t n = batch.from; n < batch.to; n++)
        host_put(n, 1);
    for (size_t n = batch.from / PER_DIRECTORY; n * PER_DIRECTORY < batch.to; n++)
        host_sync_directory(n);
}

static void nothing(void)
{
}

/* A volume. */

static cairnfs_volume volume;

static void cairn_prepare(void)
{
    struct cairnfs_volume_options options = {
        .struct_size = sizeof options,
        .flags = CAIRNFS_CREATE | CAIRNFS_EXCLUSIVE,
        .size = (256 << 20) + 8 * files * (size + 512),
    };
    char path[32];

    cairn(cairnfs_open_volume("volume", &options, &volume));
    for (size_t n = 0; n < directories(); n++) {
        snprintf(path, sizeof path, "d%zu", n);
        cairn(cairnfs_mkdir(volume, path, 0755));
    }
}

static void cairn_put(size_t n)
{
    cairnfs_file file;
    size_t done;

    cairn(cairnfs_open(volume, name_of(n), O_WRONLY | O_CREAT | O_TRUNC, 0644, &file));
    cairn(cairnfs_write(file, (const char *)bytes_of(n), size, &done));
    cairn(cairnfs_close(file));
}

static size_t cairn_write(void)
{
    for (size_t n = 0; n < files; n++)
        cairn_put(n);
    return 0;
}

static size_t cairn_walk(void)
{
    enum { BATCH = 256 };
    static struct cairnfs_dirent entries[BATCH];
    static struct cairnfs_stat stats[BATCH];
    size_t total = 0, count;
    char path[32];
    cairnfs_dir dir;

    entries[0].struct_size = sizeof entries[0];
    stats[0].struct_size = sizeof stats[0];
    for (size_t n = 0; n < directories(); n++) {
        snprintf(path, sizeof path, "d%zu", n);
        cairn(cairnfs_opendir(volume, path, &dir));
        do {
            cairn(cairnfs_readdir(dir, entries, stats, BATCH, &count));
            for (size_t i = 0; i < count; i++)
                total += stats[i].size;
        } while (count != 0);
        cairn(cairnfs_closedir(dir));
    }
    return total;
}

static size_t cairn_read(void)
{
    size_t total = 0, done;
    char *buffer = malloc(size + 1);
    cairnfs_file file;

    for (size_t n = 0; n < files; n++) {
        cairn(cairnfs_open(volume, name_of(n), O_RDONLY, 0, &file));
        cairn(cairnfs_read(file, buffer, size + 1, &done));
        cairn(cairnfs_close(file));
        total += done;
    }
    free(buffer);
    return total;
}

static size_t cairn_remove(void)
{
    for (size_t n = 0; n < files; n++)
        cairn(cairnfs_unlink(volume, name_of(n)));
    return 0;
}

static void cairn_batch(struct range batch)
{
    uint64_t sequence;

    for (size_t n = batch.from; n < batch.to; n++)
        cairn_put(n);
    cairn(cairnfs_sequence(volume, &sequence));
    cairn(cairnfs_sync_through(volume, sequence));
}

static void cairn_close(void)
{
    cairn(cairnfs_close_volume(volume));
}

/* SQLite: a table of names and blobs, a transaction for each step or batch. */

static sqlite3_stmt *statement(const char *text)
{
    sqlite3_stmt *prepared;

    sqlite(sqlite3_prepare_v2(database, text, -1, &prepared, NULL));
    return prepared;
}

static void sqlite_run(const char *text)
{
    sqlite(sqlite3_exec(database, text, NULL, NULL, NULL));
}

static void sqlite_prepare(void)
{
    sqlite(sqlite3_open("database", &database));
    sqlite_run("pragma journal_mode = wal; pragma synchronous = full;"
               "create table f(name text primary key, data blob) without rowid");
}

static void sqlite_bind_name(sqlite3_stmt *prepared, size_t n)
{
    sqlite(sqlite3_reset(prepared));
    sqlite(sqlite3_bind_text(prepared, 1, name_of(n), -1, SQLITE_STATIC));
}

static void sqlite_batch(struct range batch)
{
    sqlite3_stmt *put = statement("insert or replace into f values (?, ?)");

    sqlite_run("begin");
    for (size_t n = batch.from; n < batch.to; n++) {
        sqlite_bind_name(put, n);
        sqlite(sqlite3_bind_blob(put, 2, bytes_of(n), (int)size, SQLITE_STATIC));
        sqlite(sqlite3_step(put));
    }
    sqlite_run("commit");
    sqlite3_finalize(put);
}

static size_t sqlite_write(void)
{
    sqlite_batch(all());
    return 0;
}

static size_t sqlite_walk(void)
{
    sqlite3_stmt *list = statement("select name, length(data) from f");
    size_t total = 0;

    while (sqlite3_step(list) == SQLITE_ROW)
        total += (size_t)sqlite3_column_int64(list, 1);
    sqlite3_finalize(list);
    return total;
}

static size_t sqlite_read(void)
{
    sqlite3_stmt *get = statement("select data from f where name = ?");
    size_t total = 0;

    for (size_t n = 0; n < files; n++) {
        sqlite_bind_name(get, n);
        sqlite(sqlite3_step(get));
        total += (size_t)sqlite3_column_bytes(get, 0);
    }
    sqlite3_finalize(get);
    return total;
}

static size_t sqlite_remove(void)
{
    sqlite3_stmt *gone = statement("delete from f where name = ?");

    sqlite_run("begin");
    for (size_t n = 0; n < files; n++) {
        sqlite_bind_name(gone, n);
        sqlite(sqlite3_step(gone));
    }
    sqlite_run("commit");
    sqlite3_finalize(gone);
    return 0;
}

static void sqlite_close(void)
{
    sqlite(sqlite3_close(database));
}

/* LMDB: names and values, a transaction for each step or batch. */

static MDB_env *environment;
static MDB_dbi table;

static MDB_txn *begin(unsigned int flags)
{
    MDB_txn *txn;

    lmdb(mdb_txn_begin(environment, NULL, flags, &txn));
    return txn;
}

static MDB_val key_of(size_t n)
{
    return (MDB_val){strlen(name_of(n)), (void *)name_of(n)};
}

static void lmdb_prepare(void)
{
    MDB_txn *txn;

    lmdb(mdb_env_create(&environment));
    lmdb(mdb_env_set_mapsize(environment, (256 << 20) + 8 * files * (size + 512)));
    lmdb(mdb_env_open(environment, "lmdb", MDB_NOSUBDIR, 0644));
    txn = begin(0);
    lmdb(mdb_dbi_open(txn, NULL, 0, &table));
    lmdb(mdb_txn_commit(txn));
}

static void lmdb_batch(struct range batch)
{
    MDB_txn *txn = begin(0);

    for (size_t n = batch.from; n < batch.to; n++) {
        MDB_val key = key_of(n), value = {size, (void *)bytes_of(n)};
        lmdb(mdb_put(txn, table, &key, &value, 0));
    }
    lmdb(mdb_txn_commit(txn));
}

static size_t lmdb_write(void)
{
    lmdb_batch(all());
    return 0;
}

static size_t lmdb_walk(void)
{
    MDB_txn *txn = begin(MDB_RDONLY);
    MDB_cursor *cursor;
    MDB_val key, value;
    size_t total = 0;

    lmdb(mdb_cursor_open(txn, table, &cursor));
    while (mdb_cursor_get(cursor, &key, &value, MDB_NEXT) == 0)
        total += value.mv_size;
    mdb_cursor_close(cursor);
    mdb_txn_abort(txn);
    return total;
}

static size_t lmdb_read(void)
{
    MDB_txn *txn = begin(MDB_RDONLY);
    char *buffer = malloc(size);
    size_t total = 0;

    for (size_t n = 0; n < files; n++) {
        MDB_val key = key_of(n), value;
        lmdb(mdb_get(txn, table, &key, &value));
        memcpy(buffer, value.mv_data, value.mv_size);
        total += value.mv_size;
    }
    free(buffer);
    mdb_txn_abort(txn);
    return total;
}

static size_t lmdb_remove(void)
{
    MDB_txn *txn = begin(0);

    for (size_t n = 0; n < files; n++) {
        MDB_val key = key_of(n);
        lmdb(mdb_del(txn, table, &key, NULL));
    }
    lmdb(mdb_txn_commit(txn));
    return 0;
}

static void lmdb_close(void)
{
    mdb_env_close(environment);
}

/* Measuring. */

struct store {
    const char *name;
    void (*prepare)(void);
    size_t (*step[STEPS - 1])(void);
    void (*batch)(struct range);
    void (*close)(void);
    const char *dir;
    double took[STEPS][MOST_ROUNDS];
};

#define HOST {"", host_prepare, {host_write, host_walk, host_read, host_remove}, host_batch, nothing, NULL, {{0}}}

static const struct store kinds[] = {
    HOST,
    {"cairnfs", cairn_prepare, {cairn_write, cairn_walk, cairn_read, cairn_remove}, cairn_batch, cairn_close, NULL, {{0}}},
    {"sqlite3", sqlite_prepare, {sqlite_write, sqlite_walk, sqlite_read, sqlite_remove}, sqlite_batch, sqlite_close, NULL, {{0}}},
    {"lmdb", lmdb_prepare, {lmdb_write, lmdb_walk, lmdb_read, lmdb_remove}, lmdb_batch, lmdb_close, NULL, {{0}}},
};

enum { KINDS = sizeof kinds / sizeof kinds[0] };

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static size_t batch_files(void)
{
    return files / (10 * BATCHES);
}

static void durable(const struct store *store)
{
    size_t step = batch_files();

    for (size_t n = 0; n < BATCHES; n++)
        store->batch((struct range){n * step, (n + 1) * step});
}

static void measure(struct store *store, int round)
{
    char place[PATH], command[PATH + 16];
    double start;

    snprintf(place, sizeof place, "%s/small_files.XXXXXX", store->dir);
    if (mkdtemp(place) == NULL)
        fail(place, strerror(errno));
    host(place, chdir(place));
    store->prepare();
    for (int step = 0; step < STEPS - 1; step++) {
        start = now();
        size_t found = store->step[step]();
        store->took[step][round] = now() - start;
        if ((step == 1 || step == 2) && found != files * size)
            fail(store->name, "not all bytes were found");
    }
    /* What the steps before left is not a part of what is made durable. */
    sync();
    start = now();
    durable(store);
    store->took[STEPS - 1][round] = now() - start;
    store->close();
    host("/", chdir("/"));
    snprintf(command, sizeof command, "rm -rf '%s'", place);
    if (system(command) != 0)
        fail(place, "not removed");
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *took, int rounds)
{
    double sorted[MOST_ROUNDS];

    memcpy(sorted, took, (size_t)rounds * sizeof *took);
    qsort(sorted, (size_t)rounds, sizeof *sorted, by_value);
    return (sorted[(rounds - 1) / 2] + sorted[rounds / 2]) / 2;
}

static void print(const struct store *stores, int count, int rounds)
{
    printf("%zu files of %zu bytes, %d rounds, files/s\n%-24s", files, size, rounds, "store");
    for (int step = 0; step < STEPS; step++)
        printf("%20s", steps[step]);
    for (int n = 0; n < count; n++) {
        printf("\n%-24s", stores[n].name);
        for (int step = 0; step < STEPS; step++) {
            double made = (double)(step == STEPS - 1 ? BATCHES * batch_files() : files);
            double rate = made / median(stores[n].took[step], rounds);
            double base = made / median(stores[0].took[step], rounds);
            printf("%12.0f (%.2f)", rate, rate / base);
        }
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    static struct store stores[MOST_STORES];
    static char labels[MOST_STORES][NAME];
    int count = 0, rounds = argc > 4 ? atoi(argv[3]) : 0;

    if (argc < 5 || argc > 5 + MOST_STORES - KINDS || rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "usage: small_files FILES SIZE ROUNDS DIR [ANOTHER-DIR...]\n");
        return 2;
    }
    files = strtoul(argv[1], NULL, 10);
    size = strtoul(argv[2], NULL, 10);
    if (files < 10 * BATCHES) {
        fprintf(stderr, "small_files: FILES: at least %d\n", 10 * BATCHES);
        return 2;
    }
    data = malloc(files + size);
    names = malloc(NAME * files);
    if (data == NULL || names == NULL)
        fail("files", "too many");
    for (size_t n = 0; n < files + size; n++)
        data[n] = (unsigned char)(n * 2654435761u >> 13);
    for (size_t n = 0; n < files; n++)
        snprintf(names + NAME * n, NAME, "d%zu/f%zu", n / PER_DIRECTORY, n);
    for (int n = 4; n < argc; n++) {
        for (int kind = 0; kind < (n == 4 ? KINDS : 1); kind++, count++) {
            stores[count] = kinds[kind];
            stores[count].dir = argv[n];
            if (kind == 0) {
                const char *name = strrchr(argv[n], '/');
                snprintf(labels[count], NAME, "files in %.30s", name ? name + 1 : argv[n]);
                stores[count].name = labels[count];
            }
        }
    }
    for (int round = 0; round < rounds; round++)
        for (int n = 0; n < count; n++)
            measure(&stores[n], round);
    print(stores, count, rounds);
    return 0;
}
