/*
 * Asynchronous direct writes to a block beside a thread that reads the same block through the page
 * cache. After each write has completed, a buffered read must give it. Prints how many rounds gave
 * older bytes, and fails if any did.
 *
 * usage: direct libaio|io_uring FILE ROUNDS
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LEN 4096

static const char *path;
static volatile int stop;

static void fail(const char *what)
{
	perror(what);
	exit(2);
}

static int opened(int flags)
{
	int fd = open(path, flags | O_CREAT, 0600);
	if (fd < 0)
		fail(path);
	return fd;
}

static void *read_on(void *unused)
{
	int fd = opened(O_RDONLY);
	char buf[LEN];
	while (!stop)
		if (pread(fd, buf, LEN, 0) < 0)
			fail("pread");
	return unused;
}

static aio_context_t aio;

static void aio_write(int fd, char *buf)
{
	struct iocb cb = {
		.aio_lio_opcode = IOCB_CMD_PWRITE,
		.aio_fildes = fd,
		.aio_buf = (uintptr_t)buf,
		.aio_nbytes = LEN,
	};
	struct iocb *list[] = { &cb };
	struct io_event done;
	if (syscall(SYS_io_submit, aio, 1, list) != 1)
		fail("io_submit");
	if (syscall(SYS_io_getevents, aio, 1, 1, &done, NULL) != 1)
		fail("io_getevents");
	if (done.res != LEN)
		fail("the asynchronous write");
}

static int ring;
static unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
static struct io_uring_sqe *entries;
static struct io_uring_cqe *completions;

static void *map(size_t len, off_t what)
{
	void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, ring, what);
	if (at == MAP_FAILED)
		fail("mmap");
	return at;
}

static void uring_setup(void)
{
	struct io_uring_params p = { 0 };
	ring = syscall(SYS_io_uring_setup, 4, &p);
	if (ring < 0)
		fail("io_uring_setup");
	char *sq = map(p.sq_off.array + p.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
	char *cq = map(p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe),
		       IORING_OFF_CQ_RING);
	entries = map(p.sq_entries * sizeof(struct io_uring_sqe), IORING_OFF_SQES);
	sq_tail = (unsigned *)(sq + p.sq_off.tail);
	sq_mask = (unsigned *)(sq + p.sq_off.ring_mask);
	sq_array = (unsigned *)(sq + p.sq_off.array);
	cq_head = (unsigned *)(cq + p.cq_off.head);
	cq_tail = (unsigned *)(cq + p.cq_off.tail);
	cq_mask = (unsigned *)(cq + p.cq_off.ring_mask);
	completions = (struct io_uring_cqe *)(cq + p.cq_off.cqes);
}

static void uring_write(int fd, char *buf)
{
	unsigned at = *sq_tail & *sq_mask;
	memset(&entries[at], 0, sizeof(entries[at]));
	entries[at].opcode = IORING_OP_WRITE;
	entries[at].fd = fd;
	entries[at].addr = (uintptr_t)buf;
	entries[at].len = LEN;
	sq_array[at] = at;
	__atomic_store_n(sq_tail, *sq_tail + 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
		fail("io_uring_enter");
	unsigned head = *cq_head;
	if (head == __atomic_load_n(cq_tail, __ATOMIC_ACQUIRE))
		fail("no completion");
	if (completions[head & *cq_mask].res != LEN)
		fail("the asynchronous write");
	__atomic_store_n(cq_head, head + 1, __ATOMIC_RELEASE);
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	int uring = !strcmp(argv[1], "io_uring");
	path = argv[2];
	int rounds = atoi(argv[3]);
	if (uring)
		uring_setup();
	else if (syscall(SYS_io_setup, 4, &aio))
		fail("io_setup");
	char *buf = aligned_alloc(LEN, LEN), seen[LEN];
	int direct = opened(O_RDWR | O_DIRECT), buffered = opened(O_RDWR);
	memset(buf, 0, LEN);
	if (pwrite(buffered, buf, LEN, 0) != LEN || fsync(buffered))
		fail("write");
	pthread_t reader;
	if (pthread_create(&reader, NULL, read_on, NULL))
		fail("pthread_create");
	int stale = 0;
	for (int round = 1; round <= rounds; round++) {
		memset(buf, round, LEN);
		uring ? uring_write(direct, buf) : aio_write(direct, buf);
		if (pread(buffered, seen, LEN, 0) != LEN)
			fail("pread");
		stale += memcmp(seen, buf, LEN) != 0;
	}
	stop = 1;
	pthread_join(reader, NULL);
	printf("%d of %d rounds stale\n", stale, rounds);
	return stale != 0;
}
