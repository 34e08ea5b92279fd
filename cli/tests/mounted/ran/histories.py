"""Histories of programs under `cairnfs run`, one function each. The working directory is in the mount. What
`raw` runs goes through the kernel. The function is named by the first argument; the others are its own."""

import ctypes
import errno
import fcntl
import json
import mmap
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
import time

libc = ctypes.CDLL(None, use_errno=True)
NEW = os.O_CREAT | os.O_EXCL | os.O_RDWR
BARE = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


# Runs what it reads, each in the directory that is given. A process that is forked later would have the
# files of this one handed to the kernel.
HELPER = """
import json, subprocess, sys
for line in sys.stdin:
    dir, script = json.loads(line)
    done = subprocess.run(["bash", "-euc", script], cwd=dir, stdout=subprocess.PIPE)
    print(json.dumps([done.returncode, done.stdout.decode()]), flush=True)
"""
helper = subprocess.Popen(
    [sys.executable, "-c", HELPER],
    env=BARE,
    cwd="/",
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
)


def raw(script):
    """Runs a shell script without the library; returns what it prints."""
    dir = f"/proc/{os.getpid()}/cwd"
    helper.stdin.write(json.dumps([dir, script]).encode() + b"\n")
    helper.stdin.flush()
    code, said = json.loads(helper.stdout.readline())
    assert code == 0, (script, code)
    return said


def real_flags(fd):
    """Flags of a descriptor as the kernel has it."""
    text = raw(f"cat /proc/{os.getpid()}/fdinfo/{fd}")
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("flags:")), 8)


def is_placeholder(fd):
    """Whether the descriptor is a placeholder, seen by this process, which has no other."""
    with open(f"/proc/self/fdinfo/{fd}") as info:
        flags = next(line.split()[1] for line in info if line.startswith("flags:"))
    return int(flags, 8) & os.O_PATH


def refused(path):
    """The number of the error that the making of a file ends with."""
    try:
        os.open(path, NEW, 0o600)
    except OSError as error:
        return error.errno
    return None


def served(path, flags=NEW, mode=0o644):
    """Makes a file, which must be the daemon's. After calls that were left to the kernel the library asks
    rarely: it is made again then."""
    for _ in range(600):
        fd = os.open(path, flags, mode)
        if real_flags(fd) & os.O_PATH:
            return fd
        os.close(fd)
        os.unlink(path)
    raise AssertionError(path)


def tail():
    """A log can be read by others while it is written, and written after that."""
    fd = served("log")
    for n in range(20):
        os.write(fd, b"line %d\n" % n)
        if n % 5 == 0:
            assert raw("tail -n 1 log") == f"line {n}\n"
    assert raw("wc -l < log").strip() == "20"
    assert not real_flags(fd) & os.O_PATH
    os.close(fd)


def offsets():
    """The kernel's descriptor goes on where the daemon's file was, with the same flags."""
    fd = served("f")
    os.write(fd, b"0123456789")
    os.lseek(fd, 4, os.SEEK_SET)
    assert os.read(fd, 3) == b"456" and os.write(fd, b"x") == 1
    assert os.pread(fd, 100, 0) == b"0123456x89"
    fd = served("g", flags=NEW | os.O_APPEND)
    os.write(fd, b"abc")
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, b"def")
    assert os.pread(fd, 100, 0) == b"abcdef"
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, b"ghi")
    assert os.pread(fd, 100, 0) == b"abcdefghi"
    fd = served("h", flags=os.O_CREAT | os.O_WRONLY)
    try:
        os.read(fd, 1)
        assert False
    except OSError as error:
        assert error.errno == 9


