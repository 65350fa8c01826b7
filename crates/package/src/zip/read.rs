//! Finding the members of an untrusted archive.

use super::records::*;
use super::{ALIGN, MAX_MEMBERS, is_name};
use crate::error::{Error, Result, damaged, ensure};
use std::collections::HashSet;

/// A reader of little-endian numbers.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(n).ok_or_else(short_directory)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or_else(short_directory)?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.number()?))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.number()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.number()?))
    }
}

fn short_directory() -> Error {
    damaged!("its directory is cut off")
}

/// The size of the record at the end of every archive.
const END: usize = 22;

/// The size of the zip64 records before it.
const END64: usize = 56 + 20;

/// The members of an archive, in the order in which they lie in it.
///
/// # Errors
/// If the bytes are not what [`local_header`] and [`central_and_end`] write for these members.
pub(crate) fn directory(bytes: &[u8]) -> Result<Vec<Member>> {
    let offset = directory_offset(bytes)?;
    let parts = bytes.split_at_checked(offset as usize);
    let (before, end) = parts.ok_or_else(short_directory)?;
    let members = parse_end(end, offset)?;
    let mut next = 0;
    for member in &members {
        let name = &member.name;
        let is_adjacent = member.at == next;
        ensure!(
            is_adjacent,
            "`{name}` overlaps what is before it, or leaves a gap"
        );
        let contents = member.contents();
        let is_inside = contents.end <= before.len() as u64;
        ensure!(is_inside, "`{name}` is larger than the file");
        let header = &before[member.at as usize..contents.start as usize];
        let is_same = header == local_header(member);
        ensure!(is_same, "`{name}` has two headers that differ");
        next = contents.end;
    }
    ensure!(
        next == offset,
        "there is something between its members and its directory"
    );
    Ok(members)
}

/// The offset of the directory.
fn directory_offset(bytes: &[u8]) -> Result<u64> {
    let no_zip = |why: &str| Err(Error::SomethingElse(why.into()));
    let Some(at_end) = bytes.len().checked_sub(END) else {
        return no_zip("it is too short");
    };
    if !bytes.starts_with(&LOCAL_SIGNATURE.to_le_bytes()) {
        return no_zip("it does not begin as a zip archive");
    }
    let mut end = Cursor(&bytes[at_end..]);
    let is_end = end.u32()? == END_SIGNATURE;
    ensure!(
        is_end,
        "it does not end with a zip archive's directory; it may be cut off"
    );
    end.take(12)?;
    let offset = u64::from(end.u32()?);
    if offset != ELSEWHERE {
        return Ok(offset);
    }
    let at_end64 = at_end.checked_sub(END64).ok_or_else(short_directory)?;
    let mut end = Cursor(&bytes[at_end64..]);
    end.take(48)?;
    let offset = end.u64()?;
    match offset <= at_end64 as u64 {
        true => Ok(offset),
        false => Err(short_directory()),
    }
}

/// The members in the directory that begins at `at`, to the end of the archive.
pub(super) fn parse_end(bytes: &[u8], at: u64) -> Result<Vec<Member>> {
    let mut cursor = Cursor(bytes);
    let (mut members, mut names) = (Vec::new(), HashSet::new());
    while cursor.0.starts_with(&CENTRAL_SIGNATURE.to_le_bytes()) {
        let member = central(&mut cursor)?;
        let is_new = names.insert(member.name.clone());
        ensure!(is_new, "there are two members called `{}`", member.name);
        let has_room = members.len() < MAX_MEMBERS;
        ensure!(has_room, "it has more than {MAX_MEMBERS} members");
        members.push(member);
    }
    let is_own = central_and_end(&members, at) == bytes;
    ensure!(is_own, "its directory is none that Kiln writes");
    Ok(members)
}

fn central(cursor: &mut Cursor) -> Result<Member> {
    cursor.take(8)?;
    let (flags, method) = (cursor.u16()?, cursor.u16()?);
    cursor.take(4)?;
    let (crc, packed, size) = (cursor.u32()?, cursor.u32()?, cursor.u32()?);
    let (name, extra) = (cursor.u16()?, cursor.u16()?);
    cursor.take(6)?;
    let (attributes, at) = (cursor.u32()?, cursor.u32()?);
    let name = cursor.take(name.into())?;
    let mut extra = Cursor(cursor.take(extra.into())?);
    let name = std::str::from_utf8(name).ok().filter(|name| is_name(name));
    let Some(name) = name.map(String::from) else {
        return Err(damaged!("the name of a member is none that Kiln writes"));
    };
    let is_stored = method == 0 && flags == 0 && packed == size;
    ensure!(is_stored, "`{name}` is compressed or encrypted");
    ensure!(attributes == REGULAR, "`{name}` is a link or a folder");
    let mut member = Member {
        name,
        at: at.into(),
        size: size.into(),
        crc,
    };
    if member.size == ELSEWHERE || member.at == ELSEWHERE {
        extra.take(4)?;
        if member.size == ELSEWHERE {
            member.size = extra.u64()?;
            extra.take(8)?;
        }
        if member.at == ELSEWHERE {
            member.at = extra.u64()?;
        }
    }
    // Limits that keep sums of them within their type.
    let max = 1 << 60;
    let is_valid = member.at < max && member.size < max - ALIGN;
    ensure!(is_valid, "`{}` is larger than a file can be", member.name);
    Ok(member)
}
