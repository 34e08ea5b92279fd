/* A forked child can do nothing with what its parent had opened, and does not keep it open. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#ifdef NO_LEAKS
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "detect_leaks=0";
}
#endif

static cairnfs_volume open_volume(void)
{
    struct cairnfs_volume_options options = {
        .struct_size = sizeof options,
        .flags = CAIRNFS_CREATE,
        .size = 64 << 20,
        .durability_interval_ms = -1,
    };
    cairnfs_volume volume;
    OK(cairnfs_open_volume("volume", &options, &volume));
    return volume;
}

/* The child of a process that never opened a volume. */
static void open_in_child(void)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        OK(cairnfs_close_volume(open_volume()));
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* A process that opens a volume which another one has open. */
static void open_what_is_open(void)
{
    int ready[2], status;
    char byte;
    struct cairnfs_volume_options reading = {
        .struct_size = sizeof reading,
        .flags = CAIRNFS_READ_ONLY,
    };

    CHECK(pipe(ready) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        cairnfs_volume volume = 7;
        CHECK(read(ready[0], &byte, 1) == 1);
        FAILS(EBUSY, cairnfs_open_volume("volume", NULL, &volume));
        CHECK(strstr(cairnfs_message(), "in use") != NULL && volume == 7);
        FAILS(EBUSY, cairnfs_open_volume("volume", &reading, &volume));
        exit(0);
    }
    cairnfs_volume volume = open_volume();
    CHECK(write(ready[1], "", 1) == 1);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(cairnfs_sync(volume));
    OK(cairnfs_close_volume(volume));
    CHECK(close(ready[0]) == 0 && close(ready[1]) == 0);
}

int main(void)
{
    cairnfs_file file;
    size_t done;
    int answers[2], ends[2], status;
    char byte;

    open_in_child();
    open_what_is_open();
    cairnfs_volume volume = open_volume();
    OK(cairnfs_open(volume, "f", O_RDWR | O_CREAT, 0644, &file));
    OK(cairnfs_write(file, "parent", 6, &done));
    CHECK(pipe(answers) == 0 && pipe(ends) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(close(ends[1]) == 0);
        FAILS(EBADF, cairnfs_write(file, "child!", 6, &done));
        CHECK(strstr(cairnfs_message(), "fork") != NULL);
        FAILS(EBADF, cairnfs_sync(volume));
        FAILS(EBADF, cairnfs_close(file));
        FAILS(EBADF, cairnfs_close_volume(volume));
        FAILS(EBADF, cairnfs_open_volume("other", NULL, &volume));
        CHECK(write(answers[1], "", 1) == 1);
        /* It lives until the parent has opened the volume again. */
        CHECK(read(ends[0], &byte, 1) == 0);
        exit(0);
    }
    CHECK(read(answers[0], &byte, 1) == 1);
    OK(cairnfs_write(file, "!", 1, &done));
    OK(cairnfs_close_volume(volume));
    OK(cairnfs_close(file));
    volume = open_volume();
    struct cairnfs_stat stat = {.struct_size = sizeof stat};
    OK(cairnfs_stat(volume, "f", 1, &stat));
    CHECK(stat.size == 7);
    CHECK(close(ends[1]) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(cairnfs_sync(volume));
    OK(cairnfs_close_volume(volume));
    return 0;
}