def descends():
    """Children by fork, vfork and posix_spawn have the files of their parent, and share its offsets."""
    fd = served("f")
    os.write(fd, b"parent ")
    child = os.fork()
    if child == 0:
        os.write(fd, b"child ")
        inner = os.open("of-child", NEW, 0o600)
        os.write(inner, b"inner")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    os.write(fd, b"parent ")
    fd2 = served("g")
    os.set_inheritable(fd2, True)
    subprocess.run(["sh", "-c", f"echo spawned >&{fd2}"], pass_fds=[fd2], check=True)
    fd3 = served("h")
    actions = [(os.POSIX_SPAWN_DUP2, fd3, 1)]
    child = os.posix_spawn("/bin/echo", ["echo", "posix"], os.environ, file_actions=actions)
    assert os.waitpid(child, 0)[1] == 0
    assert raw("cat f g h of-child") == "parent child parent spawned\nposix\ninner"


def copies():
    """A copy of a small file is served; the kernel's refusals are given without it."""
    FICLONE = 0x40049409
    os.mkdir("copies")
    raw("head -c 40000 /dev/urandom > copies/source; head -c 3000 /dev/urandom > /tmp/copied")
    source = os.open("copies/source", os.O_RDONLY)
    to = served("copies/same")
    assert libc.ioctl(to, ctypes.c_ulong(FICLONE), source) == -1
    assert ctypes.get_errno() == errno.EOPNOTSUPP
    copied = 0
    while copied < 40000:
        n = os.copy_file_range(source, to, 1 << 30)
        assert 0 < n <= 40000 - copied, n
        copied += n
    assert os.copy_file_range(source, to, 1 << 30) == 0
    # With offsets, which are moved, and not those of the files.
    assert os.copy_file_range(source, to, 10, 5, 40000) == 10
    assert real_flags(to) & os.O_PATH
    os.close(to)
    raw("head -c 40000 copies/same | cmp - copies/source")
    raw("tail -c 10 copies/same | cmp - <(tail -c +6 copies/source | head -c 10)")
    os.close(source)
    # A list that is a mode is set without the kernel, any other by it.
    entry = lambda kind, permissions, id=0xFFFFFFFF: struct.pack("<HHI", kind, permissions, id)
    mode = struct.pack("<I", 2) + entry(1, 6) + entry(4, 4) + entry(0x20, 0)
    to = served("copies/list")
    os.setxattr(to, "system.posix_acl_access", mode)
    assert real_flags(to) & os.O_PATH
    assert raw("stat -c %a copies/list") == "640\n"
    more = struct.pack("<I", 2) + entry(1, 6) + entry(2, 7, 12) + entry(4, 4) + entry(0x10, 7)
    os.setxattr(to, "system.posix_acl_access", more + entry(0x20, 0))
    assert not real_flags(to) & os.O_PATH
    assert raw("stat -c %a copies/list") == "670\n"
    os.close(to)
    outside = os.open("/tmp/copied", os.O_RDONLY)
    to = served("copies/other")
    assert libc.ioctl(to, ctypes.c_ulong(FICLONE), outside) == -1
    assert ctypes.get_errno() == errno.EXDEV
    try:
        os.copy_file_range(outside, to, 3000)
        raise AssertionError("copied")
    except OSError as refused:
        assert refused.errno == errno.EXDEV, refused
    assert real_flags(to) & os.O_PATH
    assert libc.ioctl(to, ctypes.c_ulong(FICLONE), 9999) == -1
    assert ctypes.get_errno() == errno.EBADF
    os.close(to)
    # To the end only: the kernel refuses it.
    to = served("copies/end", NEW | os.O_APPEND)
    try:
        os.copy_file_range(os.open("copies/source", os.O_RDONLY), to, 10)
        raise AssertionError("copied")
    except OSError as refused:
        assert refused.errno == errno.EBADF, refused
    os.close(to)


def list_names(fd):
    """Names from the offset of a directory on. As in C, and not in Python, that stays at the end."""
    libc.fdopendir.restype = libc.readdir64.restype = ctypes.c_void_p
    dir = ctypes.c_void_p(libc.fdopendir(os.dup(fd)))
    names = []
    while entry := libc.readdir64(dir):
        names.append(ctypes.string_at(entry + 19))
    assert libc.closedir(dir) == 0
    return names


