//! The kernel's interface of FUSE over io_uring (`include/uapi/linux/fuse.h`, since 6.14).
//!
//! Sizes, offsets and numbers only. An entry has a header, which the kernel calls
//! `fuse_uring_req_header`, and a payload. A request arrives as its `fuse_in_header` in the header's
//! first field, the fixed structure of its operation in the second, and all else in the payload. A
//! reply is a `fuse_out_header` in the first field, and its whole body in the payload.

/// Makes an entry known to the kernel.
pub(super) const REGISTER: u32 = 1;

/// Delivers the reply in an entry and offers the entry for the next request.
pub(super) const COMMIT_AND_FETCH: u32 = 2;

/// Size of the field for `fuse_in_header` and `fuse_out_header`, in bytes.
pub(super) const IN_OUT: usize = 128;

/// Size of the field for an operation's fixed structure, in bytes.
pub(super) const OP_IN: usize = 128;

/// Size of `fuse_uring_ent_in_out`: flags (8 bytes), commit id (8), size of the payload (4), and 12
/// bytes of padding.
pub(super) const ENT_IN_OUT: usize = 32;

/// Offset of the commit id in the header.
pub(super) const COMMIT_ID: usize = IN_OUT + OP_IN + 8;

/// Offset of the size of the payload in the header.
pub(super) const PAYLOAD_SIZE: usize = IN_OUT + OP_IN + 16;

/// Size of the header (`fuse_uring_req_header`) in bytes.
pub(super) const HEADER: usize = IN_OUT + OP_IN + ENT_IN_OUT;

/// Number of buffers of an entry: header and payload.
pub(super) const BUFFERS: usize = 2;

/// Smallest payload that the kernel accepts, in bytes (`FUSE_MIN_READ_BUFFER`).
pub(super) const PAYLOAD_MIN: usize = 8192;

/// `fuse_uring_cmd_req` in the 80 bytes that a submission has for a command: flags (8 bytes), commit
/// id (8), queue (2), padding.
pub(super) fn command(commit_id: u64, queue: u16) -> [u8; 80] {
    let mut bytes = [0; 80];
    let fields = [
        (8, &commit_id.to_ne_bytes()[..]),
        (16, &queue.to_ne_bytes()[..]),
    ];
    for (at, field) in fields {
        if let Some(room) = bytes.get_mut(at..at + field.len()) {
            room.copy_from_slice(field);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_has_the_kernels_size() {
        assert_eq!((HEADER, COMMIT_ID, PAYLOAD_SIZE), (288, 264, 272));
    }

    #[test]
    fn command_holds_commit_id_and_queue() {
        let bytes = command(0x0102_0304_0506_0708, 0x0a0b);
        assert_eq!(bytes[..8], [0; 8]);
        assert_eq!(bytes[8..16], 0x0102_0304_0506_0708u64.to_ne_bytes());
        assert_eq!(bytes[16..18], 0x0a0bu16.to_ne_bytes());
        assert_eq!(bytes[18..], [0; 62]);
    }
}
