/*
 * CairnFS: a crash-safe POSIX file system in one file or block device, as a library.
 *
 * Every call that returns an int returns 0 or an errno value, and leaves the text of its failure
 * to cairnfs_message(). docs/c-api.md has the rules: handles, structs, buffers, threads, fork().
 */

#ifndef CAIRNFS_H
#define CAIRNFS_H

/* Made by cbindgen from the sources of cairnfs-capi; a test compares both. */

#include <stddef.h>
#include <stdint.h>

// The version of the binary interface in this header. A library of the same version has every
// function and struct of it; functions and fields are only added, and each addition increases the
// version.
#define CAIRNFS_ABI_VERSION 2

// An owner or group that stays as it is.
#define CAIRNFS_KEEP UINT32_MAX

// Bytes of a buffer for the name of a branch or snapshot, with its zero byte.
#define CAIRNFS_NAME_SIZE 256

// cairnfs_publish(): changes nothing, only looks for conflicts.
#define CAIRNFS_DRY_RUN 1

// cairnfs_rename(): fail with EEXIST if the new name exists.
#define CAIRNFS_RENAME_NOREPLACE 1

// cairnfs_rename(): exchange the two names.
#define CAIRNFS_RENAME_EXCHANGE 2

// cairnfs_diff(): compares the new state with that in which it has parted from the old one.
#define CAIRNFS_SINCE_FORK 1

// Of a change: the file is in the new state only.
#define CAIRNFS_ADDED 1

// Of a change: the file is in the old state only.
#define CAIRNFS_REMOVED 2

// Of a change: the file has another name, and perhaps other changes.
#define CAIRNFS_RENAMED 3

// Of a change: the file changed under the same name, got or lost further names, or was replaced by
// another file of its type.
#define CAIRNFS_CHANGED 4

// Of a change: contents.
#define CAIRNFS_CHANGED_CONTENTS 1

// Of a change: size.
#define CAIRNFS_CHANGED_SIZE 2

// Of a change: permissions.
#define CAIRNFS_CHANGED_MODE 4

// Of a change: owner or group.
#define CAIRNFS_CHANGED_OWNER 8

// Of a change: time of the last change of the contents.
#define CAIRNFS_CHANGED_MTIME 16

// Of a change: inode flags, or the device number of a special file.
#define CAIRNFS_CHANGED_FLAGS 32

// Of a change: extended attributes.
#define CAIRNFS_CHANGED_XATTRS 64

// Of a conflict: both changed the contents.
#define CAIRNFS_CONFLICT_CONTENTS 1

// Of a conflict: both set an attribute.
#define CAIRNFS_CONFLICT_ATTRIBUTE 2

// Of a conflict: both set an extended attribute.
#define CAIRNFS_CONFLICT_XATTR 3

// Of a conflict: one removed what the other changed.
#define CAIRNFS_CONFLICT_REMOVED 4

// Of a conflict: both renamed it.
#define CAIRNFS_CONFLICT_RENAMED 5

// Of a conflict: each removed the name that the other kept.
#define CAIRNFS_CONFLICT_NAMELESS 6

// Of a conflict: both put a different file there.
#define CAIRNFS_CONFLICT_NAME_TAKEN 7

// Of a conflict: one removed the directory that the other uses.
#define CAIRNFS_CONFLICT_DIRECTORY_REMOVED 8

// Of a conflict: both moved directories, which would hold each other.
#define CAIRNFS_CONFLICT_CIRCLE 9

// All changes are refused, and the volume is not written. Several processes may have it open so.
#define CAIRNFS_READ_ONLY 1

// A volume is created if there is no file; this needs a size.
#define CAIRNFS_CREATE 2

// With CAIRNFS_CREATE: fails if the file exists.
#define CAIRNFS_EXCLUSIVE 4

// The log is not replayed: read-only, as the last merge left the volume. For salvage.
#define CAIRNFS_NO_RECOVERY 8

// Freed space is not discarded.
#define CAIRNFS_NO_DISCARD 16

// New files belong to uid and gid instead of the effective user and group of the process.
#define CAIRNFS_OWNER 32

// A new volume in memory, which is freed when it is closed; the path must be null.
#define CAIRNFS_IN_MEMORY 64

// cairnfs_setxattr(): fail with EEXIST if the attribute exists.
#define CAIRNFS_XATTR_CREATE 1

