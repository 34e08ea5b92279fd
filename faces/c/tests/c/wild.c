/* Random calls with random arguments: handles that were never opened, lengths of any size, null
 * pointers, flags without a meaning. Each must return; a sanitizer watches. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <unistd.h>

#include "check.h"

static uint64_t state;
static int succeeded;

static uint64_t any(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 8) % below;
}

/* The first are of volumes, the others of files and listings, open or closed. */
enum { VOLUMES = 4, HANDLES = 24 };
static uint64_t handles[HANDLES];

/* A handle of any kind, or any number. */
static uint64_t handle(void)
{
    switch (any(4)) {
    case 0:
        return any(1000);
    case 1:
        return handles[any(HANDLES)] ^ (uint64_t)1 << any(64);
    default:
        return handles[any(HANDLES)];
    }
}

/* Mostly an open volume. */
static cairnfs_volume volume(void)
{
    return any(16) == 0 ? handle() : handles[any(VOLUMES)];
}

/* Mostly a file or listing, open or closed. */
static uint64_t opened(void)
{
    return any(16) == 0 ? handle() : handles[VOLUMES + any(HANDLES - VOLUMES)];
}

/* A place for a new handle; what was there is closed, so that not all handles are used up. */
static uint64_t *place(void)
{
    uint64_t *at = &handles[VOLUMES + any(HANDLES - VOLUMES)];
    if (any(8) == 0)
        return NULL;
    if (any(8) != 0 && cairnfs_close(*at) != 0) {
        if (cairnfs_closedir(*at) != 0)
            cairnfs_close_report(*at);
    }
    return at;
}

/* A place for a new volume. */
static uint64_t *place_of_volume(void)
{
    uint64_t *at = &handles[any(VOLUMES)];
    cairnfs_close_volume(*at);
    return at;
}

static const char *path(void)
{
    static const char *const paths[] = {
        NULL, "",  "/",      ".",      "..",   "a",      "b",        "a/b",
        "d",  "d/", "d/../d", "d/e/f/", "link", "link/x", "\xff\n\x01", "d/e",
    };
    return paths[any(sizeof paths / sizeof paths[0])];
}

static const char *root_name(void)
{
    static const char *const names[] = {NULL, "", "main", "a", "b", "main@a", "main@-1d", "\xff", "d"};
    return names[any(sizeof names / sizeof names[0])];
}

static const char *attribute(void)
{
    static const char *const names[] = {NULL, "", "user.a", "user.", "wild.b", "system.posix_acl_access"};
    return names[any(sizeof names / sizeof names[0])];
}

/* A number at or beside a limit. */
static uint64_t number(void)
{
    static const uint64_t edges[] = {0, 1, 4096, 1 << 20, INT32_MAX, INT64_MAX, UINT64_MAX};
    return edges[any(sizeof edges / sizeof edges[0])] + any(3) - 1;
}

static char bytes[8192];

/* A length that fits the buffer, or one that no buffer has. */
static size_t length(void)
{
    return any(8) == 0 ? SIZE_MAX - any(9) : any(sizeof bytes);
}

static void *buffer(size_t bytes_used)
{
    return bytes_used <= sizeof bytes && any(8) != 0 ? bytes : NULL;
}

/* A place for a branch, beside volumes that stay open. */
static uint64_t *another_volume(void)
{
    uint64_t *at = &handles[VOLUMES - 1];
    cairnfs_close_volume(*at);
    return at;
}

/* Opens a volume with any options; the sizes are those that are refused, or small. */
static int open_any(void)
{
    struct cairnfs_volume_options options = {
        .struct_size = any(4) == 0 ? (uint32_t)any(64) : sizeof options,
        .flags = any(4) == 0 ? (uint32_t)number() : (uint32_t)any(128),
        .size = any(2) == 0 ? 16 << 20 : number(),
        .cache_budget = number(),
        .durability_interval_ms = (int64_t)number(),
        .uid = (uint32_t)number(),
        .label = path(),
        .root = any(2) == 0 ? NULL : path(),
    };
    return cairnfs_open_volume(any(2) == 0 ? NULL : "wild", &options, place_of_volume());
}

/* Publishes anything; arrays of paths are short, or have a length that no array has. */
static int publish_any(uint64_t *report)
{
    const char *some[2] = {path(), path()};
    struct cairnfs_publish_options options = {
        .struct_size = any(4) == 0 ? (uint32_t)any(128) : sizeof options,
        .flags = (uint32_t)any(3),
        .onto = any(2) == 0 ? NULL : path(),
        .ours = any(4) == 0 ? NULL : some,
        .ours_count = any(8) == 0 ? SIZE_MAX / (1 + any(9)) : any(3),
        .theirs = some,
        .theirs_count = any(3),
    };
    struct cairnfs_published published = {.struct_size = sizeof published};
    /* The size that is read, not more than there is. */
    if (options.struct_size > sizeof options)
        options.struct_size = sizeof options;
    return cairnfs_publish(volume(), root_name(), any(4) == 0 ? NULL : &options, &published, report);
}

