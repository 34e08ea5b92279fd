/*
 * File handles: prints that of a file, or opens one and tells what it leads to.
 *
 * usage: handle get PATH [connectable]
 *        handle open MOUNTPOINT TYPE BYTES
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST 128
#define CONNECTABLE 0x002

static union {
	struct file_handle handle;
	char room[sizeof(struct file_handle) + MOST];
} its;

static int get(const char *path, int flags)
{
	int mount;

	its.handle.handle_bytes = MOST;
	if (name_to_handle_at(AT_FDCWD, path, &its.handle, &mount, flags)) {
		puts(strerrorname_np(errno));
		return 0;
	}
	printf("%d ", its.handle.handle_type);
	for (unsigned i = 0; i < its.handle.handle_bytes; i++)
		printf("%02x", its.handle.f_handle[i]);
	puts("");
	return 0;
}

/* What a descriptor leads to: a path for directories and connectable handles, contents for files. */
static void tell(int fd, const char *mountpoint, int connected)
{
	char link[64], path[4096] = "", bytes[64] = "";
	struct stat found;

	fstat(fd, &found);
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (readlink(link, path, sizeof(path) - 1) < 0)
		perror(link);
	printf("%o links %ju", found.st_mode, (uintmax_t)found.st_nlink);
	if (S_ISDIR(found.st_mode) || connected)
		printf(" at %s", path + strlen(mountpoint));
	if (S_ISREG(found.st_mode) && read(fd, bytes, sizeof(bytes) - 1) >= 0)
		printf(" holds %s", bytes);
	puts("");
}

static int opened(const char *mountpoint, const char *type, const char *hex)
{
	int mount = open(mountpoint, O_RDONLY | O_DIRECTORY);
	size_t n = strlen(hex) / 2;

	if (mount < 0 || n > MOST)
		return 1;
	its.handle.handle_type = atoi(type);
	its.handle.handle_bytes = n;
	for (size_t i = 0; i < n; i++)
		sscanf(hex + 2 * i, "%2hhx", &its.handle.f_handle[i]);
	int fd = open_by_handle_at(mount, &its.handle, O_RDONLY | O_NONBLOCK);
	if (fd < 0 && errno == ELOOP)
		fd = open_by_handle_at(mount, &its.handle, O_PATH);
	if (fd < 0)
		puts(strerrorname_np(errno));
	else
		tell(fd, mountpoint, its.handle.handle_type & 0x10000);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc >= 3 && !strcmp(argv[1], "get"))
		return get(argv[2], argc > 3 ? CONNECTABLE : 0);
	if (argc == 5 && !strcmp(argv[1], "open"))
		return opened(argv[2], argv[3], argv[4]);
	return 2;
}
