/* Every call, with its result and its failures. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

static struct cairnfs_stat stat_of(cairnfs_volume volume, const char *path)
{
    struct cairnfs_stat stat = {.struct_size = sizeof stat};
    OK(cairnfs_stat(volume, path, 0, &stat));
    return stat;
}

static void make(cairnfs_volume volume, const char *path, const char *text)
{
    cairnfs_file file;
    size_t done;
    OK(cairnfs_open(volume, path, O_WRONLY | O_CREAT | O_TRUNC, 0644, &file));
    OK(cairnfs_write(file, text, strlen(text), &done));
    CHECK(done == strlen(text));
    OK(cairnfs_close(file));
}

static void contents(void)
{
    cairnfs_volume volume = new_volume();
    cairnfs_file file, other;
    size_t done;
    uint64_t at;
    char buffer[64];
    struct cairnfs_stat stat = {.struct_size = sizeof stat};

    FAILS(ENOENT, cairnfs_open(volume, "f", O_RDONLY, 0, &file));
    CHECK(strcmp(cairnfs_message(), "f: no such file or directory") == 0);
    FAILS(EINVAL, cairnfs_open(volume, "f", O_RDONLY | O_CREAT, 0644, &file));
    FAILS(EINVAL, cairnfs_open(volume, "f", 3, 0644, &file));
    FAILS(EINVAL, cairnfs_open(volume, "f", O_RDONLY | O_PATH, 0644, &file));
    OK(cairnfs_open(volume, "f", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0640, &file));
    FAILS(EEXIST, cairnfs_open(volume, "f", O_RDWR | O_CREAT | O_EXCL, 0640, &other));
    FAILS(ENOTDIR, cairnfs_open(volume, "f", O_RDONLY | O_DIRECTORY, 0, &other));
    OK(cairnfs_write(file, "hello, world", 12, &done));
    CHECK(done == 12);
    OK(cairnfs_pwrite(file, "HELLO", 5, 0, &done));
    CHECK(done == 5);
    OK(cairnfs_lseek(file, -5, SEEK_END, &at));
    CHECK(at == 7);
    OK(cairnfs_read(file, buffer, sizeof buffer, &done));
    CHECK(done == 5 && memcmp(buffer, "world", 5) == 0);
    OK(cairnfs_read(file, buffer, sizeof buffer, &done));
    CHECK(done == 0);
    OK(cairnfs_pread(file, buffer, 5, 0, &done));
    CHECK(done == 5 && memcmp(buffer, "HELLO", 5) == 0);
    OK(cairnfs_read(file, NULL, 0, &done));
    OK(cairnfs_lseek(file, 0, SEEK_SET, NULL));
    FAILS(EINVAL, cairnfs_lseek(file, -1, SEEK_SET, NULL));
    FAILS(EINVAL, cairnfs_lseek(file, 0, 77, NULL));
    OK(cairnfs_fstat(file, &stat));
    CHECK(stat.size == 12 && stat.mode == (S_IFREG | 0640) && stat.nlink == 1);

    OK(cairnfs_ftruncate(file, 1 << 20));
    OK(cairnfs_lseek(file, 0, SEEK_HOLE, &at));
    CHECK(at > 0 && at <= 4096);
    FAILS(ENXIO, cairnfs_lseek(file, 1 << 19, SEEK_DATA, &at));
    OK(cairnfs_truncate(volume, "f", 5));
    CHECK(stat_of(volume, "f").size == 5);
    OK(cairnfs_fallocate(file, FALLOC_FL_KEEP_SIZE, 0, 1 << 20));
    CHECK(stat_of(volume, "f").size == 5 && stat_of(volume, "f").blocks == 2048);
    OK(cairnfs_fallocate(file, 0, 0, 1 << 20));
    CHECK(stat_of(volume, "f").size == 1 << 20);
    OK(cairnfs_fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1 << 20));
    CHECK(stat_of(volume, "f").blocks == 0);
    OK(cairnfs_fallocate(file, FALLOC_FL_ZERO_RANGE, 1 << 20, 8192));
    CHECK(stat_of(volume, "f").size == (1 << 20) + 8192);
    FAILS(EOPNOTSUPP, cairnfs_fallocate(file, FALLOC_FL_PUNCH_HOLE, 0, 1));
    FAILS(EOPNOTSUPP, cairnfs_fallocate(file, FALLOC_FL_COLLAPSE_RANGE, 0, 4096));
    OK(cairnfs_fdatasync(file));
    OK(cairnfs_fsync(file));
    OK(cairnfs_close(file));
    FAILS(EBADF, cairnfs_close(file));

    FAILS(EINVAL, cairnfs_open(volume, "f", O_WRONLY | O_APPEND | O_TRUNC, 0, &file));
    OK(cairnfs_open(volume, "g", O_WRONLY | O_APPEND | O_CREAT | O_DSYNC, 0600, &file));
    OK(cairnfs_open(volume, "g", O_RDONLY | O_SYNC, 0, &other));
    OK(cairnfs_write(file, "ab", 2, &done));
    OK(cairnfs_write(file, "cd", 2, &done));
    FAILS(EBADF, cairnfs_read(file, buffer, 1, &done));
    FAILS(EBADF, cairnfs_write(other, "x", 1, &done));
    OK(cairnfs_read(other, buffer, sizeof buffer, &done));
    CHECK(done == 4 && memcmp(buffer, "abcd", 4) == 0);
    OK(cairnfs_copy_file(volume, "g", "h"));
    CHECK(stat_of(volume, "h").size == 4);
    FAILS(EBADF, cairnfs_copy_range(file, 0, other, 0, 1, &at));
    OK(cairnfs_copy_range(other, 1, file, 4, 100, &at));
    CHECK(at == 3 && stat_of(volume, "g").size == 7);
    cairnfs_file both[] = {file, other};
    OK(cairnfs_sync_files(volume, both, 2));
    OK(cairnfs_sync_files(volume, NULL, 0));
    OK(cairnfs_close(other));
    FAILS(EBADF, cairnfs_sync_files(volume, both, 2));
    OK(cairnfs_close(file));

    OK(cairnfs_tmpfile(volume, "/", &file));
    OK(cairnfs_write(file, "whole", 5, &done));
    OK(cairnfs_link_file(volume, file, "linked"));
    FAILS(EEXIST, cairnfs_link_file(volume, file, "linked"));
    OK(cairnfs_close(file));
    CHECK(stat_of(volume, "linked").size == 5);
    OK(cairnfs_close_volume(volume));
}

static void names(void)
{
    cairnfs_volume volume = new_volume();
    char buffer[64];
    size_t length;

    OK(cairnfs_mkdir(volume, "d", 0700));
    CHECK(stat_of(volume, "d").mode == (S_IFDIR | 0700));
    FAILS(EEXIST, cairnfs_mkdir(volume, "d", 0700));
    OK(cairnfs_mkdir_all(volume, "a/b/c"));
    OK(cairnfs_mkdir_all(volume, "a/b/c"));
    make(volume, "d/f", "text");
    FAILS(ENOTEMPTY, cairnfs_rmdir(volume, "d"));
    OK(cairnfs_link(volume, "d/f", "d/g"));
    CHECK(stat_of(volume, "d/f").nlink == 2);
    FAILS(EEXIST, cairnfs_rename(volume, "d", "a", CAIRNFS_RENAME_NOREPLACE));
    OK(cairnfs_rename(volume, "d/f", "a/b/c/f", 0));
    OK(cairnfs_rename(volume, "d", "a", CAIRNFS_RENAME_EXCHANGE));
    CHECK(stat_of(volume, "d/b/c/f").size == 4);
    FAILS(EINVAL, cairnfs_rename(volume, "d", "a", 8));
    FAILS(EINVAL, cairnfs_rename(volume, "d", "d/b/x", 0));
    OK(cairnfs_symlink(volume, "d/b/../b/c", "link"));
    OK(cairnfs_readlink(volume, "link", NULL, 0, &length));
    CHECK(length == 10);
    FAILS(ERANGE, cairnfs_readlink(volume, "link", buffer, 9, &length));
    CHECK(length == 10);
    OK(cairnfs_readlink(volume, "link", buffer, sizeof buffer, &length));
    CHECK(memcmp(buffer, "d/b/../b/c", 10) == 0);
    FAILS(EINVAL, cairnfs_readlink(volume, "d", buffer, sizeof buffer, &length));
    OK(cairnfs_realpath(volume, "link/f", buffer, sizeof buffer, &length));
    CHECK(length == 8 && memcmp(buffer, "/d/b/c/f", 8) == 0);
    OK(cairnfs_mknod(volume, "pipe", S_IFIFO | 0600, 0));
    CHECK(stat_of(volume, "pipe").mode == (S_IFIFO | 0600));
    /* Names are bytes, not text. */
    make(volume, "\xff\xfe", "x");
    OK(cairnfs_unlink(volume, "\xff\xfe"));
    FAILS(ENOENT, cairnfs_unlink(volume, ""));
    FAILS(EISDIR, cairnfs_unlink(volume, "d"));
    FAILS(ENOTDIR, cairnfs_rmdir(volume, "pipe"));
    OK(cairnfs_remove_all(volume, "d"));
    FAILS(ENOENT, cairnfs_remove_all(volume, "d"));
    OK(cairnfs_sync_dir(volume, "a"));
    FAILS(ENOTDIR, cairnfs_sync_dir(volume, "pipe"));
    FAILS(ENOTEMPTY, cairnfs_rmdir(volume, "a"));
    OK(cairnfs_close_volume(volume));
}