// cairnfs_setxattr(): fail with ENODATA if it does not exist.
#define CAIRNFS_XATTR_REPLACE 2

// An open volume, or a branch or snapshot of one, by its number; 0 is none.
typedef uint64_t cairnfs_volume;

// A point in time.
struct cairnfs_timespec {
  // Seconds since the epoch, negative before it.
  int64_t sec;
  // Nanoseconds after that second; as a time to set also UTIME_NOW and UTIME_OMIT of sys/stat.h.
  int64_t nsec;
};

// Attributes of a file, as in stat(2).
struct cairnfs_stat {
  // sizeof (struct cairnfs_stat).
  uint32_t struct_size;
  // Type bits and permissions.
  uint32_t mode;
  // Inode number.
  uint64_t ino;
  // Number of links.
  uint64_t nlink;
  // Owner.
  uint32_t uid;
  // Group.
  uint32_t gid;
  // Device number of a special file, as made by makedev(3).
  uint64_t rdev;
  // Size in bytes; of a directory, the number of its entries.
  uint64_t size;
  // Space used, in units of 512 bytes.
  uint64_t blocks;
  // Last access.
  struct cairnfs_timespec atime;
  // Last change of the contents.
  struct cairnfs_timespec mtime;
  // Last change of contents, attributes or names.
  struct cairnfs_timespec ctime;
  // Creation.
  struct cairnfs_timespec btime;
  // Inode flags, as FS_IOC_GETFLAGS returns them.
  uint32_t flags;
  // 0.
  uint32_t reserved;
};

// An open file, by its number; 0 is none.
typedef uint64_t cairnfs_file;

// A branch or snapshot of a volume.
struct cairnfs_root {
  // sizeof (struct cairnfs_root).
  uint32_t struct_size;
  // Its id, which no other root ever gets.
  uint32_t id;
  // 1 if its files can be changed, 0 for a snapshot.
  uint32_t writable;
  // Length of the name, without its zero byte; 0 if it has none.
  uint32_t name_len;
  // Creation.
  struct cairnfs_timespec created;
  // The name in UTF-8, ended by a zero byte.
  char name[256];
  // The id of the root that it was forked from, or that was frozen when it was forked; 0 if there
  // is none.
  uint32_t parent;
  // 1 if it has no name and goes as soon as nobody reads it, else 0.
  uint32_t being_dropped;
};

// How to publish a branch. Zeroed except for struct_size it means: onto main, and conflicts change
// nothing.
struct cairnfs_publish_options {
  // sizeof (struct cairnfs_publish_options).
  uint32_t struct_size;
  // Flags: 0 or CAIRNFS_DRY_RUN.
  uint32_t flags;
  // The base: the name of the branch that gets the changes; or null for main.
  const char *onto;
  // Paths at and below which what is in conflict is taken from the base. Of several paths above a
  // conflict the deepest decides, and this list before the other.
  const char *const *ours;
  // Their number.
  size_t ours_count;
  // Paths at and below which it is taken from the branch, likewise.
  const char *const *theirs;
  // Their number.
  size_t theirs_count;
};

// What a publish did.
struct cairnfs_published {
  // sizeof (struct cairnfs_published).
  uint32_t struct_size;
  // 1 if the base had changed since the branch began, so that changes were merged, or would be by a
  // dry run; else 0, also if there are conflicts.
  uint32_t merged;
  // Number of conflicts; if there are any, nothing was changed.
  uint64_t conflicts;
  // Length of the name in kept, without its zero byte; 0 if nothing was changed.
  uint32_t kept_len;
  // 0.
  uint32_t reserved;
  // The snapshot of the base's state before, ended by a zero byte.
  char kept[256];
};

// A report of changes or conflicts, by its number; 0 is none.
typedef uint64_t cairnfs_report;

// How far the work is that dropped snapshots and branches have left.
struct cairnfs_drop_progress {
  // sizeof (struct cairnfs_drop_progress).
  uint32_t struct_size;
  // How many of them are left.
  uint32_t left;
  // The part of the first one that is done, in thousandths, as far as that is known.
  uint32_t permille;
  // 1 if nothing is left, or only what somebody still reads; 0 if the time was up before.
  uint32_t finished;
};

// An open listing of a directory, by its number; 0 is none.
typedef uint64_t cairnfs_dir;

