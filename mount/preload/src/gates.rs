//! The functions of libc that are not served: before each, descriptors of the kernel take the place of
//! placeholders. They are passed through as they were called, whatever arguments they have, by code that
//! keeps all registers of arguments and jumps to the next function. So functions with variable arguments
//! can be among them, and those that return twice.

use std::ffi::{c_char, c_void};

use crate::next::{Next, name};
use crate::raw::fail;
use crate::{files, life, limits, names, session};

/// What is done before a function is called.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// Its first argument is a descriptor; if it fails, it returns -1.
    First,
    /// The same for one that returns null, or a number of an error: that of a descriptor that cannot be used.
    FirstToo,
    /// Its first argument is a path, which may lead to a descriptor of this process.
    Path,
    /// Its second one is.
    SecondPath,
    /// Both are.
    Paths,
    /// Its first argument is a descriptor, its second one such a path; if it fails, it returns -1.
    At,
    /// It may use any descriptor, or hand them on.
    All,
    /// The same, and it may make a process with the memory of this one.
    Shares,
    /// Its first argument is a limit that it changes.
    Limit,
    /// It may change any limit.
    Limits,
    /// It may close any descriptor.
    Closes,
    /// It changes what the daemon knows of the process.
    Ends,
    /// It makes any system call.
    System,
}

struct Gate {
    before: Before,
    next: Next,
}

/// System calls that have nothing to do with files.
const HARMLESS: [i64; 12] = [
    libc::SYS_futex,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_membarrier,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_clock_gettime,
    libc::SYS_tgkill,
    libc::SYS_getcpu,
    libc::SYS_madvise,
];

/// System calls that change what the daemon knows of the process.
const ENDING: [i64; 14] = [
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_capset,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_unshare,
    libc::SYS_setns,
];

/// Does what is to be done before a function, and returns the address of the next one. Without one, that of
/// a function that fails.
unsafe extern "C" fn before(first: usize, gate: &'static Gate, second: usize) -> *mut c_void {
    match gate.before {
        Before::Ends => life::end(),
        Before::Closes => life::disconnect(),
        Before::Shares => {
            session::is_shared();
            files::swap_all();
        }
        Before::Limit if first as u32 != libc::RLIMIT_FSIZE => {}
        Before::Limit | Before::Limits => {
            limits::change();
            files::swap_all();
        }
        _ if files::is_empty() && gate.before != Before::System => {}
        Before::Path => names::may_lead_here(first as *const c_char),
        Before::SecondPath => names::may_lead_here(second as *const c_char),
        Before::Paths => {
            names::may_lead_here(first as *const c_char);
            names::may_lead_here(second as *const c_char);
        }
        Before::First | Before::At => {
            if gate.before == Before::At {
                names::may_lead_here(second as *const c_char);
            }
            if let Err(errno) = files::swap(first as i32) {
                fail(errno);
                return failed as *mut c_void;
            }
        }
        Before::FirstToo => drop(files::swap(first as i32)),
        Before::System if ENDING.contains(&(first as i64)) => life::end(),
        Before::System if HARMLESS.contains(&(first as i64)) => {}
        Before::All | Before::System => files::swap_all(),
    }
    let next = gate.next.address();
    if next.is_null() {
        missing as *mut c_void
    } else {
        next
    }
}

extern "C" fn failed() -> isize {
    -1
}

extern "C" fn missing() -> isize {
    fail(libc::ENOSYS) as isize
}

/// The code of a function that is passed through.
#[cfg(target_arch = "x86_64")]
macro_rules! pass {
    ($gate:path) => {
        std::arch::naked_asm!(
            "endbr64",
            "push rbp",
            "mov rbp, rsp",
            "push rdi",
            "push rsi",
            "push rdx",
            "push rcx",
            "push r8",
            "push r9",
            "push r10",
            "push rax",
            "sub rsp, 128",
            "movups [rsp], xmm0",
            "movups [rsp + 16], xmm1",
            "movups [rsp + 32], xmm2",
            "movups [rsp + 48], xmm3",
            "movups [rsp + 64], xmm4",
            "movups [rsp + 80], xmm5",
            "movups [rsp + 96], xmm6",
            "movups [rsp + 112], xmm7",
            "mov rdx, rsi",
            "lea rsi, [rip + {gate}]",
            "call {before}",
            "mov r11, rax",
            "movups xmm0, [rsp]",
            "movups xmm1, [rsp + 16]",
            "movups xmm2, [rsp + 32]",
            "movups xmm3, [rsp + 48]",
            "movups xmm4, [rsp + 64]",
            "movups xmm5, [rsp + 80]",
            "movups xmm6, [rsp + 96]",
            "movups xmm7, [rsp + 112]",
            "add rsp, 128",
            "pop rax",
            "pop r10",
            "pop r9",
            "pop r8",
            "pop rcx",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "pop rbp",
            "jmp r11",
            gate = sym $gate,
            before = sym before,
        )
    };
}

