/* Branches and snapshots as a whole: listed, compared, published, restored, sent, dropped. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

static void put(cairnfs_volume volume, const char *path, const char *text)
{
    cairnfs_file file;
    size_t done;

    OK(cairnfs_open(volume, path, O_WRONLY | O_CREAT | O_TRUNC, 0644, &file));
    OK(cairnfs_write(file, text, strlen(text), &done));
    OK(cairnfs_close(file));
}

static bool has(cairnfs_volume volume, const char *path, const char *text)
{
    char bytes[256];
    cairnfs_file file;
    size_t done;

    OK(cairnfs_open(volume, path, O_RDONLY, 0, &file));
    OK(cairnfs_read(file, bytes, sizeof bytes, &done));
    OK(cairnfs_close(file));
    return done == strlen(text) && memcmp(bytes, text, done) == 0;
}

static cairnfs_volume branch_of(cairnfs_volume volume, const char *name)
{
    cairnfs_volume branch;

    OK(cairnfs_branch(volume, name, &branch));
    return branch;
}

static cairnfs_volume opened(cairnfs_volume volume, const char *name)
{
    cairnfs_volume branch;

    OK(cairnfs_open_branch(volume, name, &branch));
    return branch;
}

/* A report tells each file that differs, in order, and keeps one whose path had no place. */
static void differences(void)
{
    cairnfs_volume volume = new_volume(), trial;
    cairnfs_report report;
    struct cairnfs_change change = {.struct_size = sizeof change};
    struct cairnfs_conflict conflict = {.struct_size = sizeof conflict};
    char paths[64];

    put(volume, "gone", "1");
    put(volume, "kept", "2");
    put(volume, "old name", "3");
    put(volume, "text", "before");
    OK(cairnfs_snapshot(volume, "monday"));
    trial = branch_of(volume, "trial");
    OK(cairnfs_unlink(trial, "gone"));
    OK(cairnfs_rename(trial, "old name", "new name", 0));
    OK(cairnfs_mkdir(trial, "dir", 0755));
    put(trial, "text", "after that");
    OK(cairnfs_chmod(trial, "text", 0600));
    OK(cairnfs_setxattr(trial, "text", "user.a", "b", 1, 0));
    put(volume, "only in main", "4");

    OK(cairnfs_diff(volume, "monday", "trial", 0, &report));
    OK(cairnfs_next_change(report, &change, paths, sizeof paths));
    CHECK(change.status == CAIRNFS_ADDED && strcmp(paths, "dir") == 0);
    CHECK(change.mode == S_IFDIR && change.path_len == 3 && change.changed == 0);
    OK(cairnfs_next_change(report, &change, paths, sizeof paths));
    CHECK(change.status == CAIRNFS_REMOVED && strcmp(paths, "gone") == 0);
    FAILS(ERANGE, cairnfs_next_change(report, &change, paths, 17));
    CHECK(change.path_len == 8 && change.old_path_len == 8);
    FAILS(ERANGE, cairnfs_next_change(report, &change, NULL, 0));
    FAILS(EFAULT, cairnfs_next_change(report, &change, NULL, 18));
    OK(cairnfs_next_change(report, &change, paths, 18));
    CHECK(change.status == CAIRNFS_RENAMED && strcmp(paths, "new name") == 0);
    CHECK(strcmp(paths + change.path_len + 1, "old name") == 0);
    CHECK(change.old_names == 1 && change.new_names == 1 && change.size == 1);
    OK(cairnfs_next_change(report, &change, paths, sizeof paths));
    CHECK(change.status == CAIRNFS_CHANGED && strcmp(paths, "text") == 0);
    CHECK(change.changed & CAIRNFS_CHANGED_CONTENTS && change.changed & CAIRNFS_CHANGED_SIZE);
    CHECK(change.changed & CAIRNFS_CHANGED_MODE && change.changed & CAIRNFS_CHANGED_XATTRS);
    CHECK(!(change.changed & CAIRNFS_CHANGED_OWNER));
    CHECK(change.size == 10 && change.written == 10 && change.old_path_len == 0);
    OK(cairnfs_next_change(report, &change, NULL, 0));
    CHECK(change.status == 0 && change.struct_size == sizeof change);
    FAILS(EINVAL, cairnfs_next_conflict(report, &conflict, paths, sizeof paths));
    FAILS(EBADF, cairnfs_closedir(report));
    OK(cairnfs_close_report(report));
    FAILS(EBADF, cairnfs_next_change(report, &change, paths, sizeof paths));
    FAILS(EBADF, cairnfs_close_report(report));

    /* Since the fork, what main did meanwhile is no difference. */
    OK(cairnfs_diff(volume, "main", "trial", CAIRNFS_SINCE_FORK, &report));
    for (int n = 0; n < 4; n++) {
        OK(cairnfs_next_change(report, &change, paths, sizeof paths));
        CHECK(strcmp(paths, "only in main") != 0);
    }
    OK(cairnfs_next_change(report, &change, paths, sizeof paths));
    CHECK(change.status == 0);
    FAILS(EINVAL, cairnfs_diff(volume, "main", "trial", 8, &report));
    FAILS(ENOENT, cairnfs_diff(volume, "main", "missing", 0, &report));
    CHECK(strstr(cairnfs_message(), "trial") != NULL);
    OK(cairnfs_close_volume(trial));
    OK(cairnfs_close_volume(volume));
    FAILS(EBADF, cairnfs_next_change(report, &change, paths, sizeof paths));
    OK(cairnfs_close_report(report));
}