// An entry of a directory.
struct cairnfs_dirent {
  // sizeof (struct cairnfs_dirent).
  uint32_t struct_size;
  // The type bits of its mode.
  uint32_t mode;
  // Inode number.
  uint64_t ino;
  // Length of the name, without its zero byte.
  uint32_t name_len;
  // 0.
  uint32_t reserved;
  // The name, ended by a zero byte.
  char name[256];
};

// A file that differs between two states.
struct cairnfs_change {
  // sizeof (struct cairnfs_change).
  uint32_t struct_size;
  // CAIRNFS_ADDED, CAIRNFS_REMOVED, CAIRNFS_RENAMED or CAIRNFS_CHANGED; 0 at the end of a report.
  uint32_t status;
  // Inode number; of a removed file in the old state, else in the new one.
  uint64_t ino;
  // Inode number in the old state, if another file has replaced the one of this path; else 0.
  uint64_t old_ino;
  // The type bits of its mode.
  uint32_t mode;
  // What changed: sums of CAIRNFS_CHANGED_CONTENTS and others; 0 of an added or removed file.
  uint32_t changed;
  // Bytes of the file, or of a symbolic link's target; of a removed file in the old state.
  uint64_t size;
  // Bytes that were written of what changed: no holes, nothing that was cut off.
  uint64_t written;
  // Length of its path in the new state, or in the old one if it is not in the new one.
  uint64_t path_len;
  // Length of a path that only the old state has; 0 if there is none.
  uint64_t old_path_len;
  // Paths that only the old state has.
  uint32_t old_names;
  // Paths that only the new state has.
  uint32_t new_names;
};

// Changes of a branch and its base that exclude each other.
struct cairnfs_conflict {
  // sizeof (struct cairnfs_conflict).
  uint32_t struct_size;
  // CAIRNFS_CONFLICT_CONTENTS or another one; 0 at the end of a report.
  uint32_t kind;
  // Length of its path: that in the base if there is one.
  uint64_t path_len;
  // Length of the text that says what is in conflict.
  uint64_t why_len;
};

// How to open or create a volume. Zeroed except for struct_size it means: an existing volume, for
// reading and writing, with the defaults of the library.
struct cairnfs_volume_options {
  // sizeof (struct cairnfs_volume_options).
  uint32_t struct_size;
  // Flags: CAIRNFS_READ_ONLY and others.
  uint32_t flags;
  // Bytes of a new volume.
  uint64_t size;
  // Bytes of memory for caches and unwritten changes; 0 for the default.
  uint64_t cache_budget;
  // Milliseconds from one sync of the whole volume to the next; 0 for the default of 5 seconds,
  // negative for none.
  int64_t durability_interval_ms;
  // With CAIRNFS_OWNER, the owner of new files.
  uint32_t uid;
  // With CAIRNFS_OWNER, the group of new files.
  uint32_t gid;
  // The label of a new volume in UTF-8, 64 bytes at most; or null.
  const char *label;
  // The name of the snapshot to open, which needs CAIRNFS_READ_ONLY; or null. Others, and branches,
  // are opened by cairnfs_open_branch().
  const char *root;
};