/// The code of a function that is passed through.
#[cfg(target_arch = "aarch64")]
macro_rules! pass {
    ($gate:path) => {
        std::arch::naked_asm!(
            "hint 34",
            "stp x29, x30, [sp, -224]!",
            "mov x29, sp",
            "stp x0, x1, [sp, 16]",
            "stp x2, x3, [sp, 32]",
            "stp x4, x5, [sp, 48]",
            "stp x6, x7, [sp, 64]",
            "str x8, [sp, 80]",
            "stp q0, q1, [sp, 96]",
            "stp q2, q3, [sp, 128]",
            "stp q4, q5, [sp, 160]",
            "stp q6, q7, [sp, 192]",
            "mov x2, x1",
            "adrp x1, {gate}",
            "add x1, x1, :lo12:{gate}",
            "bl {before}",
            "mov x16, x0",
            "ldp q0, q1, [sp, 96]",
            "ldp q2, q3, [sp, 128]",
            "ldp q4, q5, [sp, 160]",
            "ldp q6, q7, [sp, 192]",
            "ldp x0, x1, [sp, 16]",
            "ldp x2, x3, [sp, 32]",
            "ldp x4, x5, [sp, 48]",
            "ldp x6, x7, [sp, 64]",
            "ldr x8, [sp, 80]",
            "ldp x29, x30, [sp], 224",
            "br x16",
            gate = sym $gate,
            before = sym before,
        )
    };
}

macro_rules! gates {
    ($($before:ident: $($name:ident)*;)*) => {
        #[allow(non_upper_case_globals, reason = "named as what they lead to")]
        mod to {
            use super::{Before, Gate, Next, name};
            $($(
                pub static $name: Gate = Gate {
                    before: Before::$before,
                    next: Next::new(name(concat!(stringify!($name), "\0"))),
                };
            )*)*
        }

        $($(
            #[allow(missing_docs, reason = "a function of libc")]
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name() {
                pass!(to::$name)
            }
        )*)*

        /// Looks up the next functions of these names.
        pub fn find() {
            $($(to::$name.next.find();)*)*
        }
    };
}

gates! {
    First: readv preadv preadv64
        preadv2 preadv64v2 __write __pwrite64 pwritev pwritev64 pwritev2 pwritev64v2 fallocate fallocate64
        sync_file_range syncfs flock lockf lockf64 fgetxattr flistxattr fremovexattr
        tcgetattr tcsetattr tcdrain tcflow tcflush tcgetpgrp tcsetpgrp tcgetsid tcsendbreak fpathconf
        fchdir dprintf vdprintf __dprintf_chk __vdprintf_chk readahead getdents64 getdirentries
        getdirentries64 send __send sendto recv __recv __recv_chk recvfrom __recvfrom_chk recvmsg
        recvmmsg accept accept4 bind connect __connect listen shutdown getsockopt setsockopt getsockname
        getpeername open_by_handle_at mkfifoat mknodat readlinkat __readlinkat_chk __close __lseek __fcntl;
    At: name_to_handle_at futimesat scandirat scandirat64;
    Path: truncate truncate64 setxattr getxattr
        listxattr removexattr lsetxattr lgetxattr llistxattr lremovexattr statfs statfs64 statvfs
        statvfs64 pathconf __open __open64 fopen fopen64 freopen freopen64 opendir chdir realpath
        __realpath_chk canonicalize_file_name remove mkfifo mknod mkstemp mkstemp64 mkstemps mkstemps64
        mkostemp mkostemp64 mkostemps mkostemps64 mkdtemp scandir scandir64 ftw ftw64 nftw nftw64 glob
        glob64 ftok acct;
    SecondPath: __xmknod inotify_add_watch;
    Paths: link;
    FirstToo: posix_fallocate posix_fallocate64 fdopen ttyname ttyname_r __ttyname_r_chk;
    All: fork __fork _Fork execve execv execvp execvpe execl execlp execle execveat fexecve forkpty
        daemon login_tty sendmsg sendmmsg __sendmmsg sendfile sendfile64 splice tee vmsplice poll __poll
        ppoll __poll_chk __ppoll_chk select __select pselect epoll_ctl linkat __dup2 __xmknodat aio_read
        aio_read64 aio_write aio_write64 aio_fsync aio_fsync64 lio_listio lio_listio64 mount umount
        umount2 fsconfig fsmount fspick open_tree move_mount mount_setattr fanotify_mark fts_open
        fts64_open backtrace_symbols_fd;
    Shares: vfork __vfork clone posix_spawn posix_spawnp system popen;
    Limit: setrlimit setrlimit64;
    Limits: prlimit prlimit64;
    Closes: closefrom close_range;
    Ends: setuid setgid seteuid setegid setreuid setregid setresuid setresgid setgroups initgroups
        setfsuid setfsgid capset chroot pivot_root unshare setns;
    System: syscall;
}