static void attributes(void)
{
    cairnfs_volume volume = new_volume();
    cairnfs_file file;
    struct cairnfs_stat stat;
    struct cairnfs_timespec times[2] = {{1, 5}, {-3, 999999999}};
    char value[16], list[64];
    size_t length;

    make(volume, "f", "text");
    OK(cairnfs_symlink(volume, "f", "link"));
    OK(cairnfs_open(volume, "f", O_RDWR, 0, &file));
    OK(cairnfs_chmod(volume, "link", 04711));
    CHECK(stat_of(volume, "f").mode == (S_IFREG | 04711));
    OK(cairnfs_fchmod(file, 0600));
    OK(cairnfs_chown(volume, "link", 5, CAIRNFS_KEEP, 1));
    OK(cairnfs_chown(volume, "link", 6, 7, 0));
    CHECK(stat_of(volume, "f").uid == 5 && stat_of(volume, "link").uid == 6);
    OK(cairnfs_fchown(file, CAIRNFS_KEEP, 9));
    CHECK(stat_of(volume, "f").uid == 5 && stat_of(volume, "f").gid == 9);
    OK(cairnfs_utimens(volume, "link", times, 1));
    stat = stat_of(volume, "f");
    CHECK(stat.atime.sec == 1 && stat.atime.nsec == 5);
    CHECK(stat.mtime.sec == -3 && stat.mtime.nsec == 999999999);
    times[0].nsec = UTIME_OMIT;
    times[1].nsec = UTIME_NOW;
    OK(cairnfs_futimens(file, times));
    stat = stat_of(volume, "f");
    CHECK(stat.atime.sec == 1 && stat.mtime.sec > 1700000000);
    OK(cairnfs_utimens(volume, "f", NULL, 1));
    CHECK(stat_of(volume, "f").atime.sec > 1700000000);
    times[0].nsec = 1000000000;
    FAILS(EINVAL, cairnfs_utimens(volume, "f", times, 1));
    times[0].nsec = 0;
    OK(cairnfs_utimens(volume, "link", times, 0));
    CHECK(stat_of(volume, "link").atime.sec == 1);
    OK(cairnfs_set_flags(volume, "f", 0x20));
    FAILS(EPERM, cairnfs_unlink(volume, "f"));
    CHECK(stat_of(volume, "f").flags == 0x20);
    OK(cairnfs_set_flags(volume, "f", 0));
    FAILS(EOPNOTSUPP, cairnfs_set_flags(volume, "f", 1u << 31));

    FAILS(ENODATA, cairnfs_getxattr(volume, "f", "user.a", value, sizeof value, &length));
    OK(cairnfs_setxattr(volume, "f", "user.a", "12345", 5, 0));
    FAILS(EEXIST, cairnfs_setxattr(volume, "f", "user.a", "1", 1, CAIRNFS_XATTR_CREATE));
    FAILS(ENODATA, cairnfs_fsetxattr(file, "user.b", "1", 1, CAIRNFS_XATTR_REPLACE));
    FAILS(EINVAL, cairnfs_fsetxattr(file, "user.b", "1", 1, 3));
    OK(cairnfs_fsetxattr(file, "user.empty", NULL, 0, 0));
    OK(cairnfs_getxattr(volume, "f", "user.a", NULL, 0, &length));
    CHECK(length == 5);
    FAILS(ERANGE, cairnfs_fgetxattr(file, "user.a", value, 4, &length));
    OK(cairnfs_fgetxattr(file, "user.a", value, sizeof value, &length));
    CHECK(length == 5 && memcmp(value, "12345", 5) == 0);
    OK(cairnfs_listxattr(volume, "f", list, sizeof list, &length));
    CHECK(length == 18);
    OK(cairnfs_flistxattr(file, list, sizeof list, &length));
    CHECK(length == 18 && list[length - 1] == '\0');
    OK(cairnfs_removexattr(volume, "f", "user.a"));
    FAILS(ENODATA, cairnfs_fremovexattr(file, "user.a"));
    OK(cairnfs_fremovexattr(file, "user.empty"));
    OK(cairnfs_close(file));
    OK(cairnfs_close_volume(volume));
}

