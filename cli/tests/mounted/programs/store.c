/*
 * Stores through a shared mapping of a file. Each line of input is a command: "store" puts the next digit,
 * from 1 on, at the file's begin, "msync" tells what msync says, anything else what the mapping shows.
 *
 * usage: store FILE
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

int main(int argc, char **argv)
{
	int fd = open(argv[argc - 1], O_RDWR);

	if (fd < 0) {
		perror("open");
		return 1;
	}
	volatile char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	char line[16], byte = '0';
	setlinebuf(stdout);
	puts("mapped");
	while (fgets(line, sizeof line, stdin)) {
		if (!strcmp(line, "store\n")) {
			*at = ++byte;
			puts("stored");
		} else if (!strcmp(line, "msync\n")) {
			printf("msync %d\n", msync((void *)at, 4096, MS_SYNC) ? errno : 0);
		} else {
			printf("mapping %c\n", *at);
		}
	}
	return 0;
}