def directories():
    """What a program opens, lists and removes is not the kernel's, and nobody sees a difference."""
    here = os.getcwd()
    raw("mkdir top")
    os.makedirs("top/a/b")
    for n in range(700):
        os.close(os.open(f"top/a/b/{n}", NEW, 0o600))
    is_ours = lambda fd: bool(real_flags(fd) & os.O_PATH)
    DIR = os.O_RDONLY | os.O_DIRECTORY
    top = os.open("top", DIR)
    a = os.open("a", DIR | os.O_NOFOLLOW, dir_fd=top)
    assert is_ours(top) and is_ours(a)
    b = os.open("b", DIR, dir_fd=a)
    assert os.fstat(b).st_ino == os.stat("b", dir_fd=a, follow_symlinks=False).st_ino
    assert sorted(os.listdir(b), key=int) == [str(n) for n in range(700)]
    assert is_ours(b)
    # One that was read in part, and its copy, which has the same offset.
    copy = os.dup(b)
    assert is_ours(copy)
    assert fcntl.fcntl(b, fcntl.F_GETFL) & (os.O_PATH | os.O_DIRECTORY) == os.O_DIRECTORY
    # The copy shares the offset: nothing is left to list, until it begins anew.
    assert len(list_names(b)) == 702 and list_names(copy) == []
    os.lseek(copy, 0, os.SEEK_SET)
    assert len(list_names(b)) == 702
    os.lseek(b, 0, os.SEEK_SET)
    for n in range(100):
        os.unlink(str(n), dir_fd=copy)
    os.mkdir("c", dir_fd=b)
    os.close(os.open("f", NEW, 0o600, dir_fd=b))
    os.rename("f", "g", src_dir_fd=b, dst_dir_fd=a)
    os.symlink("g", "link", dir_fd=a)
    assert os.stat("link", dir_fd=a, follow_symlinks=False).st_mode & 0o170000 == 0o120000
    assert is_ours(a) and is_ours(b) and is_ours(copy)
    # The kernel gets both descriptors of one, and the listing goes on.
    with os.scandir(b) as entries:
        seen = [next(entries).name for _ in range(50)]
        raw("mv top/a moved")
        flags = fcntl.fcntl(b, fcntl.F_GETFL)
        os.fchdir(copy)
        assert not is_ours(copy) and not is_ours(b)
        assert fcntl.fcntl(b, fcntl.F_GETFL) == flags
        assert raw("pwd -P | xargs -n1 basename").strip() == "b"
        seen += [entry.name for entry in entries]
    assert sorted(seen) == sorted([*map(str, range(100, 700)), "c"])
    os.chdir("../..")
    assert os.stat("link", dir_fd=a).st_size == 0
    assert not is_ours(a)
    # What nobody but the daemon has is gone.
    os.mkdir("gone")
    gone = os.open("gone", DIR)
    assert is_ours(gone)
    os.rmdir("gone")
    assert os.fstat(gone).st_nlink == 0 and list_names(gone) == []
    for call, error in (
        (lambda: os.open("x", NEW, dir_fd=gone), errno.ENOENT),
        (lambda: os.mkdir(".", dir_fd=gone), errno.EEXIST),
        (lambda: os.stat("x", dir_fd=gone), errno.ENOENT),
    ):
        try:
            call()
            raise AssertionError("made")
        except OSError as refused:
            assert refused.errno == error, refused
    os.fchdir(gone)
    # The name by which the kernel got it goes a moment later.
    while True:
        try:
            os.getcwd()
        except FileNotFoundError:
            break
        time.sleep(0.01)
    os.chdir(here)
    assert os.fstat(gone).st_nlink == 0
    os.close(gone)
    # Of many listings at one time, some are of libc.
    for n in range(40):
        os.mkdir(f"many{n}")
        os.close(os.open(f"many{n}/f", NEW, 0o600))
    listings = [os.scandir(os.open(f"many{n}", DIR)) for n in range(40)]
    assert [[entry.name for entry in listing] for listing in listings] == [["f"]] * 40
    child = os.fork()
    if child == 0:
        os._exit(sorted(os.listdir(top)) != [] or os.listdir(b) == [])
    assert os.waitpid(child, 0)[1] == 0


