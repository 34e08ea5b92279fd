"""Histories of descriptors that functions of libc reach by a path, hand on, or refuse, in the style of
histories.py."""

from histories import *


def links_of_process():
    """A file is opened once more by the links of /proc."""
    fd = served("f")
    os.write(fd, b"abc")
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    assert os.read(again, 10) == b"abc"
    fd = served("g")
    again = os.open(f"/dev/fd/{fd}", os.O_WRONLY)
    os.write(again, b"xyz")
    assert os.pread(fd, 10, 0) == b"xyz"


def by_process():
    """A path that leads to a descriptor leads to its file, and not to what is in its place."""
    top = os.stat(".")
    os.mkdir("own")
    for dir in ("/proc/self/fd", "/dev/fd", f"/proc/{os.getpid()}/fd"):
        for change in (
            lambda path: os.chmod(path, 0o604),
            lambda path: os.chown(path, 12, 13),
            lambda path: os.utime(path, (1, 2)),
            lambda path: os.truncate(path, 5),
            lambda path: os.setxattr(path, "user.a", b"b"),
            lambda path: os.stat(path),
        ):
            fd = served("own/f")
            change(f"{dir}/{fd}")
            assert not real_flags(fd) & os.O_PATH
            os.close(fd)
            os.unlink("own/f")
    now = os.stat(".")
    for field in ("st_mode", "st_uid", "st_gid"):
        assert getattr(top, field) == getattr(now, field), field
    assert now.st_mtime > 2 and "user.a" not in os.listxattr(".")


def descriptor_paths():
    """Also those functions of libc that open files by themselves find the files of descriptors."""
    DIR = os.O_RDONLY | os.O_DIRECTORY
    at = lambda fd, name="": f"/proc/self/fd/{fd}{name}".encode()
    room = lambda: ctypes.create_string_buffer(4096)

    def of_file(call):
        fd = served("f")
        os.write(fd, b"abc")
        assert call(at(fd)) not in (None, -1), ctypes.get_errno()
        assert not real_flags(fd) & os.O_PATH
        os.close(fd)
        os.unlink("f")

    for name in ("fopen", "opendir", "realpath"):
        getattr(libc, name).restype = ctypes.c_void_p
    watch = libc.inotify_init1(os.O_CLOEXEC)
    for call in (
        lambda path: libc.fopen(path, b"r"),
        lambda path: libc.inotify_add_watch(watch, path, 2),
    ):
        of_file(call)

    # Few directories: of a program that needs many otherwise, the kernel opens all.
    def of_dirs(*calls):
        if (child := os.fork()) == 0:
            for call in calls:
                os.makedirs("d", exist_ok=True)
                fd = os.open("d", DIR)
                assert real_flags(fd) & os.O_PATH
                call(fd)
                assert not real_flags(fd) & os.O_PATH
                os.close(fd)
                raw("rm -r d")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

    def is_true(value):
        assert value, ctypes.get_errno()

    of_dirs(
        lambda fd: is_true(libc.opendir(at(fd)) and libc.realpath(at(fd), room())),
        lambda fd: is_true(libc.mkstemp(ctypes.create_string_buffer(at(fd, "/XXXXXX"))) >= 0),
        lambda fd: is_true(libc.mkfifo(at(fd, "/fifo"), 0o600) == 0),
    )
    of_dirs(
        lambda fd: is_true(libc.scandirat(fd, b".", ctypes.byref(ctypes.c_void_p()), None, None) == 2),
        lambda fd: is_true(libc.getdirentries(fd, room(), 4096, ctypes.byref(ctypes.c_long())) > 0),
        lambda fd: is_true(libc.link(b"/proc/self/mounts", at(fd, "/x")) == -1),
    )


def executed():
    """A program that is executed by its descriptor has the files that do not close."""
    if (child := os.fork()) == 0:
        # Python would have it closed.
        fd = libc.open(b"f", NEW, 0o600)
        os.write(fd, b"before ")
        shell = os.open("/bin/sh", os.O_RDONLY)
        os.execve(shell, ["sh", "-c", f"echo after >&{fd}"], os.environ)
    assert os.waitpid(child, 0)[1] == 0
    assert raw("cat f") == "before after\n"


