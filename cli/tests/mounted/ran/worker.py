"""Makes the calls that it reads, one JSON list a line, in the directory of its argument, and writes what
came of each: what a program sees of it, or the error number. Descriptors have names."""

import ctypes
import json
import mmap
import os
import struct
import subprocess
import sys

root = sys.argv[1]
os.umask(0o022)
os.chdir(root)
files = {}
dirs = {}


def attributes(stat):
    """Of a directory only what is the same on all file systems."""
    if stat.st_mode & 0o170000 == 0o040000:
        return [stat.st_mode, stat.st_nlink]
    return [stat.st_mode, stat.st_nlink, stat.st_size, stat.st_uid, stat.st_gid]


libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]


def extended(path, flags, mask):
    """What statx(2) tells, besides that its mask and attributes are those of the root."""
    found = ctypes.create_string_buffer(256)
    if libc.statx(-100, path.encode(), flags, mask, found) == -1:
        raise OSError(ctypes.get_errno(), path)
    told, block, attributes, links, user, group, mode, size = struct.unpack_from("=IIQIIIH10xQ", found)
    assert told & mask & 0x7FF == mask & 0x7FF and block and not attributes, found.raw
    is_dir = mode & 0o170000 == 0o040000
    return [mode, links] + ([] if is_dir else [size, user, group])


def mapped_privately(fd):
    size = os.fstat(fd).st_size
    # Not by Python's mapping, which needs a duplicate.
    at = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE, fd, 0)
    if at == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    text = ctypes.string_at(at, size).hex()
    libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
    return text


def opened(name, path, flags, mode):
    if name in files:
        os.close(files.pop(name))
    fd = os.open(path, flags, mode)
    if flags == os.O_RDONLY and os.path.isdir(f"/proc/self/fd/{fd}"):
        os.close(fd)
        return "directory"
    files[name] = fd


def opened_dir(name, path):
    if name in dirs:
        os.close(dirs.pop(name))
    dirs[name] = os.open(path, os.O_RDONLY | os.O_DIRECTORY)


def opened_below(dir, name, other):
    if dir not in dirs or other == dir:
        return "no directory"
    if other in dirs:
        os.close(dirs.pop(other))
    dirs[other] = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=dirs[dir])


def entered(dir):
    os.fchdir(dir)
    os.chdir(root)


def removed(dir, name):
    is_dir = os.stat(name, dir_fd=dir, follow_symlinks=False).st_mode & 0o170000 == 0o040000
    os.rmdir(name, dir_fd=dir) if is_dir else os.unlink(name, dir_fd=dir)


def made_below(dir, name, text):
    fd = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644, dir_fd=dir)
    os.write(fd, text.encode())
    os.close(fd)


def duplicated(fd, name):
    if name in files:
        os.close(files.pop(name))
    files[name] = os.dup(fd)


def mapped(fd):
    size = os.fstat(fd).st_size
    if size:
        with mmap.mmap(fd, size) as memory:
            memory[0:1] = b"M"


def forked(fd, text):
    child = os.fork()
    if child == 0:
        try:
            os._exit(os.write(fd, text.encode()))
        except OSError as error:
            os._exit(100 + error.errno)
    return os.waitpid(child, 0)[1]


def inherited(fd, text):
    os.set_inheritable(fd, True)
    script = ["sh", "-c", f"echo {text} >&{fd}"]
    return subprocess.run(script, pass_fds=[fd], stderr=subprocess.DEVNULL).returncode


def times_set(fd, access, change):
    os.utime(fd, ns=(access, change))
    return os.fstat(fd).st_mtime_ns


def tree():
    found = []
    for dir, dirs, names in os.walk(root):
        found.append([os.path.relpath(dir, root), attributes(os.lstat(dir)), sorted(dirs + names)])
        for name in names:
            path = os.path.join(dir, name)
            entry = [os.path.relpath(path, root), attributes(os.lstat(path))]
            if os.path.islink(path):
                entry.append(os.readlink(path))
            else:
                entry.append(read(path))
            found.append(entry)
    return sorted(found, key=json.dumps)


def read(path):
    with open(path, "rb") as file:
        return file.read().hex()


def appended(path, text):
    with open(path, "a") as file:
        file.write(text)


BY_FILE = {
    "write": lambda fd, text: os.write(fd, text.encode()),
    "writev": lambda fd, *texts: os.writev(fd, [text.encode() for text in texts]),
    "pwrite": lambda fd, text, at: os.pwrite(fd, text.encode(), at),
    "pread": lambda fd, len, at: os.pread(fd, len, at).hex(),
    "seek": os.lseek,
    "truncate": os.ftruncate,
    "fstat": lambda fd: attributes(os.fstat(fd)),
    "fchmod": os.fchmod,
    "fchown": os.fchown,
    "futimens": times_set,
    "fsync": os.fsync,
    "fdatasync": os.fdatasync,
    "map": mapped_privately,
    "dup": duplicated,
    "mmap": mapped,
    "fork": forked,
    "inherit": inherited,
}
BY_DIR = {
    "listdir": lambda dir: sorted(os.listdir(dir)),
    "statat": lambda dir, name: attributes(os.stat(name, dir_fd=dir, follow_symlinks=False)),
    "fstatdir": lambda dir: attributes(os.fstat(dir)),
    "removeat": removed,
    "mkdirat": lambda dir, name: os.mkdir(name, dir_fd=dir),
    "createat": made_below,
    "renameat": lambda dir, old, new: os.rename(old, new, src_dir_fd=dir, dst_dir_fd=dir),
    "readat": lambda dir, name: os.close(os.open(name, os.O_RDONLY, dir_fd=dir)),
    "enter": entered,
    "dupdir": lambda dir: os.close(os.dup(dir)),
}
BY_PATH = {
    "open": opened,
    "opendir": opened_dir,
    "openbelow": opened_below,
    "mkdir": os.mkdir,
    "rmdir": os.rmdir,
    "unlink": os.unlink,
    "rename": os.rename,
    "link": os.link,
    "symlink": os.symlink,
    "chmod": os.chmod,
    "chown": os.chown,
    "utime": lambda path, access, change: os.utime(path, ns=(access, change)),
    "stat": lambda path: attributes(os.lstat(path)),
    "follow": lambda path: attributes(os.stat(path)),
    "statx": extended,
    "access": os.access,
    "list": lambda path: sorted(os.listdir(path)),
    "read": read,
    "append": appended,
    "tree": tree,
}


def call(name, *args):
    try:
        if name in BY_PATH:
            return BY_PATH[name](*args)
        file, *rest = args
        if name in BY_DIR:
            return BY_DIR[name](dirs[file], *rest) if file in dirs else "no directory"
        if file not in files:
            return "no file"
        if name == "close":
            return os.close(files.pop(file))
        if name == "dup2":
            return os.dup2(files[file], files[rest[0]]) and None if rest[0] in files else "no file"
        return BY_FILE[name](files[file], *rest)
    except OSError as error:
        return f"error {error.errno}"


print(flush=True)
for line in sys.stdin:
    print(json.dumps(call(*json.loads(line))), flush=True)
