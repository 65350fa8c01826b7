//! The container: a zip archive in one form.
//!
//! Members are stored without compression, one after another, and their contents begin at multiples of 64 bytes. The
//! padding is an extra field of the local header, so any tool reads the archive. Everything that a zip archive may
//! leave open (times, attributes, comments, gaps, order) has one value here. So a reader writes the records of the
//! members that it found once more, and compares. Zip64 records exist only where sizes need them.

mod read;
mod records;

pub(crate) use read::directory;
pub(crate) use records::{Member, central_and_end, local_header};

/// The alignment of contents.
pub(crate) const ALIGN: u64 = 64;

/// The maximum number of members of an archive.
pub(crate) const MAX_MEMBERS: usize = 10_000;

/// The maximum length of the name of a member.
pub(crate) const MAX_NAME_BYTES: usize = 240;

/// True if it is a valid name: parts of letters, digits, `_`, `-`, `+` and `.` with `/` between them. No part begins
/// with a dot.
pub(crate) fn is_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_-+.".contains(c);
    let is_part = |p: &str| !p.is_empty() && !p.starts_with('.') && p.chars().all(is_allowed);
    name.len() <= MAX_NAME_BYTES && name.split('/').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
        let (mut bytes, mut all) = (Vec::new(), Vec::new());
        for (name, contents) in members {
            let member = Member {
                name: name.to_string(),
                at: bytes.len() as u64,
                size: contents.len() as u64,
                crc: crc32fast::hash(contents),
            };
            bytes.extend(local_header(&member));
            assert_eq!(bytes.len() as u64, member.contents().start);
            assert!(bytes.len().is_multiple_of(64));
            bytes.extend(*contents);
            all.push(member);
        }
        let end = central_and_end(&all, bytes.len() as u64);
        bytes.extend(end);
        bytes
    }

    #[test]
    fn an_archive_is_read_as_it_was_written() {
        for n in [0, 1, 63, 64, 65] {
            let bytes = archive(&[("a", &vec![7; n]), ("b/c.txt", b"text")]);
            let found = directory(&bytes).unwrap();
            let names: Vec<&str> = found.iter().map(|m| &m.name[..]).collect();
            assert_eq!(names, ["a", "b/c.txt"]);
            let range = found[1].contents();
            assert_eq!(&bytes[range.start as usize..range.end as usize], b"text");
        }
    }

    #[test]
    fn every_changed_bit_of_the_records_is_noticed() {
        let bytes = archive(&[("a", b""), ("b", b"")]);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                assert!(directory(&changed).is_err(), "byte {at}, bit {bit}");
            }
        }
        for cut in 0..bytes.len() {
            assert!(directory(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn tricks_have_names() {
        let two: [(&str, &[u8]); 2] = [("a", b"first"), ("b", b"second")];
        let good = archive(&two);
        let directory_at = good.len() - 22 - 2 * 47;
        let (first, second) = (directory_at, directory_at + 47);
        let patched = |changes: &[(usize, &[u8])]| {
            let mut bytes = good.clone();
            for (at, with) in changes {
                bytes[*at..at + with.len()].copy_from_slice(with);
            }
            bytes
        };
        let longer = [&good[..], b"comment"].concat();
        let shifted = [&[0; 64], &good[..]].concat();
        let huge = 0x7fff_ffffu32.to_le_bytes();
        for (bytes, why) in [
            (archive(&[two[0], two[0]]), "two members called `a`"),
            (
                patched(&[(first + 10, &[8]), (8, &[8])]),
                "`a` is compressed",
            ),
            (patched(&[(first + 8, &[1]), (6, &[1])]), "encrypted"),
            (patched(&[(second + 38 + 3, &[0xa1])]), "`b` is a link"),
            (patched(&[(second + 42, &[0, 0])]), "`b` overlaps"),
            (
                patched(&[(second + 42, &[1, 1])]),
                "`b` overlaps what is before it, or leaves a gap",
            ),
            (
                patched(&[(second + 20, &huge), (second + 24, &huge)]),
                "`b` is larger than the file",
            ),
            (patched(&[(second + 24, &huge)]), "`b` is compressed"),
            (patched(&[(first + 16, &[0])]), "two headers that differ"),
            (patched(&[(first + 46, b"/")]), "the name of a member"),
            (longer, "may be cut off"),
            (shifted, "does not begin as a zip archive"),
        ] {
            let found = directory(&bytes).unwrap_err().to_string();
            assert!(found.contains(why), "{found}, not {why}");
        }
        assert!(directory(&good).is_ok());
    }

    #[test]
    fn sizes_beyond_32_bits_are_written_and_read() {
        // Only the records: there are no contents of this size.
        let big = Member {
            name: "weights".into(),
            at: 0,
            size: (1 << 33) + 5,
            crc: 9,
        };
        let header = local_header(&big);
        assert_eq!(header.len() as u64, big.contents().start);
        assert_eq!(big.contents().start % ALIGN, 0);
        let next = Member {
            name: "next".into(),
            at: big.contents().end,
            size: 3,
            crc: 1,
        };
        let end = central_and_end(&[big.clone(), next.clone()], next.contents().end);
        let found = read::parse_end(&end, next.contents().end).unwrap();
        assert_eq!(found, [big, next]);
    }

    #[test]
    fn names_that_lead_elsewhere_are_none() {
        for good in ["a", "entries/forward/graph.txt", "assets/a-b_c.1+2"] {
            assert!(is_name(good), "{good}");
        }
        let long = "x".repeat(241);
        for bad in [
            "", "/a", "a/", "a//b", "../a", "a/..", ".a", "a\\b", "é", "a\0", &long,
        ] {
            assert!(!is_name(bad), "{bad:?}");
        }
    }
}
