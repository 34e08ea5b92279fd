//! How the command gets memory: by an allocator made for many threads, and in small pages.
//!
//! Inodes and log vectors are made by one thread and freed by another, for which the C library's
//! allocator takes locks and asks the kernel for memory in small steps. With huge pages, which mimalloc
//! asks for, the kernel clears two mebibytes at a first touch; where a virtual machine gets them anew
//! from its host each time, that costs more than all that they save.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Sets the process up; before threads are started.
pub fn set_up() {
    // Without it everything works, only more slowly.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}
