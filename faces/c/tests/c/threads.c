/* Threads share handles, close them under one another, and have messages of their own. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "check.h"

enum { THREADS = 4, ROUNDS = 400 };

static cairnfs_volume volume;
static cairnfs_file shared;
static _Atomic cairnfs_file passed;

static void *write_and_read(void *argument)
{
    int number = *(int *)argument;
    char path[32], text[32], back[32];
    cairnfs_file file;
    size_t done;
    uint64_t sequence;

    for (int round = 0; round < ROUNDS; round++) {
        snprintf(path, sizeof path, "%d-%d", number, round);
        snprintf(text, sizeof text, "text of %d", number);
        OK(cairnfs_open(volume, path, O_RDWR | O_CREAT | O_EXCL, 0644, &file));
        OK(cairnfs_write(file, text, strlen(text), &done));
        OK(cairnfs_pread(file, back, sizeof back, 0, &done));
        CHECK(done == strlen(text) && memcmp(back, text, done) == 0);
        OK(cairnfs_close(file));
        OK(cairnfs_write(shared, "0123456789abcdef", 16, &done));
        snprintf(path, sizeof path, "missing %d", number);
        FAILS(ENOENT, cairnfs_unlink(volume, path));
        CHECK(strncmp(cairnfs_message(), path, strlen(path)) == 0);
        if (round % 50 == 0) {
            OK(cairnfs_sequence(volume, &sequence));
            OK(cairnfs_sync_through(volume, sequence));
        }
    }
    return NULL;
}

/* Opens files, and passes each on to threads that use and close it at once. */
static void *open_and_pass(void *unused)
{
    (void)unused;
    for (int round = 0; round < ROUNDS; round++) {
        cairnfs_file file;
        OK(cairnfs_open(volume, "passed", O_RDWR | O_CREAT, 0644, &file));
        atomic_store(&passed, file);
    }
    return NULL;
}

static void *use_and_close(void *unused)
{
    (void)unused;
    for (int round = 0; round < 20 * ROUNDS; round++) {
        cairnfs_file file = atomic_load(&passed);
        char byte = 'x';
        size_t done;
        int result = cairnfs_pwrite(file, &byte, 1, 0, &done);
        CHECK(result == 0 || result == EBADF);
        result = cairnfs_close(file);
        CHECK(result == 0 || result == EBADF);
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS + 3];
    int numbers[THREADS];
    struct cairnfs_stat stat = {.struct_size = sizeof stat};

    volume = new_volume();
    OK(cairnfs_open(volume, "shared", O_WRONLY | O_APPEND | O_CREAT, 0644, &shared));
    for (int n = 0; n < THREADS; n++) {
        numbers[n] = n;
        CHECK(pthread_create(&threads[n], NULL, write_and_read, &numbers[n]) == 0);
    }
    CHECK(pthread_create(&threads[THREADS], NULL, open_and_pass, NULL) == 0);
    CHECK(pthread_create(&threads[THREADS + 1], NULL, use_and_close, NULL) == 0);
    CHECK(pthread_create(&threads[THREADS + 2], NULL, use_and_close, NULL) == 0);
    for (int n = 0; n < THREADS + 3; n++)
        CHECK(pthread_join(threads[n], NULL) == 0);
    OK(cairnfs_fstat(shared, &stat));
    CHECK(stat.size == 16 * THREADS * ROUNDS);
    CHECK(cairnfs_message()[0] == '\0');
    OK(cairnfs_close_volume(volume));
    OK(cairnfs_close(shared));
    return 0;
}