static void publishing(void)
{
    cairnfs_volume volume = new_volume(), trial, now;
    cairnfs_report report = 7;
    cairnfs_file file;
    size_t done;
    struct cairnfs_published published = {.struct_size = sizeof published};
    struct cairnfs_publish_options options = {.struct_size = sizeof options};
    struct cairnfs_conflict conflict = {.struct_size = sizeof conflict};
    struct cairnfs_change change = {.struct_size = sizeof change};
    const char *const theirs[] = {"f"};
    char kept[CAIRNFS_NAME_SIZE], text[128];

    put(volume, "f", "before");
    trial = branch_of(volume, "trial");
    put(trial, "f", "trial");
    OK(cairnfs_open(volume, "f", O_RDWR, 0, &file));
    OK(cairnfs_publish(volume, "trial", NULL, &published, &report));
    CHECK(published.merged == 0 && published.conflicts == 0 && report == 0);
    CHECK(published.kept_len == strlen(published.kept));
    CHECK(strncmp(published.kept, "main.undo-", 10) == 0);
    FAILS(ESTALE, cairnfs_write(file, "x", 1, &done));
    OK(cairnfs_close(file));
    now = opened(volume, "main");
    CHECK(has(now, "f", "trial") && has(volume, "f", "before"));
    OK(cairnfs_close_volume(trial));

    /* Taken back, and that taken back. */
    OK(cairnfs_restore(volume, published.kept, NULL, NULL, 0, kept));
    CHECK(strncmp(kept, "main.undo-", 10) == 0);
    OK(cairnfs_close_volume(now));
    now = opened(volume, "main");
    CHECK(has(now, "f", "before"));
    OK(cairnfs_restore(volume, kept, "main", theirs, 1, NULL));
    OK(cairnfs_close_volume(now));
    now = opened(volume, "main");
    CHECK(has(now, "f", "trial"));
    FAILS(ENOENT, cairnfs_restore(volume, "missing", NULL, NULL, 0, NULL));
    FAILS(EFAULT, cairnfs_restore(volume, kept, NULL, NULL, 1, NULL));

    /* Both sides changed: a failure that cannot be overlooked, and a report of what is in conflict. */
    trial = branch_of(now, "trial");
    put(trial, "f", "theirs");
    put(now, "f", "ours");
    FAILS(ECANCELED, cairnfs_publish(volume, "trial", NULL, &published, &report));
    CHECK(strstr(cairnfs_message(), "f: both changed the contents") != NULL);
    CHECK(published.conflicts >= 1 && published.kept_len == 0 && published.merged == 0);
    FAILS(ERANGE, cairnfs_next_conflict(report, &conflict, text, 3));
    CHECK(conflict.path_len == 1 && conflict.kind == CAIRNFS_CONFLICT_CONTENTS);
    OK(cairnfs_next_conflict(report, &conflict, text, sizeof text));
    CHECK(strcmp(text, "f") == 0 && strcmp(text + 2, "both changed the contents") == 0);
    FAILS(EINVAL, cairnfs_next_change(report, &change, text, sizeof text));
    for (uint64_t n = 0; n < published.conflicts; n++)
        OK(cairnfs_next_conflict(report, &conflict, text, sizeof text));
    CHECK(conflict.kind == 0);
    OK(cairnfs_close_report(report));
    FAILS(ECANCELED, cairnfs_publish(volume, "trial", &options, &published, NULL));
    options.flags = CAIRNFS_DRY_RUN;
    OK(cairnfs_publish(volume, "trial", &options, &published, NULL));
    CHECK(published.conflicts >= 1 && published.kept_len == 0 && published.merged == 0);
    CHECK(has(now, "f", "ours"));
    options.flags = 0;
    options.theirs = theirs;
    options.theirs_count = 1;
    OK(cairnfs_publish(volume, "trial", &options, &published, &report));
    CHECK(report == 0 && published.merged == 1);
    OK(cairnfs_close_volume(trial));
    OK(cairnfs_close_volume(now));
    now = opened(volume, "main");
    CHECK(has(now, "f", "theirs"));

    options.flags = 1u << 31;
    FAILS(EINVAL, cairnfs_publish(volume, "main", &options, &published, NULL));
    options.flags = 0;
    options.onto = "missing";
    FAILS(ENOENT, cairnfs_publish(volume, "main", &options, &published, NULL));
    FAILS(EINVAL, cairnfs_publish(volume, "main", NULL, &published, NULL));
    FAILS(EFAULT, cairnfs_publish(volume, "main", NULL, NULL, NULL));
    OK(cairnfs_close_volume(now));
    OK(cairnfs_close_volume(volume));
}