def removed_trees():
    """A tree is removed as it was made: without the kernel, also by threads, and what it knows by it."""
    for round in range(3):
        for n in range(20):
            os.makedirs(f"tree/{n}/x")
            for m in range(30):
                os.close(os.open(f"tree/{n}/x/{m}", NEW, 0o600))
        if round == 1:
            raw("ls -lR tree > /dev/null")
        if round == 2:
            raw("cat tree/7/x/*; stat tree/9 tree/9/x")
        subprocess.run(["rm", "-r", "tree"], check=True)
        assert not os.path.exists("tree") and raw("ls") == ""


def freed():
    """The space of a file that was handed to the kernel is free when the file is removed."""
    os.mkdir("freed")
    free = lambda: os.statvfs(".").f_bavail
    before = free()
    for n in range(20):
        fd = served(f"freed/{n}")
        os.write(fd, bytes(1 << 20))
        os.fsync(fd)
        os.close(fd)
    assert free() < before - 4000, (free(), before)
    raw("rm -r freed; sync .")
    for _ in range(200):
        if free() > before - 1000:
            return
        time.sleep(0.05)
    raise AssertionError((free(), before))


def from_outside():
    """A relative path that leads from outside into the mount."""
    top = os.getcwd()
    above, name = os.path.split(top)
    os.chdir(above)
    fd = os.open(f"{name}/outside", NEW, 0o644)
    assert real_flags(fd) & os.O_PATH
    os.write(fd, b"x")
    os.close(fd)
    os.rename(f"{name}/outside", f"{name}//moved")
    os.chdir("/")
    fd = os.open(f"{top[1:]}/again", NEW, 0o644)
    assert real_flags(fd) & os.O_PATH
    os.close(fd)
    os.chdir(top)
    raw("test $(cat moved) = x; test -f again; test ! -e outside")


def closes_on_exec():
    """Descriptors are inherited as they were opened."""
    closed = os.open("closed", NEW | os.O_CLOEXEC, 0o600)
    # Python adds the flag to each; this is the call of libc.
    kept = libc.open(b"kept", NEW, 0o600)
    for fd, expected in [(closed, "no"), (kept, "yes")]:
        script = f"test -e /proc/self/fd/{fd} && echo yes || echo no"
        child = subprocess.run(["sh", "-c", script], close_fds=False, stdout=subprocess.PIPE)
        assert child.stdout.decode() == expected + "\n", (fd, expected)
    os.write(kept, b"after")
    assert raw("cat kept") == "after"


def moves():
    """The directory of an open file is renamed and closed to others, and the file removed, meanwhile."""
    os.mkdir("d")
    fd = served("d/f", mode=0o444)
    os.write(fd, b"1")
    raw("mv d e; chmod 000 e")
    os.write(fd, b"2")
    raw("chmod 700 e; rm e/f; rmdir e")
    os.write(fd, b"3")
    assert os.pread(fd, 10, 0) == b"123" and os.fstat(fd).st_nlink == 0
    fd = served("g", mode=0)
    os.write(fd, b"abc")
    os.unlink("g")
    os.write(fd, b"d")
    memory = mmap.mmap(fd, 4)
    assert memory[:] == b"abcd"
    memory[0:1] = b"A"
    memory.flush()
    assert os.pread(fd, 10, 0) == b"Abcd" and raw("ls") == ""


def working_directory():
    """A relative path begins where the working directory is now, whatever its name."""
    os.mkdir("w")
    os.chdir("w")
    here = os.open(".", os.O_RDONLY)
    raw("mv ../w ../v")
    os.close(os.open("f", NEW, 0o600))
    os.chdir("..")
    os.close(os.open("g", NEW, 0o600, dir_fd=here))
    assert raw("ls v") == "f\ng\n"
    os.chdir("v")
    raw("rm -r ../v")
    try:
        os.open("h", NEW, 0o600)
        assert False
    except FileNotFoundError:
        pass


