/* What the test programs share: checks that end the program with their place. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cairnfs.h"

#define CHECK(condition)                                                          \
    do {                                                                          \
        if (!(condition)) {                                                       \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);       \
            exit(1);                                                              \
        }                                                                         \
    } while (0)

/* A call that succeeds. */
#define OK(call) check_result(__FILE__, __LINE__, #call, (call), 0)

/* A call that fails with an errno value, and leaves a message. */
#define FAILS(value, call) check_result(__FILE__, __LINE__, #call, (call), (value))

static inline void check_result(const char *file, int line, const char *text, int result,
                                int expected)
{
    if (result != expected) {
        fprintf(stderr, "%s:%d: %s: %d instead of %d: %s\n", file, line, text, result, expected,
                cairnfs_message());
        exit(1);
    }
    if (expected != 0 && cairnfs_message()[0] == '\0') {
        fprintf(stderr, "%s:%d: %s: no message\n", file, line, text);
        exit(1);
    }
}

/* A new volume of 64 MiB in memory. */
static inline cairnfs_volume new_volume(void)
{
    struct cairnfs_volume_options options = {
        .struct_size = sizeof options,
        .flags = CAIRNFS_IN_MEMORY,
        .size = 64 << 20,
    };
    cairnfs_volume volume = 0;
    OK(cairnfs_open_volume(NULL, &options, &volume));
    CHECK(volume != 0);
    return volume;
}

#endif