static void listings(void)
{
    cairnfs_volume volume = new_volume();
    cairnfs_dir dir;
    size_t count, total = 0;
    char name[16];
    struct cairnfs_dirent entries[64];
    struct cairnfs_stat stats[64];

    for (int n = 0; n < 1000; n++) {
        snprintf(name, sizeof name, "%d", n);
        make(volume, name, name);
    }
    FAILS(ENOTDIR, cairnfs_opendir(volume, "1", &dir));
    OK(cairnfs_opendir(volume, "/", &dir));
    entries[0].struct_size = sizeof entries[0];
    stats[0].struct_size = sizeof stats[0];
    do {
        OK(cairnfs_readdir(dir, entries, stats, 64, &count));
        for (size_t at = 0; at < count; at++) {
            snprintf(name, sizeof name, "%zu", total + at);
            CHECK(strcmp(entries[at].name, name) == 0);
            CHECK(entries[at].name_len == strlen(name));
            CHECK(entries[at].mode == S_IFREG && stats[at].ino == entries[at].ino);
            CHECK(stats[at].size == strlen(name));
        }
        total += count;
    } while (count > 0);
    CHECK(total == 1000);
    FAILS(EINVAL, cairnfs_readdir(dir, entries, NULL, 0, &count));
    OK(cairnfs_closedir(dir));
    FAILS(EBADF, cairnfs_readdir(dir, entries, NULL, 1, &count));

    /* An entry that is removed after it was read ahead has no attributes. */
    OK(cairnfs_opendir(volume, "/", &dir));
    OK(cairnfs_readdir(dir, entries, NULL, 1, &count));
    OK(cairnfs_unlink(volume, "1"));
    OK(cairnfs_readdir(dir, entries, stats, 1, &count));
    CHECK(count == 1 && strcmp(entries[0].name, "2") == 0);
    OK(cairnfs_closedir(dir));
    OK(cairnfs_close_volume(volume));
}