def threads():
    """Processes are forked while other threads write."""
    files = [served(f"f{n}") for n in range(4)]
    ended = threading.Event()

    def write(fd):
        while not ended.is_set():
            assert os.write(fd, b"0123456789") == 10

    writers = [threading.Thread(target=write, args=[fd]) for fd in files]
    for writer in writers:
        writer.start()
    for n in range(60):
        child = os.fork()
        if child == 0:
            fd = os.open(f"child{n}", NEW, 0o600)
            os.write(fd, b"x")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        files.append(os.open(f"more{n}", NEW, 0o600))
    ended.set()
    for writer in writers:
        writer.join()
    for n in range(4):
        data = os.pread(files[n], 1 << 30, 0)
        assert len(data) > 0 and data == b"0123456789" * (len(data) // 10)


def full_table():
    """A program that has all descriptors that it may have goes on."""
    probe = served("probe")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1100, 1100))
    files = [probe]
    try:
        while True:
            files.append(os.open(f"f{len(files)}", NEW, 0o600))
    except OSError as error:
        assert error.errno == 24, error
    for fd in files[-3:]:
        assert os.write(fd, b"abc") == 3
        assert os.pread(fd, 3, 0) == b"abc"
    try:
        os.open("more", NEW, 0o600)
        assert False
    except OSError as error:
        assert error.errno == 24, error
    for fd in files:
        os.close(fd)
    assert "more" not in os.listdir(".")


