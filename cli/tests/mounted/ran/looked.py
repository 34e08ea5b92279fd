"""Histories of files that are looked at, opened again and read without the kernel, in the style of
histories.py."""

import mmap

from histories import *


def made(path, text):
    fd = served(path)
    os.write(fd, text)
    os.close(fd)


def is_daemons(fd):
    return bool(real_flags(fd) & os.O_PATH)


def opened(path, flags=os.O_RDONLY):
    """Opens a file that is there, by the daemon; the kernel must not have looked for it."""
    for _ in range(600):
        os.close(os.open("awake", NEW, 0o600))
        fd = os.open(path, flags)
        os.unlink("awake")
        if is_daemons(fd):
            return fd
        os.close(fd)
        # The kernel looked, and forgets the file with its last name.
        os.rename(path, path + "~")
        with open(path + "~", "rb") as old:
            text = old.read()
        os.unlink(path + "~")
        made(path, text)
    raise AssertionError(path)


def looks():
    """Attributes are those that the kernel shows."""
    made("f", b"0123456789")
    os.chmod("f", 0o640)
    os.utime("f", (5, 7))
    os.symlink("f", "link")
    os.mkdir("d")
    seen = [os.stat("f"), os.lstat("link"), os.stat("link"), os.stat("d")]
    accesses = [os.access(path, how) for path in ("f", "d", "link", "no") for how in range(8)]
    script = "import os\nfor p, f in [('f', 1), ('link', 0), ('link', 1), ('d', 1)]:"
    script += " s = os.stat(p, follow_symlinks=f); print(*s[:7], *s[7:10], s.st_mtime_ns, s.st_blocks)"
    lines = raw(f"python3 -c \"{script}\"").splitlines()
    for stat, line in zip(seen, lines, strict=True):
        told = [*stat[:7], *stat[7:10], stat.st_mtime_ns, stat.st_blocks]
        assert line == " ".join(map(str, told)), (line, told)
    script = "import os; print([os.access(p, h) for p in ('f', 'd', 'link', 'no') for h in range(8)])"
    assert raw(f'python3 -c "{script}"').strip() == str(accesses)


def absent():
    """What is not there is said as by the kernel, which then does not know that it was not."""
    made("f", b"")
    os.mkdir("d")
    for path, call, errno_ in [
        ("no", os.stat, errno.ENOENT),
        ("no", os.unlink, errno.ENOENT),
        ("no", os.rmdir, errno.ENOENT),
        ("no/x", os.stat, errno.ENOENT),
        ("f/x", os.stat, errno.ENOTDIR),
        ("f/x", os.mkdir, errno.ENOTDIR),
        ("f", os.mkdir, errno.EEXIST),
        ("d", os.mkdir, errno.EEXIST),
        ("no", lambda path: os.rename(path, "other"), errno.ENOENT),
        ("no", lambda path: os.chmod(path, 0o600), errno.ENOENT),
        ("no", lambda path: os.open(path, os.O_RDONLY), errno.ENOENT),
        ("f", lambda path: os.open(path, NEW | os.O_EXCL), errno.EEXIST),
        ("f", lambda path: os.symlink("x", path), errno.EEXIST),
    ]:
        try:
            call(path)
            assert False, path
        except OSError as error:
            assert error.errno == errno_, (path, error)
    assert os.path.exists("f") and not os.path.exists("no")
    raw("touch no")
    assert os.path.exists("no")
    raw("rm no")
    assert not os.path.exists("no")
    os.close(os.open("no", NEW, 0o600))


def opened_again():
    """A file is opened again, read, and written, as by the kernel, and truncated if that is asked for."""
    text = bytes(range(256)) * 200
    made("f", text)
    fd = opened("f")
    assert os.read(fd, 10) == bytes(range(10)) and os.lseek(fd, 0, 1) == 10
    assert os.pread(fd, 300_000, 50_000) == text[50_000:]
    assert os.read(fd, 300_000) == text[10:] and os.read(fd, 5) == b""
    assert os.fstat(fd).st_size == len(text) and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == 0
    assert not os.isatty(fd) and is_daemons(fd)
    try:
        os.write(fd, b"x")
        assert False
    except OSError as error:
        assert error.errno == errno.EBADF
    os.close(fd)
    made("g", b"abc")
    fd = opened("g", os.O_RDWR | os.O_APPEND)
    os.write(fd, b"def")
    assert os.pread(fd, 10, 0) == b"abcdef"
    # Another one of the same file, and one without permission to read.
    again = opened("g", os.O_WRONLY | os.O_TRUNC)
    assert os.fstat(fd).st_size == 0
    os.write(again, b"12")
    assert os.pread(fd, 10, 0) == b"12"
    try:
        os.read(again, 1)
        assert False
    except OSError as error:
        assert error.errno == errno.EBADF
    os.unlink("g")
    os.write(fd, b"3")
    assert os.pread(fd, 10, 0) == b"123" and os.fstat(fd).st_nlink == 0
    with open("h", "w") as file:
        file.write("text")
    with open("h") as file:
        assert file.read() == "text"