static void volumes(void)
{
    struct cairnfs_volume_options options = {
        .struct_size = sizeof options,
        .flags = CAIRNFS_CREATE | CAIRNFS_EXCLUSIVE | CAIRNFS_OWNER,
        .size = 64 << 20,
        .cache_budget = 32 << 20,
        .durability_interval_ms = -1,
        .uid = 11,
        .gid = 12,
        .label = "of C",
    };
    cairnfs_volume volume, other;
    struct cairnfs_statfs space = {.struct_size = sizeof space};
    struct cairnfs_root roots[4];
    uint64_t sequence, discarded;
    size_t count;
    int durable;

    FAILS(ENOENT, cairnfs_open_volume("missing", NULL, &volume));
    OK(cairnfs_open_volume("volume", &options, &volume));
    FAILS(EEXIST, cairnfs_open_volume("volume", &options, &other));
    FAILS(EBUSY, cairnfs_open_volume("volume", NULL, &other));
    make(volume, "f", "before");
    CHECK(stat_of(volume, "f").uid == 11 && stat_of(volume, "f").gid == 12);
    OK(cairnfs_sequence(volume, &sequence));
    OK(cairnfs_is_durable(volume, sequence, &durable));
    CHECK(durable == 0);
    OK(cairnfs_sync_through(volume, sequence));
    OK(cairnfs_is_durable(volume, sequence, &durable));
    CHECK(durable == 1);
    OK(cairnfs_sync_through(volume, UINT64_MAX));
    OK(cairnfs_sync(volume));
    OK(cairnfs_statfs(volume, &space));
    CHECK(space.block_size == 4096 && space.available_blocks > 1000 && space.name_max == 255);
    OK(cairnfs_snapshot(volume, "monday"));
    FAILS(EEXIST, cairnfs_snapshot(volume, "monday"));
    FAILS(EILSEQ, cairnfs_snapshot(volume, "\xff"));
    OK(cairnfs_roots(volume, NULL, 0, &count));
    CHECK(count == 2);
    roots[0].struct_size = sizeof roots[0];
    FAILS(ERANGE, cairnfs_roots(volume, roots, 1, &count));
    OK(cairnfs_roots(volume, roots, 4, &count));
    CHECK(count == 2 && strcmp(roots[1].name, "monday") == 0 && roots[1].name_len == 6);
    CHECK(roots[0].writable == 1 && roots[1].writable == 0);
    make(volume, "f", "after that");
    int trimmed = cairnfs_trim(volume, &discarded);
    CHECK(trimmed == 0 || trimmed == EOPNOTSUPP);
    OK(cairnfs_close_volume(volume));
    FAILS(EBADF, cairnfs_close_volume(volume));
    FAILS(EBADF, cairnfs_sync(volume));

    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.flags = CAIRNFS_READ_ONLY;
    options.root = "monday";
    OK(cairnfs_open_volume("volume", &options, &volume));
    CHECK(stat_of(volume, "f").size == 6);
    FAILS(EROFS, cairnfs_unlink(volume, "f"));
    OK(cairnfs_close_volume(volume));
    options.root = "tuesday";
    FAILS(ENOENT, cairnfs_open_volume("volume", &options, &volume));
    CHECK(strstr(cairnfs_message(), "tuesday") != NULL);
    options.root = NULL;
    options.flags = 1u << 31;
    FAILS(EINVAL, cairnfs_open_volume("volume", &options, &volume));
    options.flags = CAIRNFS_EXCLUSIVE;
    FAILS(EINVAL, cairnfs_open_volume("volume", &options, &volume));
    options.flags = CAIRNFS_IN_MEMORY;
    FAILS(EINVAL, cairnfs_open_volume("volume", &options, &volume));
    FAILS(EINVAL, cairnfs_open_volume(NULL, &options, &volume));
}