/* Takes the next entries of anything, with any buffer. */
static int next_any(void)
{
    struct cairnfs_change change = {.struct_size = sizeof change};
    struct cairnfs_conflict conflict = {.struct_size = sizeof conflict};
    size_t len = length();
    int result = cairnfs_next_change(opened(), &change, buffer(len), len);
    return result ? cairnfs_next_conflict(opened(), &conflict, buffer(len), len) : 0;
}

/* Sends to a file, and receives what is there then: a stream or nothing; or uses a descriptor that is
 * none. */
static int stream_any(void)
{
    static FILE *stream;
    int fd, sent;

    if (stream == NULL)
        CHECK((stream = tmpfile()) != NULL);
    fd = any(4) == 0 ? (int)any(2) * 1000 - 1 : fileno(stream);
    CHECK(ftruncate(fileno(stream), 0) == 0 && lseek(fileno(stream), 0, SEEK_SET) == 0);
    sent = cairnfs_send(volume(), root_name(), any(2) == 0 ? NULL : root_name(), fd);
    CHECK(sent >= 0 && sent < 4096 && sent != EIO);
    CHECK(lseek(fileno(stream), 0, SEEK_SET) == 0);
    return cairnfs_receive(volume(), fd, path(), any(2) == 0 ? NULL : bytes);
}

