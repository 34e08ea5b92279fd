/* A signal handler forks, at any moment; the child returns from it, and goes on with the interrupted call. */

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile pid_t child = -1;

static void handle(int signal)
{
	(void)signal;
	if (child == -1)
		child = fork();
}

/* Whether a file can be made, read and removed; both processes may have the same one when they part. */
static int works(const char *name)
{
	char byte = 0;
	struct stat status;
	int file = open(name, O_CREAT | O_TRUNC | O_RDWR, 0600);
	int good = file >= 0 && write(file, "x", 1) == 1 && pread(file, &byte, 1, 0) == 1;

	good = good && byte == 'x' && close(file) == 0;
	good = good && stat(name, &status) == 0 && status.st_size == 1;
	return good && unlink(name) == 0;
}

int main(void)
{
	int failed = 0;

	for (int round = 0; round < 60; round++) {
		struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
		struct itimerval soon = {{0, 0}, {0, 50 + round * 733 % 2000}};

		child = -1;
		sigaction(SIGALRM, &action, NULL);
		setitimer(ITIMER_REAL, &soon, NULL);
		while (child == -1)
			works("parent");
		if (child == 0) {
			for (int i = 0; i < 50; i++)
				if (!works("child"))
					_exit(1);
			_exit(0);
		}
		int how;
		failed += waitpid(child, &how, 0) != child || how != 0;
		failed += !works("parent");
	}
	printf("%d\n", failed);
	return 0;
}
