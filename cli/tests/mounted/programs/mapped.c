/*
 * Writes through a shared mapping of a file of one page, unmaps it, says so, and keeps the file open
 * until its input ends.
 *
 * usage: mapped FILE TEXT
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	int fd = open(argv[1], O_RDWR | O_CREAT, 0600);
	if (fd < 0 || ftruncate(fd, 4096)) {
		perror(argv[1]);
		return 1;
	}
	char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	strcpy(at, argv[2]);
	munmap(at, 4096);
	puts("unmapped");
	fflush(stdout);
	while (getchar() != EOF)
		;
	return 0;
}
