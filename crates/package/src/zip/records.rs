//! The records of an archive, as bytes.

use super::ALIGN;
use std::ops::Range;

/// A member of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub name: String,
    /// The offset of its local header.
    pub at: u64,
    /// The size of its contents, in bytes.
    pub size: u64,
    pub crc: u32,
}

/// The 32-bit placeholder for a number that is in a zip64 record.
pub(super) const ELSEWHERE: u64 = 0xffff_ffff;

/// The size of a local header, without name and extra fields.
const LOCAL: u64 = 30;

/// The extra field of alignment: an id, the size, the alignment, zeros.
const ALIGNMENT_FIELD: u16 = 0xa11e;

const ZIP64_FIELD: u16 = 1;

pub(super) const LOCAL_SIGNATURE: u32 = 0x0403_4b50;
pub(super) const CENTRAL_SIGNATURE: u32 = 0x0201_4b50;
pub(super) const END_SIGNATURE: u32 = 0x0605_4b50;
pub(super) const END64_SIGNATURE: u32 = 0x0606_4b50;
pub(super) const LOCATOR_SIGNATURE: u32 = 0x0706_4b50;

/// The Unix mode of a regular file that everybody may read.
pub(super) const REGULAR: u32 = 0o100_644 << 16;

/// Numbers in the order of a record.
#[derive(Default)]
pub(super) struct Record(pub Vec<u8>);

impl Record {
    pub fn u16(mut self, n: u16) -> Record {
        self.0.extend(n.to_le_bytes());
        self
    }

    pub fn u32(mut self, n: u32) -> Record {
        self.0.extend(n.to_le_bytes());
        self
    }

    pub fn u64(mut self, n: u64) -> Record {
        self.0.extend(n.to_le_bytes());
        self
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Record {
        self.0.extend(bytes);
        self
    }
}

/// A number in 32 bits, or the placeholder for one in a zip64 record.
fn short(n: u64) -> u32 {
    n.min(ELSEWHERE) as u32
}

impl Member {
    /// True if its size needs a zip64 field.
    fn is_big(&self) -> bool {
        self.size >= ELSEWHERE
    }

    fn zip64_bytes(&self) -> u64 {
        if self.is_big() { 20 } else { 0 }
    }

    /// The number of zeros that pad its header.
    fn padding(&self) -> u64 {
        let before = self.at + self.unpadded();
        before.next_multiple_of(ALIGN) - before
    }

    /// The size of its header without the padding.
    fn unpadded(&self) -> u64 {
        LOCAL + self.name.len() as u64 + self.zip64_bytes() + 6
    }

    /// The range of its contents.
    pub fn contents(&self) -> Range<u64> {
        let start = self.at + self.unpadded() + self.padding();
        start..start + self.size
    }

    /// The version of the zip format that is needed to read it.
    fn needs(&self) -> u16 {
        match self.is_big() || self.at >= ELSEWHERE {
            true => 45,
            false => 10,
        }
    }

    /// Appends the fields that both headers of a member have after their signature and the central one's version of
    /// the maker: neither encrypted nor compressed, with the earliest possible time.
    fn common(&self, record: Record) -> Record {
        let record = record.u16(self.needs()).u16(0).u16(0).u16(0).u16(0x21);
        let record = record.u32(self.crc);
        let record = record.u32(short(self.size)).u32(short(self.size));
        record.u16(self.name.len() as u16)
    }
}

/// The header before a member's contents.
pub(crate) fn local_header(member: &Member) -> Vec<u8> {
    let padding = member.padding() as usize;
    let extra = member.zip64_bytes() as usize + 6 + padding;
    let mut record = member.common(Record::default().u32(LOCAL_SIGNATURE));
    record = record.u16(extra as u16).bytes(member.name.as_bytes());
    if member.is_big() {
        record = record.u16(ZIP64_FIELD).u16(16);
        record = record.u64(member.size).u64(member.size);
    }
    let aligned = record.u16(ALIGNMENT_FIELD).u16(2 + padding as u16);
    aligned.u16(ALIGN as u16).bytes(&vec![0; padding]).0
}

/// The header of a member in the directory.
fn central_header(member: &Member) -> Vec<u8> {
    let mut extra = Record::default();
    if member.is_big() {
        extra = extra.u64(member.size).u64(member.size);
    }
    if member.at >= ELSEWHERE {
        extra = extra.u64(member.at);
    }
    let extra = match extra.0.len() {
        0 => Vec::new(),
        n => {
            let field = Record::default().u16(ZIP64_FIELD).u16(n as u16);
            field.bytes(&extra.0).0
        }
    };
    let unix = 3 << 8 | 45;
    let record = Record::default().u32(CENTRAL_SIGNATURE).u16(unix);
    let record = member.common(record).u16(extra.len() as u16);
    // No comment, on the first disk, not marked as text.
    let record = record.u16(0).u16(0).u16(0).u32(REGULAR);
    let record = record.u32(short(member.at)).bytes(member.name.as_bytes());
    record.bytes(&extra).0
}

/// The end of an archive whose members end at `at`: the directory, and the records of its offset and size.
pub(crate) fn central_and_end(members: &[Member], at: u64) -> Vec<u8> {
    let directory: Vec<u8> = members.iter().flat_map(central_header).collect();
    let (count, size) = (members.len() as u64, directory.len() as u64);
    let end64 = at + size;
    let mut record = Record(directory);
    if count >= 0xffff || size >= ELSEWHERE || at >= ELSEWHERE {
        record = record.u32(END64_SIGNATURE).u64(44).u16(3 << 8 | 45).u16(45);
        record = record.u32(0).u32(0).u64(count).u64(count).u64(size).u64(at);
        record = record.u32(LOCATOR_SIGNATURE).u32(0).u64(end64).u32(1);
    }
    let count = count.min(0xffff) as u16;
    record = record.u32(END_SIGNATURE).u16(0).u16(0);
    record = record.u16(count).u16(count);
    record.u32(short(size)).u32(short(at)).u16(0).0
}
