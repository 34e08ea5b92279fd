/*
 * Keeps notes in a volume, and replaces one so that a crash leaves the old or the new one.
 *
 *     cc -std=c11 -o notes notes.c $(pkg-config --cflags --libs cairnfs)
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "cairnfs.h"

static int fail(const char *what)
{
    fprintf(stderr, "notes: %s: %s\n", what, cairnfs_message());
    return 1;
}

/* Writes a note under another name, and renames it: no sync is needed for old or new. */
static int put_note(cairnfs_volume volume, const char *path, const char *text)
{
    cairnfs_file file;
    size_t done = 0, length = strlen(text);
    int error = cairnfs_open(volume, "note.new", O_WRONLY | O_CREAT | O_TRUNC, 0644, &file);
    if (error)
        return error;
    for (size_t at = 0; !error && at < length; at += done)
        error = cairnfs_write(file, text + at, length - at, &done);
    int closed = cairnfs_close(file);
    if (!error)
        error = closed;
    return error ? error : cairnfs_rename(volume, "note.new", path, 0);
}

static int list_notes(cairnfs_volume volume)
{
    struct cairnfs_dirent entries[16] = {{.struct_size = sizeof entries[0]}};
    struct cairnfs_stat stats[16] = {{.struct_size = sizeof stats[0]}};
    cairnfs_dir dir;
    size_t count = 0;
    int error = cairnfs_opendir(volume, "notes", &dir);
    if (error)
        return error;
    do {
        error = cairnfs_readdir(dir, entries, stats, 16, &count);
        for (size_t n = 0; !error && n < count; n++)
            printf("%s: %llu bytes\n", entries[n].name, (unsigned long long)stats[n].size);
    } while (!error && count > 0);
    cairnfs_closedir(dir);
    return error;
}

int main(int argc, char **argv)
{
    struct cairnfs_volume_options options = {
        .struct_size = sizeof options,
        .flags = CAIRNFS_CREATE,
        .size = 64 << 20,
    };
    cairnfs_volume volume;
    uint64_t sequence;

    if (cairnfs_abi_version() < CAIRNFS_ABI_VERSION) {
        fprintf(stderr, "notes: libcairnfs %s is older than cairnfs.h\n", cairnfs_version());
        return 1;
    }
    if (cairnfs_open_volume(argc > 1 ? argv[1] : "notes.cairn", &options, &volume))
        return fail("open");
    if (cairnfs_mkdir_all(volume, "notes"))
        return fail("mkdir");
    if (put_note(volume, "notes/todo", "water the plants\n"))
        return fail("todo");
    if (put_note(volume, "notes/done", "planted a tree\n"))
        return fail("done");
    /* One sync makes both durable, and whatever else was changed before it. */
    if (cairnfs_sequence(volume, &sequence) || cairnfs_sync_through(volume, sequence))
        return fail("sync");
    if (list_notes(volume))
        return fail("list");
    if (cairnfs_close_volume(volume))
        return fail("close");
    return 0;
}