def mapped():
    """A private mapping of a file has its contents, and ends where the file ends."""
    # Python's own mappings need a duplicate of the descriptor.
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]
    text = bytes(range(1, 256)) * 50
    made("f", text)
    fd = opened("f")

    def map(len, access, flags, offset=0):
        at = libc.mmap(None, len, access, flags, fd, offset)
        return at if at != ctypes.c_void_p(-1).value else -ctypes.get_errno()

    both = mmap.PROT_READ | mmap.PROT_WRITE
    at = map(len(text), mmap.PROT_READ, mmap.MAP_PRIVATE)
    assert ctypes.string_at(at, len(text)) == text
    rest = len(text) - 4096
    at = map(rest, both, mmap.MAP_PRIVATE, 4096)
    ctypes.memset(at, 0, 1)
    assert ctypes.string_at(at, rest) == b"\0" + text[4097:]
    # What is dropped comes from the file again.
    assert libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(rest), mmap.MADV_DONTNEED) == 0
    assert ctypes.string_at(at, rest) == text[4096:]
    assert is_daemons(fd)
    # One that is shared, or longer than the file, is the kernel's.
    at = map(len(text) + 8192, mmap.PROT_READ, mmap.MAP_PRIVATE)
    assert ctypes.string_at(at, len(text)) == text and not is_daemons(fd)
    os.close(fd)
    fd = opened("f")
    at = map(len(text), mmap.PROT_READ, mmap.MAP_SHARED)
    assert ctypes.string_at(at, len(text)) == text and not is_daemons(fd)


def whole_pages():
    """A mapping has what is in its last page, and grows into what is behind it."""
    libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
    text = bytes(range(1, 241)) * 50
    made("f", text)
    fd = opened("f")
    at = ctypes.c_void_p(libc.mmap(None, ctypes.c_size_t(100), mmap.PROT_READ, mmap.MAP_PRIVATE, fd, 0))
    assert ctypes.string_at(at, 4096) == text[:4096] and is_daemons(fd)
    grown = libc.mremap(at, ctypes.c_size_t(4096), ctypes.c_size_t(8192), 1)
    assert ctypes.string_at(grown, 8192) == text[:8192]
    os.close(fd)


def whole_reads():
    """A read is not short before the end, also where others look at the file meanwhile."""
    text = bytes(range(256)) * 800
    made("f", text)
    for _ in range(5):
        fd = opened("f")
        assert os.pread(fd, 300_000, 0) == text and os.read(fd, 300_000) == text
        os.close(fd)


def long_paths():
    """A path that is too long is refused as such, whatever it begins with."""
    made("f", b"")
    for call in (os.stat, os.unlink, lambda path: os.open(path, os.O_RDONLY)):
        try:
            call("none/" + 900 * "name/" + "x")
            assert False
        except OSError as error:
            assert error.errno == errno.ENAMETOOLONG, error


def beside_the_kernel():
    """What others change by the kernel is what is read and seen next."""
    made("f", b"old")
    fd = opened("f")
    assert os.read(fd, 3) == b"old"
    raw("printf 'new text' >> f")
    assert os.read(fd, 100) == b"new text" and os.stat("f").st_size == 11
    os.close(fd)
    raw("mv f g")
    assert not os.path.exists("f") and os.path.exists("g")


def advised():
    """Advice on a file is taken, also where it needs no kernel."""
    made("f", b"x")
    fd = opened("f")
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    assert is_daemons(fd)
    try:
        os.posix_fadvise(fd, 0, 0, 99)
        assert False
    except OSError as error:
        assert error.errno == errno.EINVAL
    os.close(fd)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