static void branches(void)
{
    cairnfs_volume volume = new_volume(), trial, again, monday, below;
    cairnfs_file file;
    size_t done;

    make(volume, "f", "before");
    OK(cairnfs_snapshot(volume, "monday"));
    OK(cairnfs_branch(volume, "trial", &trial));
    make(trial, "f", "in the branch");
    CHECK(stat_of(volume, "f").size == 6 && stat_of(trial, "f").size == 13);
    OK(cairnfs_open_branch(volume, "trial", &again));
    CHECK(again != trial && stat_of(again, "f").size == 13);
    OK(cairnfs_open_branch(trial, "monday", &monday));
    FAILS(EROFS, cairnfs_unlink(monday, "f"));
    FAILS(EEXIST, cairnfs_branch(monday, "trial", &below));
    OK(cairnfs_branch(monday, "below", &below));
    FAILS(ENOENT, cairnfs_open_branch(volume, "missing", &below));
    FAILS(EILSEQ, cairnfs_branch(volume, "\xff", &below));
    OK(cairnfs_rename_root(volume, "below", "above"));
    FAILS(ENOENT, cairnfs_rename_root(volume, "below", "above"));

    /* The end of a branch's handle is not that of the volume, nor of its other handles. */
    OK(cairnfs_open(trial, "f", O_RDWR, 0, &file));
    FAILS(EINVAL, cairnfs_link_file(volume, file, "g"));
    OK(cairnfs_close_volume(trial));
    FAILS(EBADF, cairnfs_write(file, "x", 1, &done));
    OK(cairnfs_close(file));
    CHECK(stat_of(again, "f").size == 13 && stat_of(volume, "f").size == 6);
    OK(cairnfs_open(again, "f", O_RDWR, 0, &file));
    OK(cairnfs_close_volume(volume));
    FAILS(EBADF, cairnfs_write(file, "x", 1, &done));
    FAILS(EBADF, cairnfs_sync(again));
    FAILS(EBADF, cairnfs_sync(below));
    OK(cairnfs_close(file));
    OK(cairnfs_close_volume(again));
    OK(cairnfs_close_volume(monday));
    OK(cairnfs_close_volume(below));
}