def streams():
    """libc itself writes to the first three descriptors, whatever they are."""
    if (child := os.fork()) == 0:
        for fd in (0, 1, 2):
            os.close(fd)
        assert [os.open("log", os.O_CREAT | os.O_RDWR, 0o600), os.dup(0), os.dup(0)] == [0, 1, 2]
        libc.puts(b"said")
        libc.fflush(None)
        libc.perror(b"failed")
        os.close(1)
        assert os.open("other", NEW, 0o600) == 1
        libc.puts(b"later")
        libc.fflush(None)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert raw("head -c 12 log; cat other") == "said\nfailed:later\n"


def closed_listing():
    """The end of a listing whose descriptor the program has closed fails."""
    libc.fdopendir.restype = ctypes.c_void_p
    os.mkdir("d")
    fd = os.open("d", os.O_RDONLY | os.O_DIRECTORY)
    listing = ctypes.c_void_p(libc.fdopendir(fd))
    assert real_flags(fd) & os.O_PATH
    os.close(fd)
    assert libc.closedir(listing) == -1 and ctypes.get_errno() == errno.EBADF


def removed():
    """A directory that is removed while it is open is still one, without entries."""
    top = os.getcwd()
    for by_kernel in (False, True):
        os.mkdir("d")
        fd = os.open("d", os.O_RDONLY | os.O_DIRECTORY)
        other = os.dup(fd)
        assert real_flags(fd) & os.O_PATH
        raw("rmdir d") if by_kernel else os.rmdir("d")
        inode = os.fstat(fd).st_ino
        assert os.listdir(fd) == []
        os.fchdir(fd)
        assert not real_flags(fd) & os.O_PATH and not real_flags(other) & os.O_PATH
        for seen in (os.stat("."), os.fstat(fd), os.fstat(other)):
            assert (seen.st_ino, seen.st_nlink) == (inode, 0), seen
        assert os.listdir(".") == [] and os.listdir(other) == []
        for call in (lambda: os.mkdir("x"), lambda: os.open("x", NEW)):
            try:
                call()
                raise AssertionError("made")
            except FileNotFoundError:
                pass
        os.chdir(top)
        os.close(fd)
        os.close(other)


def no_clone():
    """What cannot be cloned is refused as by the kernel."""
    FICLONE = ctypes.c_ulong(0x40049409)
    os.mkdir("d")
    directory, hidden = os.open("d", os.O_RDONLY), os.open("hidden", os.O_CREAT | os.O_WRONLY)
    os.fsync(hidden)
    plain = os.open("/proc/self/exe", os.O_RDONLY)
    for flags, source, refusal in (
        (NEW, directory, errno.EISDIR),
        (NEW, hidden, errno.EBADF),
        (os.O_CREAT | os.O_RDONLY, hidden, errno.EBADF),
        (os.O_CREAT | os.O_RDWR | os.O_APPEND, os.open("f", NEW), errno.EBADF),
        (NEW, plain, errno.EXDEV),
    ):
        to = served("to", flags)
        assert libc.ioctl(to, FICLONE, source) == -1
        assert ctypes.get_errno() == refusal, (flags, source, ctypes.get_errno())
        os.close(to)
        os.unlink("to")


def no_socket():
    """A file is no socket and no terminal, which is told as by the kernel."""
    for name, more, refusal in (
        ("listen", [1], errno.ENOTSOCK),
        ("accept", [None, None], errno.ENOTSOCK),
        ("shutdown", [0], errno.ENOTSOCK),
        ("getsockname", [None, None], errno.ENOTSOCK),
        ("recvmsg", [None, 0], errno.ENOTSOCK),
        ("tcflush", [0], errno.ENOTTY),
        ("tcgetpgrp", [], errno.ENOTTY),
    ):
        fd = served("f")
        assert getattr(libc, name)(fd, *more) == -1
        assert ctypes.get_errno() == refusal, (name, ctypes.get_errno())
        os.close(fd)
        os.unlink("f")


globals()[sys.argv[1]](*sys.argv[2:])