// Space and inodes of a volume.
struct cairnfs_statfs {
  // sizeof (struct cairnfs_statfs).
  uint32_t struct_size;
  // Bytes per block.
  uint32_t block_size;
  // Blocks usable by files and index.
  uint64_t blocks;
  // Free blocks.
  uint64_t free_blocks;
  // Blocks that can still be allocated to files.
  uint64_t available_blocks;
  // Inodes that fit into an empty volume.
  uint64_t files;
  // Empty files that fit into the available space.
  uint64_t free_files;
  // Longest name in bytes.
  uint32_t name_max;
  // 0.
  uint32_t reserved;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the binary interface in the library: at least `CAIRNFS_ABI_VERSION` of the
// header if the library is not older than the header.
uint32_t cairnfs_abi_version(void);

// The version of the library as text, for example "0.1.0". It is never freed.
const char *cairnfs_version(void);

// Gets the attributes of a file. If follow is 0, a symbolic link at the end of the path is not
// followed.
int cairnfs_stat(cairnfs_volume volume, const char *path, int follow, struct cairnfs_stat *stat);

// Gets the attributes of an open file.
int cairnfs_fstat(cairnfs_file file, struct cairnfs_stat *stat);

// Sets the permissions of a file, including set-id and sticky bits; follows a symbolic link.
int cairnfs_chmod(cairnfs_volume volume, const char *path, uint32_t mode);

// Sets the permissions of an open file.
int cairnfs_fchmod(cairnfs_file file, uint32_t mode);

// Sets owner and group of a file; CAIRNFS_KEEP leaves one as it is. If follow is 0, a symbolic link
// at the end of the path is not followed.
int cairnfs_chown(cairnfs_volume volume, const char *path, uint32_t uid, uint32_t gid, int follow);

// Sets owner and group of an open file; CAIRNFS_KEEP leaves one as it is.
int cairnfs_fchown(cairnfs_file file, uint32_t uid, uint32_t gid);

// Sets the inode flags of a file or directory, with the bits of FS_IOC_SETFLAGS; follows a symbolic
// link.
int cairnfs_set_flags(cairnfs_volume volume, const char *path, uint32_t flags);

// Makes a durable snapshot of all files under a name in UTF-8. It is read through
// cairnfs_open_branch(), or by opening the volume with this name as root.
int cairnfs_snapshot(cairnfs_volume volume, const char *name);

// Makes a durable branch under a name in UTF-8, and opens it: a tree of files that begins as this
// one is now, and is changed independently of it. The branch is a volume for all other calls;
// cairnfs_sync(), cairnfs_sync_through() and cairnfs_trim() are those of the whole volume.
int cairnfs_branch(cairnfs_volume volume, const char *name, cairnfs_volume *branch);

// Opens a branch or snapshot of an open volume by its name. The files of a snapshot cannot be
// changed (EROFS). All handles of one branch lead to the same tree.
int cairnfs_open_branch(cairnfs_volume volume, const char *name, cairnfs_volume *branch);

// Gives a branch or snapshot another name. It stays open under it.
int cairnfs_rename_root(cairnfs_volume volume, const char *old, const char *new_);

// Gets all branches and snapshots of the volume, in order of their ids. Sets *count to their number;
// with a capacity of 0 only that, ERANGE if the capacity is too small. struct_size of the first
// element holds for all.
int cairnfs_roots(cairnfs_volume volume,
                  struct cairnfs_root *roots,
                  size_t capacity,
                  size_t *count);

// Gets the branch or snapshot of a reference: its name, BRANCH@SNAPSHOT, or BRANCH@TIME, the newest
// snapshot in the history of the branch that is as old (10:30, 2026-01-31T10:30, -5m).
int cairnfs_find_root(cairnfs_volume volume, const char *reference, struct cairnfs_root *root);

// Gets the bytes that belong to a branch or snapshot alone, given by its id: what dropping it frees;
// 0 if others were forked from it. Changes that are not merged yet are
// merged first. It takes as long as that, and as it differs from its neighbours.
int cairnfs_space_of(cairnfs_volume volume,
                     uint32_t id,
                     uint64_t *bytes);

// The message of the last call of this thread that failed; "" if none has. It stays valid until
// another call of this thread fails, or the thread ends.
const char *cairnfs_message(void);

// Opens a file with the flags of open(2): O_RDONLY, O_WRONLY or O_RDWR, and O_APPEND, O_CREAT,
// O_EXCL, O_TRUNC, O_SYNC, O_DSYNC, O_DIRECTORY. O_CREAT, O_TRUNC and O_APPEND need O_WRONLY or
// O_RDWR. The mode of a new file is used as it is: there is no umask. A directory can be opened to
// be synced.
int cairnfs_open(cairnfs_volume volume,
                 const char *path,
                 int flags,
                 uint32_t mode,
                 cairnfs_file *file);

// Creates a file without a name for reading and writing, with the mode 0600. It inherits from a
// directory as a new entry would; it is removed when it is closed, unless cairnfs_link_file() gave
// it a name.
int cairnfs_tmpfile(cairnfs_volume volume, const char *dir, cairnfs_file *file);

// Closes a file. Nothing is buffered, and nothing becomes durable by it.
int cairnfs_close(cairnfs_file file);

// Reads at the position of the file, and moves it; sets *done to the bytes read, 0 at the end.
int cairnfs_read(cairnfs_file file, void *buffer, size_t length, size_t *done);

// Writes at the position of the file, or at its end with O_APPEND, and moves the position; sets
// *done to the bytes written.
int cairnfs_write(cairnfs_file file, const void *bytes, size_t length, size_t *done);

// Reads at a byte offset; sets *done to the bytes read, fewer than asked for only at the end.
int cairnfs_pread(cairnfs_file file, void *buffer, size_t length, uint64_t offset, size_t *done);

// Writes at a byte offset, also in a file with O_APPEND; sets *done to the bytes written.
int cairnfs_pwrite(cairnfs_file file,
                   const void *bytes,
                   size_t length,
                   uint64_t offset,
                   size_t *done);

// Moves the position of a file as lseek(2): SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA, SEEK_HOLE;
// sets *position, unless it is null.
int cairnfs_lseek(cairnfs_file file, int64_t offset, int whence, uint64_t *position);

// Makes a file durable with data, attributes, all its names and the directories on their paths; a
// directory also with all its entries.
int cairnfs_fsync(cairnfs_file file);

// Makes the data of a file durable, and the attributes needed to read it.
int cairnfs_fdatasync(cairnfs_file file);

// Cuts or extends an open file.
int cairnfs_ftruncate(cairnfs_file file, uint64_t size);

// Cuts or extends a file.
int cairnfs_truncate(cairnfs_volume volume, const char *path, uint64_t size);

// Changes the space of a range, with the modes of fallocate(2): 0 or FALLOC_FL_KEEP_SIZE to
// allocate, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE with or without
// FALLOC_FL_KEEP_SIZE; EOPNOTSUPP for others.
int cairnfs_fallocate(cairnfs_file file, int mode, uint64_t offset, uint64_t length);

// Copies contents and permissions of a file within the volume, in several steps; holes stay holes.
int cairnfs_copy_file(cairnfs_volume volume, const char *from, const char *to);

// Copies up to `length` bytes from a range of a file to one of another file of the volume, or of
// the same; sets *done to the bytes copied, fewer only at the end of the first file.
int cairnfs_copy_range(cairnfs_file from,
                       uint64_t from_offset,
                       cairnfs_file to,
                       uint64_t to_offset,
                       uint64_t length,
                       uint64_t *done);

// Makes the files of a branch those of main, or of the branch in the options, in one atomic step. The
// branch is gone then, and the state before is kept as a snapshot, whose name is in *published. If
// both sides changed, the changes are merged by files. ECANCELED if that meets conflicts: nothing was
// changed, *published has their number, and unless conflicts is null, *conflicts is a report of them
// for cairnfs_next_conflict(), else 0. With CAIRNFS_DRY_RUN conflicts are no failure. The options may
// be null. Handles that were opened on the base before keep its files of then, and refuse changes
// with ESTALE: open the branch again.
int cairnfs_publish(cairnfs_volume volume,
                    const char *branch,
                    const struct cairnfs_publish_options *options,
                    struct cairnfs_published *published,
                    cairnfs_report *conflicts);

// Makes the files of a branch, or of main at a null pointer, those of a reference (cairnfs_find_root())
// in one atomic step; with paths, only the files at and below these. The state before is kept as a
// snapshot; unless kept is null, it has CAIRNFS_NAME_SIZE bytes, and gets its name. Handles that were
// opened before are as after cairnfs_publish().
int cairnfs_restore(cairnfs_volume volume,
                    const char *reference,
                    const char *branch,
                    const char *const *paths,
                    size_t count,
                    char *kept);

// Drops the snapshot or branch of a reference. Its name is gone when this returns, and its space is
// freed in the background, or by cairnfs_free_drops(). EBUSY if it is open: close its handles, files
// and listings.
int cairnfs_drop_root(cairnfs_volume volume,
                      const char *reference);

// Frees what everything that was dropped has left, for about timeout_ms milliseconds at most, or to
// the end if that is negative. Unless progress is null, it gets how far this is. What is not done
// then, is done in the background.
int cairnfs_free_drops(cairnfs_volume volume,
                       int64_t timeout_ms,
                       struct cairnfs_drop_progress *progress);

// Writes a snapshot to a descriptor, as a stream that cairnfs_receive() of another volume, or
// `cairnfs receive`, reads: as a whole, or unless base is null, as the changes from that snapshot,
// which the receiver must have. A descriptor that cannot be written fails as with write(2), also with
// SIGPIPE.
int cairnfs_send(cairnfs_volume volume,
                 const char *snapshot,
                 const char *base,
                 int fd);

// Reads a stream from a descriptor, and makes a durable snapshot of it: under a name in UTF-8, or at a
// null pointer under one made of the time. Unless received is null, it has CAIRNFS_NAME_SIZE bytes,
// and gets the name. If this fails, nothing is left of the stream. Nothing in it is trusted. The
// descriptor must end with the stream.
int cairnfs_receive(cairnfs_volume volume,
                    int fd,
                    const char *name,
                    char *received);

// Opens a listing of a directory.
int cairnfs_opendir(cairnfs_volume volume, const char *path, cairnfs_dir *dir);

// Gets the next entries of a directory, `capacity` at most, without "." and "..", in the order of
// their creation. Sets *count to their number: 0 at the end. If stats is not null, it has
// `capacity` elements, and gets the attributes of each entry; symbolic links are not followed.
// struct_size of the first element of an array holds for all.
int cairnfs_readdir(cairnfs_dir dir,
                    struct cairnfs_dirent *entries,
                    struct cairnfs_stat *stats,
                    size_t capacity,
                    size_t *count);

// Closes a listing.
int cairnfs_closedir(cairnfs_dir dir);

// Creates an empty directory. The mode is used as it is: there is no umask.
int cairnfs_mkdir(cairnfs_volume volume, const char *path, uint32_t mode);

// Creates a directory and all that are missing on its path, with the mode 0755. Not an error if it
// exists.
int cairnfs_mkdir_all(cairnfs_volume volume, const char *path);

// Creates an empty file, FIFO, socket or device node, as mknod(2).
int cairnfs_mknod(cairnfs_volume volume, const char *path, uint32_t mode, uint64_t rdev);

// Removes an empty directory.
int cairnfs_rmdir(cairnfs_volume volume, const char *path);

// Removes a name of anything but a directory. An open file stays usable.
int cairnfs_unlink(cairnfs_volume volume, const char *path);

// Removes a directory with everything in it, in many steps; symbolic links are not followed.
int cairnfs_remove_all(cairnfs_volume volume, const char *path);

// Renames a file or directory, and replaces what has the new name, as rename(2). Flags: 0,
// CAIRNFS_RENAME_NOREPLACE or CAIRNFS_RENAME_EXCHANGE.
int cairnfs_rename(cairnfs_volume volume, const char *from, const char *to, uint32_t flags);

// Adds a name to a file. A symbolic link at the end of the old path is not followed.
int cairnfs_link(cairnfs_volume volume, const char *from, const char *to);

// Adds a name to an open file of the volume, also to one of cairnfs_tmpfile(). After a crash the
// name leads to all bytes written before, or does not exist.
int cairnfs_link_file(cairnfs_volume volume, cairnfs_file file, const char *path);

// Creates a symbolic link.
int cairnfs_symlink(cairnfs_volume volume, const char *target, const char *path);

// Gets the target of a symbolic link, without a zero byte. Sets *length to its length; with a
// capacity of 0 only that, ERANGE if the capacity is too small.
int cairnfs_readlink(cairnfs_volume volume,
                     const char *path,
                     char *buffer,
                     size_t capacity,
                     size_t *length);

// Gets the absolute path of an existing file, without symbolic links, "." and "..", and without a
// zero byte. Length and capacity as with cairnfs_readlink().
int cairnfs_realpath(cairnfs_volume volume,
                     const char *path,
                     char *buffer,
                     size_t capacity,
                     size_t *length);

// Compares the states of two references (cairnfs_find_root()), a branch as it is now: opens a report
// of the files that differ from the old one to the new one, in order of their paths. It takes as
// long as there are differences, not files. Flags: 0 or CAIRNFS_SINCE_FORK.
int cairnfs_diff(cairnfs_volume volume,
                 const char *old,
                 const char *new_,
                 uint32_t flags,
                 cairnfs_report *report);

// Gets the next change of a report of cairnfs_diff(); its status is 0 at the end. The buffer gets its
// path, and behind that, if old_path_len is not 0, a path that only the old state has, each ended by
// a zero byte. ERANGE if the capacity is below path_len + old_path_len + 2: the struct was filled, and
// the change stays the next one.
int cairnfs_next_change(cairnfs_report report,
                        struct cairnfs_change *change,
                        char *buffer,
                        size_t capacity);

// Gets the next conflict of a report of cairnfs_publish(); its kind is 0 at the end. The buffer gets
// its path, and behind that a text that says what is in conflict, each ended by a zero byte. ERANGE if
// the capacity is below path_len + why_len + 2: the struct was filled, and the conflict stays the
// next one.
int cairnfs_next_conflict(cairnfs_report report,
                          struct cairnfs_conflict *conflict,
                          char *buffer,
                          size_t capacity);

// Closes a report.
int cairnfs_close_report(cairnfs_report report);

// Sets the times of access and modification, the first and the second of two, as utimensat(2);
// both to the present if times is null. If follow is 0, a symbolic link at the end of the path is
// not followed.
int cairnfs_utimens(cairnfs_volume volume,
                    const char *path,
                    const struct cairnfs_timespec *times,
                    int follow);

// Sets the times of an open file, as cairnfs_utimens().
int cairnfs_futimens(cairnfs_file file, const struct cairnfs_timespec *times);

// Opens the volume in a file or block device of the host, or creates it. The options may be null.
// EBUSY if another process, or this one, has it open.
int cairnfs_open_volume(const char *path,
                        const struct cairnfs_volume_options *options,
                        cairnfs_volume *volume);

// Writes everything and closes a volume with its branches. Its files, listings and branches must
// still be closed, but every other call on them is EBADF. The handle is closed also if the call
// fails: then changes may be lost. The handle of a branch is closed without closing the volume.
int cairnfs_close_volume(cairnfs_volume volume);

// Makes all changes durable that returned before this call.
int cairnfs_sync(cairnfs_volume volume);

// Gets a point in the order of changes: after all changes of any thread that returned before this
// call. For cairnfs_sync_through() of the same open volume.
int cairnfs_sequence(cairnfs_volume volume, uint64_t *sequence);

// Makes everything up to a sequence durable. Threads that call it at once share one sync; it
// returns at once if the sequence is durable.
int cairnfs_sync_through(cairnfs_volume volume, uint64_t sequence);

// Sets *durable to whether everything up to a sequence is known to be durable: 1 or 0.
int cairnfs_is_durable(cairnfs_volume volume, uint64_t sequence, int *durable);

// Makes a directory durable with all its entries, and the directories on its path.
int cairnfs_sync_dir(cairnfs_volume volume, const char *path);

// Makes several files of a volume durable, each as cairnfs_fsync(), with one flush of the device.
int cairnfs_sync_files(cairnfs_volume volume, const cairnfs_file *files, size_t count);

// Gets space and inodes of a volume.
int cairnfs_statfs(cairnfs_volume volume, struct cairnfs_statfs *space);

// Discards all free space of the volume in its file or device; sets *discarded, unless it is null,
// to the bytes.
int cairnfs_trim(cairnfs_volume volume, uint64_t *discarded);

// Gets the value of an extended attribute; follows a symbolic link. Sets *length to its length;
// with a capacity of 0 only that, ERANGE if the capacity is too small. ENODATA if there is none.
int cairnfs_getxattr(cairnfs_volume volume,
                     const char *path,
                     const char *name,
                     void *value,
                     size_t capacity,
                     size_t *length);

// Gets the value of an extended attribute of an open file, as cairnfs_getxattr().
int cairnfs_fgetxattr(cairnfs_file file,
                      const char *name,
                      void *value,
                      size_t capacity,
                      size_t *length);

// Sets an extended attribute; follows a symbolic link. Flags: 0, CAIRNFS_XATTR_CREATE or
// CAIRNFS_XATTR_REPLACE.
int cairnfs_setxattr(cairnfs_volume volume,
                     const char *path,
                     const char *name,
                     const void *value,
                     size_t length,
                     uint32_t flags);

// Sets an extended attribute of an open file, as cairnfs_setxattr().
int cairnfs_fsetxattr(cairnfs_file file,
                      const char *name,
                      const void *value,
                      size_t length,
                      uint32_t flags);

// Gets the names of all extended attributes, each ended by a zero byte; follows a symbolic link.
// Length and capacity as with cairnfs_getxattr().
int cairnfs_listxattr(cairnfs_volume volume,
                      const char *path,
                      char *names,
                      size_t capacity,
                      size_t *length);

// Gets the names of all extended attributes of an open file, as cairnfs_listxattr().
int cairnfs_flistxattr(cairnfs_file file, char *names, size_t capacity, size_t *length);

// Removes an extended attribute; follows a symbolic link.
int cairnfs_removexattr(cairnfs_volume volume, const char *path, const char *name);

// Removes an extended attribute of an open file.
int cairnfs_fremovexattr(cairnfs_file file, const char *name);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* CAIRNFS_H */