/* Handles after their end, of another kind, and null pointers. */
static void misuse(void)
{
    cairnfs_volume volume = new_volume(), other = new_volume();
    cairnfs_file file, again;
    cairnfs_dir dir;
    struct cairnfs_stat stat = {.struct_size = sizeof stat};
    struct cairnfs_dirent entry = {.struct_size = sizeof entry};
    size_t done;
    char byte;

    OK(cairnfs_open(volume, "f", O_RDWR | O_CREAT, 0644, &file));
    OK(cairnfs_opendir(volume, "/", &dir));
    FAILS(EBADF, cairnfs_read(volume, &byte, 1, &done));
    FAILS(EBADF, cairnfs_close(dir));
    FAILS(EBADF, cairnfs_closedir(file));
    FAILS(EBADF, cairnfs_close_volume(file));
    FAILS(EBADF, cairnfs_sync(0));
    FAILS(EBADF, cairnfs_sync(UINT64_MAX));
    FAILS(EINVAL, cairnfs_link_file(other, file, "f"));
    OK(cairnfs_close(file));
    OK(cairnfs_open(volume, "f", O_RDWR, 0, &again));
    FAILS(EBADF, cairnfs_fstat(file, &stat));

    FAILS(EFAULT, cairnfs_open(volume, NULL, O_RDWR, 0, &file));
    FAILS(EFAULT, cairnfs_open(volume, "g", O_RDWR | O_CREAT, 0, NULL));
    FAILS(ENOENT, cairnfs_stat(volume, "g", 1, &stat));
    FAILS(EFAULT, cairnfs_read(again, NULL, 1, &done));
    FAILS(EFAULT, cairnfs_read(again, &byte, 1, NULL));
    FAILS(EFAULT, cairnfs_write(again, NULL, 1, &done));
    FAILS(EINVAL, cairnfs_read(again, &byte, SIZE_MAX, &done));
    FAILS(EINVAL, cairnfs_write(again, &byte, SIZE_MAX, &done));
    FAILS(EFAULT, cairnfs_sync_files(volume, NULL, 1));
    FAILS(EINVAL, cairnfs_sync_files(volume, &again, SIZE_MAX / 4));
    FAILS(EFBIG, cairnfs_ftruncate(again, UINT64_MAX));
    FAILS(EFAULT, cairnfs_stat(volume, "f", 1, NULL));

    /* The volume's end is that of its files and listings, which are closed all the same. */
    OK(cairnfs_close_volume(volume));
    FAILS(EBADF, cairnfs_fstat(again, &stat));
    CHECK(strstr(cairnfs_message(), "volume") != NULL);
    FAILS(EBADF, cairnfs_readdir(dir, &entry, NULL, 1, &done));
    OK(cairnfs_close(again));
    OK(cairnfs_closedir(dir));
    OK(cairnfs_close_volume(other));
}

/* Structs of an older and of a newer header. */
static void sizes(void)
{
    cairnfs_volume volume = new_volume();
    struct newer {
        struct cairnfs_stat known;
        uint64_t added;
    } newer = {.known = {.struct_size = sizeof newer}, .added = 7};
    struct newer_options {
        struct cairnfs_volume_options known;
        uint64_t added;
    } options = {
        .known = {.struct_size = sizeof options, .flags = CAIRNFS_IN_MEMORY, .size = 64 << 20},
    };
    cairnfs_volume other;

    OK(cairnfs_stat(volume, "/", 1, &newer.known));
    CHECK(newer.added == 0 && newer.known.struct_size == sizeof newer);
    CHECK(newer.known.mode == (S_IFDIR | 0755));
    newer.known.struct_size = 0;
    FAILS(EINVAL, cairnfs_stat(volume, "/", 1, &newer.known));
    newer.known.struct_size = sizeof newer.known - 1;
    FAILS(EINVAL, cairnfs_stat(volume, "/", 1, &newer.known));
    newer.known.struct_size = UINT32_MAX;
    FAILS(E2BIG, cairnfs_stat(volume, "/", 1, &newer.known));

    OK(cairnfs_open_volume(NULL, &options.known, &other));
    OK(cairnfs_close_volume(other));
    options.added = 1;
    FAILS(E2BIG, cairnfs_open_volume(NULL, &options.known, &other));
    OK(cairnfs_close_volume(volume));
}

int main(void)
{
    CHECK(cairnfs_abi_version() >= CAIRNFS_ABI_VERSION);
    CHECK(cairnfs_version()[0] == '0');
    CHECK(cairnfs_message()[0] == '\0');
    contents();
    names();
    attributes();
    listings();
    volumes();
    branches();
    misuse();
    sizes();
    return 0;
}
