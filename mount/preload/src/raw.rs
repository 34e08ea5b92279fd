//! System calls without libc, and its `errno`.

use std::ffi::c_int;

/// `O_LARGEFILE` of the kernel, which is 0 in libc.
#[cfg(target_arch = "x86_64")]
pub const LARGEFILE: c_int = 0o100_000;
#[cfg(target_arch = "aarch64")]
pub const LARGEFILE: c_int = 0o400_000;

/// Sets `errno` and returns -1, as a function of libc that fails.
pub fn fail(errno: c_int) -> c_int {
    // SAFETY: libc gives each thread a place for it.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// A system call with four arguments.
///
/// # Safety
/// That of the system call.
#[cfg(target_arch = "x86_64")]
pub unsafe fn system_call(number: i64, args: [usize; 4]) -> isize {
    let [a, b, c, d] = args;
    let result;
    // SAFETY: as demanded.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// A system call with four arguments.
///
/// # Safety
/// That of the system call.
#[cfg(target_arch = "aarch64")]
pub unsafe fn system_call(number: i64, args: [usize; 4]) -> isize {
    let [a, b, c, d] = args;
    let result;
    // SAFETY: as demanded.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number as usize,
            inlateout("x0") a as isize => result,
            in("x1") b, in("x2") c, in("x3") d,
            options(nostack),
        );
    }
    result
}