static void step(void)
{
    struct cairnfs_stat stats[4] = {{.struct_size = any(4) == 0 ? (uint32_t)number() : sizeof *stats}};
    struct cairnfs_dirent entries[4] = {{.struct_size = sizeof *entries}};
    struct cairnfs_statfs space = {.struct_size = sizeof space};
    struct cairnfs_root roots[4] = {{.struct_size = sizeof *roots}};
    struct cairnfs_timespec times[2] = {{(int64_t)number(), (int64_t)any(1u << 31)}, {0, 0}};
    size_t done, len = length();
    uint64_t given;
    int result = 0, flag;

    /* A size that would lead beyond the array. */
    if (stats[0].struct_size > sizeof stats)
        stats[0].struct_size = any(2) == 0 ? 0 : UINT32_MAX;
    /* Large files cost time: offsets near the limit, not in between. */
    switch (any(72)) {
    case 0: result = cairnfs_open(volume(), path(), (int)any(1u << 22), (uint32_t)any(UINT32_MAX), place()); break;
    case 1:
    case 2: result = cairnfs_open(volume(), path(), O_RDWR | O_CREAT, 0644, place()); break;
    case 3: result = cairnfs_close(opened()); break;
    case 4: result = cairnfs_read(opened(), buffer(len), len, &done); break;
    case 5: result = cairnfs_write(opened(), buffer(len), len, &done); break;
    case 6: result = cairnfs_pread(opened(), buffer(len), len, number(), &done); break;
    case 7: result = cairnfs_pwrite(opened(), buffer(len), len, number(), &done); break;
    case 8: result = cairnfs_lseek(opened(), (int64_t)number(), (int)any(7) - 1, &given); break;
    case 9: result = cairnfs_fsync(opened()); break;
    case 10: result = cairnfs_fdatasync(opened()); break;
    case 11: result = cairnfs_ftruncate(opened(), number()); break;
    case 12: result = cairnfs_truncate(volume(), path(), number()); break;
    case 13: result = cairnfs_fallocate(opened(), (int)any(64), number(), any(1 << 20)); break;
    case 14: result = cairnfs_copy_file(volume(), path(), path()); break;
    case 15: result = cairnfs_opendir(volume(), path(), place()); break;
    case 16: result = cairnfs_readdir(opened(), entries, any(2) == 0 ? stats : NULL, stats[0].struct_size == sizeof *stats ? any(5) : 1, &done); break;
    case 17: result = cairnfs_closedir(opened()); break;
    case 18: result = cairnfs_mkdir(volume(), path(), (uint32_t)any(UINT32_MAX)); break;
    case 19: result = cairnfs_mkdir_all(volume(), path()); break;
    case 20: result = cairnfs_mknod(volume(), path(), (uint32_t)any(UINT32_MAX), number()); break;
    case 21: result = cairnfs_rmdir(volume(), path()); break;
    case 22: result = cairnfs_unlink(volume(), path()); break;
    case 23: result = cairnfs_remove_all(volume(), path()); break;
    case 24: result = cairnfs_rename(volume(), path(), path(), (uint32_t)any(5)); break;
    case 25: result = cairnfs_link(volume(), path(), path()); break;
    case 26: result = cairnfs_link_file(opened(), volume(), path()); break;
    case 27: result = cairnfs_symlink(volume(), path(), path()); break;
    case 28: result = cairnfs_readlink(volume(), path(), buffer(len), len, &done); break;
    case 29: result = cairnfs_realpath(volume(), path(), buffer(len), len, &done); break;
    case 30: result = cairnfs_tmpfile(volume(), path(), place()); break;
    case 31: result = cairnfs_stat(volume(), path(), (int)any(2), stats); break;
    case 32: result = cairnfs_fstat(opened(), stats); break;
    case 33: result = cairnfs_chmod(volume(), path(), (uint32_t)number()); break;
    case 34: result = cairnfs_chown(volume(), path(), (uint32_t)number(), 0, (int)any(2)); break;
    case 35: result = cairnfs_set_flags(volume(), path(), (uint32_t)number()); break;
    case 36: result = cairnfs_utimens(volume(), path(), any(4) == 0 ? NULL : times, (int)any(2)); break;
    case 37: result = cairnfs_getxattr(volume(), path(), attribute(), buffer(len), len, &done); break;
    case 38: result = cairnfs_setxattr(volume(), path(), attribute(), buffer(len), len, (uint32_t)any(4)); break;
    case 39: result = cairnfs_listxattr(volume(), path(), buffer(len), len, &done); break;
    case 40: result = cairnfs_removexattr(volume(), path(), attribute()); break;
    case 41: result = cairnfs_sync_through(volume(), number()); break;
    case 42: result = cairnfs_is_durable(volume(), number(), &flag); break;
    case 43: result = cairnfs_statfs(volume(), &space); break;
    case 44: result = cairnfs_roots(volume(), roots, any(5), &done); break;
    case 45: result = cairnfs_sync_files(volume(), handles, len <= 8 ? len : SIZE_MAX - len % 9); break;
    case 46: result = any(20) == 0 ? cairnfs_snapshot(volume(), path()) : 0; break;
    case 47:
        if (any(50) == 0) {
            result = cairnfs_close_volume(volume());
        } else if (any(20) == 0) {
            *place_of_volume() = new_volume();
        }
        break;
    case 48: result = cairnfs_copy_range(opened(), number(), opened(), number(), any(1 << 16), &given); break;
    case 49: result = cairnfs_sync_dir(volume(), path()); break;
    case 50: result = any(2) == 0 ? cairnfs_sync(volume()) : cairnfs_sequence(volume(), &given); break;
    case 51: result = cairnfs_fchmod(opened(), (uint32_t)number()); break;
    case 52: result = cairnfs_fchown(opened(), (uint32_t)number(), (uint32_t)number()); break;
    case 53: result = cairnfs_futimens(opened(), any(4) == 0 ? NULL : times); break;
    case 54: result = cairnfs_fgetxattr(opened(), attribute(), buffer(len), len, &done); break;
    case 55: result = cairnfs_fsetxattr(opened(), attribute(), buffer(len), len, (uint32_t)any(4)); break;
    case 56: result = cairnfs_flistxattr(opened(), buffer(len), len, &done); break;
    case 57: result = cairnfs_fremovexattr(opened(), attribute()); break;
    case 58: result = any(20) == 0 ? cairnfs_trim(volume(), &given) : 0; break;
    case 60: result = any(8) == 0 ? cairnfs_branch(volume(), path(), another_volume()) : 0; break;
    case 61: result = any(8) == 0 ? cairnfs_open_branch(volume(), path(), another_volume()) : 0; break;
    case 59: result = any(20) == 0 ? open_any() : 0; break;
    case 62: result = any(8) == 0 ? cairnfs_diff(volume(), root_name(), root_name(), (uint32_t)any(3), place()) : 0; break;
    case 63: result = next_any(); break;
    case 64: result = cairnfs_close_report(opened()); break;
    case 65: result = any(8) == 0 ? publish_any(any(4) == 0 ? NULL : place()) : 0; break;
    case 66: result = any(8) == 0 ? cairnfs_restore(volume(), root_name(), root_name(), NULL, any(2), any(2) == 0 ? NULL : bytes) : 0; break;
    case 67: result = any(8) == 0 ? cairnfs_drop_root(volume(), root_name()) : 0; break;
    case 68: result = any(8) == 0 ? cairnfs_free_drops(volume(), (int64_t)any(3) - 1, NULL) : 0; break;
    case 69: result = any(8) == 0 ? stream_any() : 0; break;
    case 70: result = cairnfs_find_root(volume(), root_name(), roots); break;
    case 71: result = any(8) == 0 ? cairnfs_space_of(volume(), (uint32_t)number(), &given) : 0; break;
    }
    /* EIO would be a panic or damage. */
    CHECK(result >= 0 && result < 4096 && result != EIO);
    succeeded += result == 0;
}

int main(void)
{
    const char *more = getenv("CAIRNFS_WILD_ROUNDS"), *seed = getenv("CAIRNFS_WILD_SEED");
    int rounds = more ? atoi(more) : 20000;

    state = seed ? strtoull(seed, NULL, 10) : 20261123;
    if (state == 0)
        state = 1;
    if (more || seed)
        fprintf(stderr, "CAIRNFS_WILD_ROUNDS=%d CAIRNFS_WILD_SEED=%llu\n", rounds, (unsigned long long)state);
    for (int n = 0; n < VOLUMES; n++)
        handles[n] = new_volume();
    for (int round = 0; round < rounds; round++)
        step();
    for (int n = 0; n < HANDLES; n++) {
        int result = cairnfs_close_volume(handles[n]);
        CHECK(result == 0 || result == EBADF);
    }
    /* A good part of the calls has done something. */
    CHECK(rounds < 1000 || succeeded > rounds / 10);
    return 0;
}