def sizes():
    """The limit of sizes is the kernel's to keep."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    fd = served("f")
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    assert os.write(fd, b"x" * 60) == 60
    assert os.write(fd, b"x" * 60) == 40
    try:
        os.write(fd, b"x")
        assert False
    except OSError as error:
        assert error.errno == 27
    fd = os.open("g", NEW, 0o600)
    assert os.write(fd, b"x" * 101) == 100


def closes():
    """A program closes all descriptors that it does not know, also those of the library."""
    fd = served("f")
    os.write(fd, b"1")
    for other in range(3, 2000):
        if other not in (fd, helper.stdin.fileno(), helper.stdout.fileno()):
            try:
                os.close(other)
            except OSError:
                pass
    os.write(fd, b"2")
    again = os.open("g", NEW, 0o600)
    os.write(again, b"3")
    low = max(helper.stdin.fileno(), helper.stdout.fileno()) + 1
    os.closerange(low, 2000)
    for n in range(30):
        fd = os.open(f"h{n}", NEW, 0o600)
        os.write(fd, b"4")
    libc.closefrom(low)
    for n in range(30):
        fd = os.open(f"i{n}", NEW, 0o600)
        os.write(fd, b"5")
        os.dup2(fd, 960 + n)
    assert raw("cat f g; cat h* | wc -c; cat i* | wc -c").split() == ["12330", "30"]


def user():
    """A process that changes its user has the rights of the new one."""
    os.mkdir("mine", 0o700)
    os.mkdir("theirs", 0o777)
    os.chmod("theirs", 0o777)
    fd = served("mine/f", mode=0o600)
    os.chmod(".", 0o755)
    os.setuid(4321)
    os.write(fd, b"1")
    for path in ["mine/g", "h"]:
        try:
            os.open(path, NEW, 0o600)
            assert False, path
        except PermissionError:
            pass
    os.close(os.open("theirs/g", NEW, 0o600))
    assert os.stat("theirs/g").st_uid == 4321


def umasks():
    """The umask is the program's, and its children's."""
    os.umask(0o077)
    os.close(served("f", mode=0o666))
    os.mkdir("d")
    child = subprocess.run(["sh", "-c", "umask 0; mkdir e; : > e/g"], check=True)
    assert child.returncode == 0
    assert raw("stat -c %a f d e e/g").split() == ["600", "700", "777", "666"]


def behind_the_back():
    """System calls that the library does not see find nothing, and change nothing."""
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    fd = served("f")
    os.write(fd, b"1")
    # The library sees this one.
    write, fork = {"x86_64": (1, [57]), "aarch64": (64, [220, 17, 0, 0, 0, 0])}[os.uname().machine]
    assert syscall(write, fd, b"2", 1) == 1
    assert raw("cat f") == "12"
    # The functions of libc for forks are not called.
    child = syscall(*fork)
    if child == 0:
        made = os.open("of-child", NEW, 0o600)
        os._exit(os.write(made, b"x") - 1 + is_placeholder(made))
    assert os.waitpid(child, 0)[1] == 0
    os.write(served("of-parent"), b"x")


def mounts_inside():
    """Something is mounted in the volume meanwhile, and taken away."""
    os.mkdir("d")
    os.close(os.open("d/before", NEW, 0o600))
    raw("mount -t tmpfs tmpfs d")
    try:
        os.close(os.open("d/f", NEW, 0o600))
        assert raw("stat -f -c %T d/f") == "tmpfs\n"
    finally:
        raw("umount d")
    assert raw("ls d") == "before\n"
    os.mkdir("e")
    os.close(served("e/f"))


def bound():
    """A directory of the volume is shown elsewhere read-only."""
    os.mkdir("d")
    os.mkdir("shown")
    raw("mount --bind d shown; mount -o remount,bind,ro shown")
    try:
        assert refused("shown/f") == 30
    finally:
        raw("umount shown")


def read_only(top):
    """The mount becomes read-only."""
    os.close(served("f"))
    raw(f"mount -i -o remount,ro {top}")
    try:
        assert refused("g") == 30
    finally:
        raw(f"mount -i -o remount,rw {top}")
    os.close(served("h"))


def busy(top):
    """The mount is in use as long as a file is open, and not longer."""
    os.mkdir("d")
    fd = served("d/f")
    os.chdir("/")
    umount = ["umount", top]
    failed = subprocess.run(umount, env=BARE, stderr=subprocess.PIPE, cwd="/")
    assert b"busy" in failed.stderr, failed
    os.close(fd)
    subprocess.run(umount, env=BARE, check=True, cwd="/")


def killed(pid):
    """The daemon is killed."""
    fd = served("f")
    os.write(fd, b"abc")
    for n in range(20):
        synced = served(f"synced{n}")
        os.write(synced, b"durable")
        (os.fsync if n % 2 else os.fdatasync)(synced)
        assert real_flags(synced) & os.O_PATH
        os.close(synced)
    os.kill(int(pid), signal.SIGKILL)
    for what in [
        # What needs not be waited for fails as soon as there is too much of it.
        lambda: [os.write(fd, b"d") for _ in range(30)],
        lambda: os.open("g", NEW, 0o600),
        lambda: os.mkdir("d"),
        lambda: os.fsync(fd),
    ]:
        try:
            what()
            assert False
        except OSError as error:
            assert error.errno in (107, 103), error
    os.close(fd)


def stale(command, volume):
    """The branch is restored while files are open: those of before are stale, as on the mount."""
    fd = served("f")
    os.write(fd, b"1")
    other = os.open("g", NEW, 0o600)
    os.write(other, b"2")
    os.fsync(other)
    subprocess.run([command, "snapshot", volume, "s"], env=BARE, check=True)
    os.close(os.open("later", NEW, 0o600))
    subprocess.run([command, "restore", volume, "s"], env=BARE, check=True, stdout=subprocess.PIPE)
    try:
        os.write(fd, b"3")
        os.fsync(fd)
        assert False
    except OSError as error:
        assert error.errno == 116, error
    assert raw("cat f") == "1"
    os.close(os.open("new", NEW, 0o600))
    assert sorted(os.listdir(".")) == ["f", "g", "new"]


def full():
    """A write that finds no space fails at once."""
    fd = served("f")
    try:
        while True:
            os.write(fd, b"x" * 16000)
    except OSError as error:
        assert error.errno == 28, error
    size = os.fstat(fd).st_size
    os.close(fd)
    assert len(open("f", "rb").read()) == size


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
