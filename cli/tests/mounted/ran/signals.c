/* A handler writes to the same file as the program that it interrupts, and makes and removes others. */

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

static int file;
static volatile int handled, failed;

static void name(char *to, int number)
{
	*to++ = 'm';
	for (int digit = 10000; digit; digit /= 10)
		*to++ = '0' + number / digit % 10;
	*to = 0;
}

static void handle(int signal)
{
	char made[16];

	(void)signal;
	name(made, ++handled);
	/* Where a handler takes longer than the interval, the program comes to nothing beside. */
	if (handled == 400)
		setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
	int other = open(made, O_CREAT | O_EXCL | O_WRONLY, 0600);
	failed += other < 0 || write(other, "x", 1) != 1 || close(other) != 0;
	failed += write(file, "signal\n", 7) != 7;
	if (handled % 2)
		failed += unlink(made) != 0;
}

int main(void)
{
	struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
	struct itimerval often = {{0, 300}, {0, 300}};
	int lines = 0;

	file = open("log", O_CREAT | O_EXCL | O_RDWR, 0600);
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	for (int round = 0; handled < 400; round++) {
		char dir[16];
		struct stat status;

		failed += write(file, "line\n", 5) != 5;
		lines++;
		sprintf(dir, "d%d", round % 7);
		failed += mkdir(dir, 0700) != 0 || rmdir(dir) != 0;
		failed += fstat(file, &status) != 0 || status.st_nlink != 1;
		/* Others have looked: the kernel has the file now, and the program another one. */
		if (round % 100 == 99) {
			char byte;
			failed += pread(file, &byte, 1, 0) != 1 || byte != 'l' && byte != 's';
		}
	}
	setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
	printf("%d %d %d\n", failed, lines, handled);
	return failed != 0;
}