/* A stream of a snapshot, in a file. */
static FILE *sent(cairnfs_volume volume, const char *snapshot, const char *base)
{
    FILE *stream = tmpfile();

    CHECK(stream != NULL);
    OK(cairnfs_send(volume, snapshot, base, fileno(stream)));
    CHECK(lseek(fileno(stream), 0, SEEK_SET) == 0);
    return stream;
}

static void streams(void)
{
    cairnfs_volume volume = new_volume(), backup = new_volume(), copy;
    FILE *whole, *changes;
    char name[CAIRNFS_NAME_SIZE], byte;
    int fd, ends[2];

    put(volume, "f", "monday");
    OK(cairnfs_snapshot(volume, "monday"));
    put(volume, "f", "tuesday");
    OK(cairnfs_snapshot(volume, "tuesday"));
    whole = sent(volume, "monday", NULL);
    changes = sent(volume, "tuesday", "monday");
    fd = fileno(whole);

    /* Changes need what they build on. */
    FAILS(ENOENT, cairnfs_receive(backup, fileno(changes), "x", NULL));
    CHECK(lseek(fileno(changes), 0, SEEK_SET) == 0);
    OK(cairnfs_receive(backup, fd, "first", name));
    CHECK(strcmp(name, "first") == 0);
    OK(cairnfs_receive(backup, fileno(changes), NULL, name));
    CHECK(strlen(name) > 0);
    copy = opened(backup, name);
    CHECK(has(copy, "f", "tuesday"));
    OK(cairnfs_close_volume(copy));

    /* What cannot be sent or received changes nothing. */
    FAILS(EINVAL, cairnfs_send(volume, "main", NULL, fd));
    FAILS(ENOENT, cairnfs_send(volume, "missing", NULL, fd));
    FAILS(EBADF, cairnfs_send(volume, "monday", NULL, -1));
    FAILS(EBADF, cairnfs_receive(backup, 1000, "x", NULL));
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    FAILS(EEXIST, cairnfs_receive(backup, fd, "first", name));
    CHECK(lseek(fd, 1, SEEK_SET) == 1);
    FAILS(EBADMSG, cairnfs_receive(backup, fd, "x", name));
    CHECK(pipe(ends) == 0);
    FAILS(EBADF, cairnfs_send(volume, "monday", NULL, ends[0]));
    CHECK(close(ends[1]) == 0 && read(ends[0], &byte, 1) == 0);
    FAILS(EBADMSG, cairnfs_receive(backup, ends[0], "x", name));
    CHECK(close(ends[0]) == 0);
    FAILS(ENOENT, cairnfs_open_branch(backup, "x", &copy));
    OK(cairnfs_close_volume(volume));
    OK(cairnfs_close_volume(backup));
    CHECK(fclose(whole) == 0 && fclose(changes) == 0);
}

