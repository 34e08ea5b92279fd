"""Changes names and files at random, with others that do the same on the same names. What fails is left.
Arguments: the seed, and how many calls are made."""

import os
import random
import sys

choose = random.Random(int(sys.argv[1]))


def path():
    return "/".join(choose.choices("abcd", k=choose.choice([1, 2, 2, 2, 3])))


def write(flags):
    fd = os.open(path(), os.O_CREAT | os.O_WRONLY | flags, 0o644)
    try:
        for _ in range(choose.randrange(6)):
            os.write(fd, b"x" * choose.choice([1, 100, 5000]))
        if choose.random() < 0.3:
            os.ftruncate(fd, choose.randrange(3000))
    finally:
        os.close(fd)


CALLS = [
    lambda: write(os.O_EXCL),
    lambda: write(os.O_APPEND),
    lambda: write(os.O_TRUNC),
    lambda: os.mkdir(path()),
    lambda: os.mkdir(path()),
    lambda: os.rmdir(path()),
    lambda: os.unlink(path()),
    lambda: os.unlink(path()),
    lambda: os.rename(path(), path()),
    lambda: os.rename(path(), path()),
    lambda: os.link(path(), path()),
    lambda: os.symlink("target", path()),
    lambda: os.chmod(path(), choose.choice([0o700, 0o755])),
    lambda: os.utime(path(), ns=(5, choose.randrange(10**9))),
    lambda: os.stat(path()),
    lambda: os.stat(path()),
    lambda: os.listdir(path()),
    lambda: open(path(), "rb").read(),
]
for _ in range(int(sys.argv[2])):
    try:
        choose.choice(CALLS)()
    except OSError as error:
        # Nothing else can come of it.
        assert error.errno in (1, 2, 16, 17, 18, 20, 21, 22, 39, 40), error