static void roots(void)
{
    cairnfs_volume volume = new_volume(), monday;
    struct cairnfs_root root = {.struct_size = sizeof root}, all[8];
    struct cairnfs_drop_progress progress = {.struct_size = sizeof progress};
    /* The struct of a program that was compiled with the first header. */
    struct cairnfs_root old = {.struct_size = 288, .parent = 77};
    struct cairnfs_statfs before = {.struct_size = sizeof before}, after = before;
    uint64_t own;
    size_t count;
    char text[4096];

    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    for (int n = 0; n < 500; n++) {
        char path[16];
        snprintf(path, sizeof path, "%d", n);
        put(volume, path, text);
    }
    OK(cairnfs_snapshot(volume, "monday"));
    for (int n = 0; n < 500; n++) {
        char path[16];
        snprintf(path, sizeof path, "%d", n);
        OK(cairnfs_unlink(volume, path));
    }
    OK(cairnfs_snapshot(volume, "tuesday"));
    OK(cairnfs_find_root(volume, "main@monday", &root));
    CHECK(strcmp(root.name, "monday") == 0 && root.writable == 0 && root.created.sec > 0);
    OK(cairnfs_find_root(volume, "monday", &old));
    CHECK(old.id == root.id && old.parent == 77);
    FAILS(ENOENT, cairnfs_find_root(volume, "main@missing", &root));
    all[0].struct_size = sizeof all[0];
    OK(cairnfs_roots(volume, all, 8, &count));
    CHECK(count == 3 && strcmp(all[0].name, "main") == 0 && all[0].parent == all[2].id);
    CHECK(strcmp(all[2].name, "tuesday") == 0 && all[2].parent == root.id);
    CHECK(all[1].id == root.id && all[1].parent == 0 && all[1].being_dropped == 0);
    OK(cairnfs_space_of(volume, root.id, &own));
    CHECK(own % 4096 == 0 && own <= 64 << 20);
    FAILS(ENOENT, cairnfs_space_of(volume, UINT32_MAX, &own));

    /* What is open is not dropped. */
    monday = opened(volume, "monday");
    FAILS(EBUSY, cairnfs_drop_root(volume, "monday"));
    OK(cairnfs_close_volume(monday));
    FAILS(EPERM, cairnfs_drop_root(volume, "main"));
    FAILS(ENOENT, cairnfs_drop_root(volume, "missing"));
    OK(cairnfs_statfs(volume, &before));
    OK(cairnfs_drop_root(volume, "monday"));
    FAILS(ENOENT, cairnfs_open_branch(volume, "monday", &monday));

    /* Nothing is done in no time; then to the end. */
    OK(cairnfs_free_drops(volume, 0, &progress));
    CHECK(progress.finished == 0 && progress.permille <= 1000);
    do
        OK(cairnfs_free_drops(volume, 10, &progress));
    while (!progress.finished);
    CHECK(progress.left == 0);
    OK(cairnfs_free_drops(volume, -1, NULL));
    OK(cairnfs_statfs(volume, &after));
    CHECK(after.free_blocks >= before.free_blocks + 500);
    OK(cairnfs_close_volume(volume));
}

int main(void)
{
    differences();
    publishing();
    streams();
    roots();
    return 0;
}
